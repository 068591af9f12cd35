"""Faults on purpose, on the device: it trains all the same, or is lost and then as good as new."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from clients import injection, standstill
from clients.central import Central
from clients.client_cache import trained_tag
from clients.device import Host, Participation
from clients.injection import Injection, KilledOnPurpose, corrupt
from fedio.config import Experiment
from fedio.faults import Struck
from fedio.loading import load
from fedio.runs import hash_arrays
from tests.clients.participations import state_of, threads_of_ours

Small = Callable[..., Experiment]
ROOT = Path(__file__).parents[2]
STEPS, SAMPLES, TRAINED = 12, 72, 96


def faulty(small: Small, faults: dict[str, Any], **sections: Any) -> Experiment:
    """One client whose cache holds a part of its samples."""
    lone = {"data": {"clients": 1}, "rounds": {"cohort": 1}, "cache": {"share": 0.4}}
    return small(**lone, faults=faults, **sections)


def said(done: Participation) -> tuple[Any, ...]:
    hashed = hash_arrays({name: array.numpy() for name, array in done.arrays.items()})
    return hashed, done.train_loss, done.meter, done.claims


class Trial:
    """A client that is trained round after round from the same model."""

    def __init__(self, experiment: Experiment, home: Path, *, threads: bool = False) -> None:
        self.home, self.arrays = home, Central(experiment).initial_arrays
        self.host = Host(experiment, home, threads=threads)

    def train(self, server_round: int) -> Participation:
        done = self.host.device(0).train(self.arrays, server_round, STEPS)
        done.meter.check()
        assert not threads_of_ours()
        return done

    def state(self, before: int = 10**6) -> tuple[Any, ...]:
        """Who is in the cache and what its policy knows, as the next participation finds them."""
        with self.host.device(0)._cache.before(trained_tag(before)) as cache:
            return state_of(cache)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_a_full_disk_takes_nothing_and_gives_what_it_has(
    small: Small, tmp_path: Path, store: str, *, threads: bool
) -> None:
    cache = {"share": 0.4, "store": store}
    full = faulty(small, {"full_disk": {"round": 2}}).model_dump()
    calm = faulty(small, {}).model_dump()
    trials = []
    for name, values in (("full", full), ("calm", calm)):
        values["cache"] |= cache
        trials.append(Trial(Experiment.model_validate(values), tmp_path / name, threads=threads))
    trial, other = trials
    assert said(trial.train(1)) == said(other.train(1))
    held = trial.state()
    done, whole = trial.train(2), other.train(2)
    assert said(done)[:2] == said(whole)[:2]  # it trains the same
    assert whole.meter.refused == 0
    assert whole.meter.written_samples > 0
    assert done.meter.refused == done.meter.misses > 0
    assert done.meter.hits > 0
    assert (done.meter.written_samples, done.meter.evicted_samples) == (0, 0)
    assert trial.state()[0] == held[0]
    with trial.host.device(0)._cache.newest() as cached:
        assert all(cached.get(sample) for sample in held[0])
    after = trial.train(3)
    assert after.meter.refused == 0
    assert after.meter.written_samples > 0


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_corrupt_cache_is_reported_and_filled_again(
    small: Small,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    is_open: bool,
    threads: bool,
) -> None:
    experiment = faulty(small, {"corrupt_cache": {"round": 3}})
    trial = Trial(experiment, tmp_path, threads=threads)
    fresh = Trial(faulty(small, {}), tmp_path / "fresh", threads=threads)
    for server_round in (1, 2):
        assert trial.train(server_round).meter.hits > 0
    assert trial.state()[0]
    if not is_open:
        trial.host.close()
    with caplog.at_level(logging.WARNING):
        done = trial.train(3)
    reports = [record for record in caplog.records if "cache emptied" in record.message]
    assert len(reports) == 1
    # As good as new: sampler and policy have forgotten what came before, too.
    assert said(done) == said(fresh.train(3))
    assert trial.state() == fresh.state()
    expected = fresh.train(4)
    assert said(trial.train(4)) == said(expected)
    # The server was restored, and asks for the round once more.
    assert said(trial.train(3)) == said(done)
    assert said(trial.train(4)) == said(expected)


def test_a_cache_that_is_not_there_yet_cannot_be_damaged(small: Small, tmp_path: Path) -> None:
    trial = Trial(faulty(small, {"corrupt_cache": {"rate": 1}}), tmp_path / "struck")
    calm = Trial(faulty(small, {}), tmp_path / "calm")
    assert said(trial.train(1)) == said(calm.train(1))
    assert trial.train(2).meter.hits < calm.train(2).meter.hits


@pytest.mark.parametrize("budget_bytes", [0, 40_000, 9 << 20])
def test_whatever_its_pages_a_file_that_is_cut_off_is_lost(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture, budget_bytes: int
) -> None:
    values = faulty(small, {}).model_dump()
    values["cache"] |= {"share": None, "budget_bytes": budget_bytes}
    experiment = Experiment.model_validate(values)
    trial, fresh = Trial(experiment, tmp_path / "a"), Trial(experiment, tmp_path / "b")
    for server_round in (1, 2):
        trial.train(server_round)
    with caplog.at_level(logging.WARNING):
        corrupt(trial.host.device(0)._cache)
    assert [record.message for record in caplog.records if "is truncated" in record.message]
    assert trial.state() == fresh.state()
    assert said(trial.train(3)) == said(fresh.train(3))


def test_halfway_it_ends() -> None:
    struck = Injection(Struck(kill=True), own_process=False)
    for steps in (1, 2, 7, 8):
        seen: list[int] = []
        with pytest.raises(KilledOnPurpose):
            seen.extend(struck.in_the_middle(range(steps), steps))
        assert seen == list(range(steps // 2))
    # Also where batches were left out, since none of their samples could be read.
    with pytest.raises(KilledOnPurpose):
        list(struck.in_the_middle(range(2), 8))


def test_others_in_the_process_do_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[tuple[float, int]] = []
    seen: list[int] = []
    monkeypatch.setattr(injection, "stand_still", lambda s: stops.append((s, len(seen))))
    for own_process in (False, True):
        seen.clear()
        struck = Injection(Struck(stop_s=3), own_process=own_process)
        seen.extend(struck.in_the_middle(range(8), 8))
        assert seen == list(range(8))
    assert stops == [(3, 4)]


def test_what_is_not_struck_is_left_alone(small: Small, tmp_path: Path) -> None:
    calm, batches = Injection(Struck(storage_slowdown=9), own_process=True), iter(())
    assert calm.in_the_middle(batches, 8) is batches
    with Trial(faulty(small, {}), tmp_path).host.device(0)._cache.newest() as cache:
        assert calm.disk_of(cache) is cache


STOPS = """
import subprocess, sys
print("begins", flush=True)
subprocess.run([sys.executable, "-I", "-S", *sys.argv[1:]], check=True)
print("goes on", flush=True)
"""


def stopped_for(seconds: float) -> subprocess.Popen[str]:
    """A process that has itself stopped, and is."""
    command = [sys.executable, "-c", STOPS, standstill.__file__, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP
    return process


def test_a_process_stands_still_and_goes_on() -> None:
    process = stopped_for(0.2)
    _, status = os.waitpid(process.pid, os.WCONTINUED)
    assert os.WIFCONTINUED(status)
    out, _ = process.communicate()
    assert out.split("\n") == ["begins", "goes on", ""]
    assert process.returncode == 0


def test_killed_while_it_stands_still_it_leaves_nobody() -> None:
    process = stopped_for(10_000)
    (waker,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    gone, _ = psutil.wait_procs([waker], timeout=60)
    assert gone == [waker]


# A device in a process of its own, trained in some rounds.
ALONE = """
import sys
from pathlib import Path
from clients.central import Central
from clients.device import Host
from fedio.loading import load
experiment = load(Path(sys.argv[1])).for_arm()
host = Host(experiment, Path(sys.argv[2]), threads=True, alone=True)
for server_round in map(int, sys.argv[3:]):
    host.device(0).train(Central(experiment).initial_arrays, server_round, 12)
"""


def alone(experiment: Experiment, home: Path, *rounds: int) -> subprocess.Popen[bytes]:
    file = home.with_suffix(".toml")
    file.write_text(experiment.to_toml())
    assert load(file).faults == experiment.faults
    command = [sys.executable, "-c", ALONE, str(file), str(home), *map(str, rounds)]
    return subprocess.Popen(command, cwd=ROOT)  # noqa: S603 - ours


@pytest.mark.slow
@pytest.mark.parametrize("corrupt", [False, True])
@pytest.mark.parametrize(
    ("policy", "sampler"), [("lru", "uniform"), ("importance", "pads"), ("icache", "uniform")]
)
def test_what_a_real_kill_leaves_is_what_the_error_leaves(
    small: Small, tmp_path: Path, policy: str, sampler: str, *, corrupt: bool
) -> None:
    faults: dict[str, Any] = {"kill": {"round": 3}}
    if corrupt:
        faults["corrupt_cache"] = {"round": 3}
    arms = {"a": {"policy": policy, "sampler": sampler}}
    experiment = faulty(small, faults, arms=arms)
    process = alone(experiment, tmp_path / "killed", 1, 2, 3)
    assert process.wait() == -signal.SIGKILL

    error = Trial(experiment, tmp_path / "error")
    for server_round in (1, 2):
        error.train(server_round)
    before = error.state()
    with pytest.raises(KilledOnPurpose):
        error.train(3)
    killed = Trial(experiment, tmp_path / "killed")
    if not corrupt:
        assert killed.state(4) == error.state(4) == before
    assert killed.state(4) == error.state(4)
    for server_round in (4, 5):
        assert said(killed.train(server_round)) == said(error.train(server_round))
        assert killed.state() == error.state()


@pytest.mark.slow
def test_a_device_stands_still_in_mid_training(small: Small, tmp_path: Path) -> None:
    experiment = faulty(small, {"stop": {"round": 2, "seconds": 0.5}})
    process = alone(experiment, tmp_path / "stopped", 1, 2, 3)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    _, status = os.waitpid(process.pid, os.WCONTINUED)
    assert os.WIFCONTINUED(status)
    assert process.wait() == 0
    stopped = Trial(experiment, tmp_path / "stopped")
    shared = Trial(experiment, tmp_path / "shared")
    for server_round in (1, 2, 3):
        shared.train(server_round)
    assert stopped.state() == shared.state()
