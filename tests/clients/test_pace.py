"""Pace: a participation takes, phase by phase, what the cost model makes of its counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from clients import datapath
from clients.answers import ANSWERS
from clients.central import Central
from clients.contention import DECODING, TRAINING, Contention
from clients.datapath import stall_limit_s
from clients.device import Host, Participation
from clients.loading import Loader
from clients.pace import Pace, ProfilePace
from clients.staging import AT_ONCE, Limits
from fedio.config import Experiment
from fedio.costs import phases, staging_s
from fedio.protocol import (
    ARRAYS,
    CONFIG,
    LOCAL_STEPS,
    SERVER_ROUND,
    STAGE,
    STAGED,
    WALL,
    WINDOW_S,
    WRITE_LIMIT_BYTES,
    Staged,
    WallSeconds,
    from_record,
)
from storage import Origin
from strategies.round import work_of
from strategies.shared import size_bytes
from tests.clients.fake_time import FakeTime, shared_by_readers
from tests.clients.faults import Faulty
from tests.clients.participations import drawn, threads_of_ours
from tests.clients.test_forms import speeds

Small = Callable[..., Experiment]
PROFILE = """
description = "A device of which every part takes its time"
source = "made up"
download_bytes_per_s = 3e6
upload_bytes_per_s = 1e6
memory_bytes = 4_000_000_000
[origin]
read_latency_s = 0.02
read_bytes_per_s = 9e7
write_latency_s = 1
write_bytes_per_s = 1
[cache]
read_latency_s = 0.003
read_bytes_per_s = 4e8
write_latency_s = 0.004
write_bytes_per_s = 3e8
[decode]
sample_s = 0.011
bytes_per_s = 9e7
"""
NOMINAL = {
    "size_bytes": {"median": 2e6, "sigma": 0.5, "min": 1e6, "max": 9e6},
    "prepared_bytes": 150_528,
}
DATA: list[dict[str, Any]] = [
    {"nominal": NOMINAL},
    {"nominal": NOMINAL, "dataset": "tests.clients.pixels:load"},
]
NAMES = [name for name in WallSeconds.__dataclass_fields__ if name != "behind_s"]
READING = ("origin_s", "cache_s", "decode_s", "write_s")
ALL = ("download_s", "stall_s", "compute_s", "upload_s")
INFINITE = float("inf")


class FakeClock:
    """Time that passes in sleep alone, and by hand."""

    def __init__(self, oversleeps_s: float = 0.0) -> None:
        self.time_s, self.oversleeps_s, self.slept_s = 100.0, oversleeps_s, 0.0

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds + self.oversleeps_s
        self.slept_s += seconds


class Busy(Origin):
    """An origin whose reads take so many seconds of their own."""

    def __init__(self, origin: Origin, clock: FakeClock, takes_s: float) -> None:
        self._origin, self._clock, self._takes_s = origin, clock, takes_s

    @property
    def size_bytes(self) -> np.ndarray:
        return self._origin.size_bytes

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        self._clock.time_s += self._takes_s
        return self._origin.read(samples, buffer, at)


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return shared_by_readers(monkeypatch)


@pytest.fixture
def paced(small: Small, tmp_path: Path) -> Small:
    """Return an experiment of such devices, by the wall clock."""

    def make(
        prefetch: str = "", *, inference_ms: int = 5, pace: str = "profile", **sections: Any
    ) -> Experiment:
        profile = tmp_path / "device.toml"
        profile.write_text(f"inference_ms = {inference_ms}{PROFILE}[prefetch]\n{prefetch}\n")
        arm = {"policy": "lru", "prefetch": bool(prefetch)} | sections.pop("arm", {})
        values: dict[str, Any] = {
            "data": {"nominal": NOMINAL},
            "fleet": {"profiles": {str(profile): 1.0}, "spread": 0.2},
            "engine": {"clock": "wall"},
            "emulation": {"pace": pace},
            "arms": {"a": arm},
        }
        return small(**(values | sections))

    return make


def train(host: Host, rounds: int = 3, client: int = 1) -> list[Participation]:
    """A few participations in a row: cold, then warm."""
    arrays = Central(host.experiment).initial_arrays
    done = [host.device(client).train(arrays, r, 6) for r in range(1, rounds + 1)]
    host.close()
    assert not threads_of_ours()
    return done


def expected_s(host: Host, done: Participation, client: int = 1) -> dict[str, float]:
    """What the server's clock makes of the counts."""
    one = phases(
        work_of([done.meter], size_bytes(done.arrays)), host.speeds.take(np.array([client]))
    )
    return {name: float(getattr(one, name)[0]) for name in NAMES}


def measured_s(done: Participation) -> dict[str, float]:
    seconds = asdict(done.wall.seconds)
    done.wall.seconds.check()
    assert done.wall.total_s == pytest.approx(sum(seconds[name] for name in ALL))
    return {name: seconds[name] for name in NAMES}


@pytest.mark.parametrize("form", ["encoded", "prepared", "best"])
@pytest.mark.parametrize("data", DATA)
def test_in_turns_every_phase_takes_what_it_costs(
    paced: Small, tmp_path: Path, form: str, data: dict[str, Any]
) -> None:
    experiment = paced(data=data, arm={"form": form})
    host = Host(experiment, tmp_path, clock=FakeClock())
    total_s = dict.fromkeys(NAMES, 0.0)
    for done in train(host):
        took = measured_s(done)
        assert took == pytest.approx(expected_s(host, done), rel=1e-9)
        assert took["stall_s"] == pytest.approx(sum(took[name] for name in READING))
        assert done.wall.behind_s == 0
        total_s = {name: total_s[name] + took[name] for name in NAMES}
    assert min(total_s.values()) > 0


@pytest.mark.parametrize("ahead", [(2, 1), (4, 1), (3, 2), (6, 3)])
@pytest.mark.parametrize("inference_ms", [1, 5, 40])
@pytest.mark.parametrize("data", DATA)
def test_reading_ahead_overlaps_as_much_as_it_costs(
    paced: Small,
    tmp_path: Path,
    fake_time: FakeTime,
    ahead: tuple[int, int],
    inference_ms: int,
    data: dict[str, Any],
) -> None:
    depth, readers = ahead
    prefetch = f"batches = {depth}\nreaders = {readers}"
    experiment = paced(prefetch, inference_ms=inference_ms, data=data)
    host = Host(experiment, tmp_path, clock=fake_time)
    for done in train(host):
        assert (done.meter.depth, done.meter.readers) == (depth, readers)
        expected = expected_s(host, done)
        assert measured_s(done) == pytest.approx(expected, abs=1e-6)
        # Something is overlapped: otherwise any clock would do.
        assert expected["stall_s"] < sum(expected[name] for name in READING) - 0.01
        assert done.wall.behind_s == 0


@pytest.mark.parametrize(("slowdown", "inference_ms"), [(1.3, 40), (2.0, 20), (2.0, 80), (5.0, 40)])
@pytest.mark.parametrize("depth", [2, 4, 6])
def test_decoding_and_training_slow_each_other_down_as_they_do_on_the_clock(
    paced: Small,
    tmp_path: Path,
    fake_time: FakeTime,
    slowdown: float,
    inference_ms: int,
    depth: int,
) -> None:
    experiment = paced(
        f"batches = {depth}\nreaders = 2\nslowdown = {slowdown}", inference_ms=inference_ms
    )
    host = Host(experiment, tmp_path, clock=fake_time)
    for done in train(host):
        assert (done.meter.depth, done.meter.readers) == (depth, 1)
        expected = expected_s(host, done)
        assert measured_s(done) == pytest.approx(expected, abs=1e-4)
        alone = replace(host.speeds, slowdown=np.ones_like(host.speeds.slowdown))
        work = work_of([done.meter], size_bytes(done.arrays))
        assert expected["compute_s"] > float(phases(work, alone.take(np.array([1]))).compute_s[0])


def test_a_clock_that_oversleeps_is_made_up_for(paced: Small, tmp_path: Path) -> None:
    """Each wait ends 2 ms late; only the last of each kind stays so."""
    host = Host(paced(), tmp_path, clock=FakeClock(oversleeps_s=0.002))
    for done in train(host):
        took, expected = measured_s(done), expected_s(host, done)
        assert done.wall.behind_s == 0
        assert (
            0
            <= done.wall.total_s
            - sum(expected[f"{name}_s"] for name in ("download", "stall", "compute", "upload"))
            < 4 * 0.002 + 1e-9
        )
        for name in NAMES:
            assert abs(took[name] - expected[name]) <= 3 * 0.002 + 1e-9


def test_a_host_that_is_too_slow_says_so(paced: Small, tmp_path: Path) -> None:
    """What the host does itself is part of the time; what is left over is lateness."""

    def slow(takes_s: float, folder: str) -> tuple[Host, list[Participation]]:
        clock = FakeClock()
        host = Host(
            paced(),
            tmp_path / folder,
            slow=lambda _, origin, __: Busy(origin, clock, takes_s),
            clock=clock,
        )
        return host, train(host, rounds=1)

    host, (done,) = slow(0.05, "quick")
    assert done.wall.behind_s == 0
    assert measured_s(done) == pytest.approx(expected_s(host, done), rel=1e-9)
    host, (done,) = slow(5.0, "slow")
    steps, origin_s = done.meter.steps, expected_s(host, done)["origin_s"]
    late_s = 5.0 * steps - origin_s
    assert done.wall.behind_s == pytest.approx(late_s, abs=0.011 * steps)
    assert done.wall.total_s > 5.0 * steps


def test_what_is_decoded_for_the_cache_is_part_of_decoding(
    paced: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, convert = FakeClock(), Loader.convert

    def slow(loader: Loader, *given: Any) -> None:
        clock.time_s += 0.05
        convert(loader, *given)

    monkeypatch.setattr(Loader, "convert", slow)
    host = Host(paced(arm={"form": "prepared"}), tmp_path, clock=clock)
    (done,) = train(host, rounds=1)
    assert measured_s(done) == pytest.approx(expected_s(host, done), rel=1e-9)


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_at_its_own_speed_nothing_waits(paced: Small, tmp_path: Path, clock: str) -> None:
    class Sleepless(FakeClock):
        def sleep(self, seconds: float) -> None:
            raise AssertionError(seconds)

    pace = "none" if clock == "wall" else "profile"
    host = Host(
        paced("batches = 4", pace=pace, engine={"clock": clock}), tmp_path, clock=Sleepless()
    )
    for done in train(host):
        assert set(measured_s(done).values()) == {0}
        assert done.wall.behind_s == 0


def test_by_real_time_a_participation_is_accounted_for(paced: Small, tmp_path: Path) -> None:
    host = Host(paced("batches = 4", pace="none"), tmp_path)
    for done in train(host):
        took = measured_s(done)
        assert took["download_s"] == took["upload_s"] == 0
        assert took["stall_s"] > done.wall.training.stall_s  # opening and saving the cache
        assert min(took["compute_s"], took["cache_s"], took["decode_s"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", ["", "batches = 4\nreaders = 2"])
def test_in_real_time_nothing_is_faster_than_the_profile(
    paced: Small, tmp_path: Path, prefetch: str
) -> None:
    """Slower it may be: that is up to the machine."""
    host = Host(paced(prefetch), tmp_path)
    for done in train(host, rounds=2):
        took, expected, steps = measured_s(done), expected_s(host, done), done.meter.steps
        assert took["download_s"] >= expected["download_s"]
        for name in (*READING, "compute_s"):  # each step may make up for the one before
            assert took[name] >= expected[name] - steps * 0.012
        # What is made up has been lost before; but queues may follow on 2 ms late.
        everything_s = sum(expected[name] for name in ALL)
        assert done.wall.total_s >= everything_s - 5 * steps * 0.002


def test_slow_storage_slows_both_tiers_and_nothing_else(paced: Small, tmp_path: Path) -> None:
    fault = {"slow_storage": [{"round": 2, "factor": 10.0, "clients": [1]}]}
    host = Host(paced(faults=fault), tmp_path, clock=FakeClock())
    for number, done in enumerate(train(host), start=1):
        factor, took, expected = 10 if number == 2 else 1, measured_s(done), expected_s(host, done)
        for name in ("origin_s", "cache_s", "write_s"):
            assert took[name] == pytest.approx(factor * expected[name])
        for name in ("download_s", "decode_s", "compute_s", "upload_s"):
            assert took[name] == pytest.approx(expected[name])


def test_what_is_read_when_training_has_failed_is_not_waited_for(
    paced: Small, tmp_path: Path, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(paced("batches = 4"), tmp_path, clock=fake_time)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(host.trainer, "_train_on", fails)
    arrays = Central(host.experiment).initial_arrays
    waits: list[Pace] = []
    stop_reading = ProfilePace.stop_reading

    def stopped(pace: ProfilePace) -> None:
        waits.append(pace)
        stop_reading(pace)
        fake_time.waits()  # for the readers to end

    monkeypatch.setattr(ProfilePace, "stop_reading", stopped)
    with pytest.raises(ZeroDivisionError):
        host.device(1).train(arrays, 1, 6)
    assert len(waits) == 1
    assert not threads_of_ours()
    began_s = fake_time.now_s()
    waits[0].read_origin(1000, 10**9, began_s)
    waits[0].decode(1000, 10**9, began_s)
    assert fake_time.now_s() == began_s
    host.close()


def test_an_origin_is_gone_only_after_ten_times_what_it_may_take() -> None:
    data = drawn(20)
    assert stall_limit_s(8, data, Pace()) == datapath.STALL_LIMIT_S == 120
    slow = speeds(origin_read_latency_s=2.0, cache_write_latency_s=0.5, decode_sample_s=1.0)
    pace = ProfilePace(slow, FakeClock())
    most_bytes = int(data.size_bytes.max())
    cold_s = float(
        slow.origin.read_s(8, 8 * most_bytes)
        + slow.cache.write_s(8, 8 * most_bytes)
        + slow.decode_s(8, 8 * most_bytes)
    )
    assert cold_s > 12
    assert stall_limit_s(8, data, pace) == pytest.approx(10 * cold_s)
    slower = ProfilePace(slow, FakeClock(), storage_slowdown=10.0)
    assert stall_limit_s(8, data, slower) > 5 * stall_limit_s(8, data, pace)
    quick = ProfilePace(speeds(), FakeClock())
    assert stall_limit_s(8, data, quick) == 120


# Decoding beside training.


def test_each_loses_while_both_go_on() -> None:
    clock = FakeClock()
    lost = Contention(clock, 4.0)
    clock.time_s += 7
    lost.begin(DECODING)
    clock.time_s += 1
    lost.begin(TRAINING)
    assert (lost.lost_s(DECODING), lost.lost_s(TRAINING)) == (0, 0)
    clock.time_s += 8
    assert (lost.lost_s(DECODING), lost.lost_s(TRAINING)) == (6, 6)
    lost.end(DECODING)
    clock.time_s += 16
    assert (lost.lost_s(DECODING), lost.lost_s(TRAINING)) == (0, 6)
    lost.begin(DECODING)
    clock.time_s += 4
    assert (lost.lost_s(DECODING), lost.lost_s(TRAINING)) == (3, 9)


# Staging in real time.


def arrays_of(host: Host) -> Any:
    return Central(host.experiment).initial_arrays


def test_staging_takes_what_it_costs_and_ends_within_its_window(
    paced: Small, tmp_path: Path
) -> None:
    clock = FakeClock()
    host = Host(paced(cache={"share": 4.0}, arm={"form": "prepared"}), tmp_path, clock=clock)
    device = host.device(1)
    device.train(arrays_of(host), 1, 1)

    def staged_in(window_s: float, server_round: int) -> tuple[Staged, float]:
        began_s = clock.time_s
        staged = device.stage_in_real_time(server_round, 3, Limits(window_s=window_s))
        costs_s = staging_s(
            (staged.origin_samples, staged.origin_bytes),
            (staged.decoded_samples, staged.decoded_bytes),
            (staged.written_samples, staged.written_bytes),
            host.speeds.take(1),
        )
        assert clock.time_s - began_s == pytest.approx(float(costs_s))
        return staged, clock.time_s - began_s

    whole, whole_s = staged_in(INFINITE, 2)
    assert whole.staged_samples + whole.held_samples == whole.needed_samples > 10
    half, half_s = staged_in(whole_s / 2, 2)
    assert 0 < half_s <= whole_s / 2
    assert 0 < half.staged_samples < whole.staged_samples
    nothing, nothing_s = staged_in(0.0, 2)
    assert (nothing.staged_samples, nothing_s) == (0, 0)
    assert device.train(arrays_of(host), 2, 3).meter.staged == 0
    host.close()


def test_at_its_own_speed_staging_ends_with_its_window(paced: Small, tmp_path: Path) -> None:
    """The origin gives nothing any more when the window closes, and then what it was asked for."""
    origins: list[Faulty] = []

    def slow(_: int, origin: Origin, __: np.ndarray) -> Origin:
        origins.append(Faulty(origin))
        return origins[0]

    host = Host(paced(pace="none", cache={"share": 4.0}), tmp_path, slow=slow)
    device = host.device(1)
    device.profile()
    origins[0].hangs_at = 1
    begin = device.stage_in_background

    def begun(*given: Any) -> Any:
        staging = begin(*given)
        assert origins[0].hanging.wait(60)
        end = staging.end

        def released(limit_s: float) -> Staged:
            staging._over.set()
            origins[0].released.set()
            return end(limit_s)

        staging.end = released  # type: ignore[method-assign]
        return staging

    device.stage_in_background = begun  # type: ignore[method-assign]
    staged = device.stage_in_real_time(1, 3, Limits(window_s=0.0))
    assert staged.staged_samples == 2 * AT_ONCE < staged.needed_samples
    host.close()


def asked(host: Host, kind: str, **config: float) -> RecordDict:
    named = ConfigRecord({name.replace("_", "-"): value for name, value in config.items()})
    content = RecordDict({CONFIG: named, ARRAYS: arrays_of(host)})
    return ANSWERS[kind](host.device(1), content)


def test_answers_say_where_the_time_went_where_it_counts(paced: Small, tmp_path: Path) -> None:
    for clock in ("wall", "virtual"):
        fake = FakeClock()
        host = Host(paced(engine={"clock": clock}), tmp_path / clock, clock=fake)
        to_train = {SERVER_ROUND: 1, LOCAL_STEPS: 3}
        reply = asked(host, "train", **to_train)
        assert (WALL in reply) == (clock == "wall")
        if clock == "wall":
            seconds = from_record(WallSeconds, reply[WALL])
            seconds.check()
            assert seconds.compute_s > 0
        began_s = fake.time_s
        to_stage = {SERVER_ROUND: 2, LOCAL_STEPS: 3, WINDOW_S: 1e6, WRITE_LIMIT_BYTES: -1}
        staged = from_record(Staged, asked(host, STAGE, **to_stage)[STAGED])
        assert staged.origin_samples > 0
        assert (fake.time_s > began_s) == (clock == "wall")
        host.close()
