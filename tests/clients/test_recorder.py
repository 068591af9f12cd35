"""What a device writes down of a participation is what happened, and only when it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clients.central import Central
from clients.device import Host
from clients.recorder import Participated, Recorder
from clients.samplers import SAMPLERS, Pads, Sampler, Uniform
from experiments.examples.skip_easy import SkipEasy
from fedio.config import Experiment
from fedio.errors import RunError
from fedio.runs import TRACE_FOLDER
from fedio.seeds import Purpose, rng
from fedio.traces import check_recorded
from storage import LRU, Policy
from storage.trace import Trace
from storage.trace_file import read_trace

Small = Callable[..., Experiment]


class StandIns(LRU):
    """Says that it substitutes."""

    substitutes = True


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / TRACE_FOLDER).mkdir()
    return tmp_path


@pytest.fixture
def named(small: Small) -> Callable[..., Experiment]:
    """The small experiment with its arm chosen, as devices get it."""

    def make(sampler: str = "uniform", seed: int = 0, staging: bool = False) -> Experiment:
        arms = {"a": {"policy": "lru", "sampler": sampler, "staging": staging}}
        return small(engine={"record_trace": True}, arms=arms).for_arm("a", seed)

    return make


def test_a_participation_is_written_as_it_happened(
    named: Callable[..., Experiment], home: Path
) -> None:
    experiment = named(seed=3)
    host = Host(experiment, home)
    arrays = Central(experiment).initial_arrays
    sizes = host.data.size_bytes[host.data.samples_of(1)]
    hits = 0
    for server_round, steps in ((1, 3), (4, 2)):
        done = host.device(1).train(arrays, server_round, local_steps=steps)
        trace = read_trace(home / TRACE_FOLDER / f"1-{server_round}.npz")
        (stream,) = trace.streams
        sampling = rng(3, Purpose.SAMPLING, 1, server_round)
        order = Uniform(18, 8).order(np.zeros(18, bool), steps * 8, sampling)
        assert stream.requests.tolist() == order.tolist()
        assert stream.client == 1
        assert stream.size_bytes.tolist() == sizes.tolist()
        assert stream.batch_starts.tolist() == list(range(0, steps * 8, 8))
        assert (stream.starts.tolist(), stream.rounds.tolist()) == ([0], [server_round])
        assert stream.losses.astype(np.float64).mean() == pytest.approx(done.train_loss, rel=1e-6)
        assert stream.served.tolist() == []
        assert stream.hits.tolist() == [done.meter.hits]
        assert stream.depth.tolist() == [done.meter.depth]
        assert stream.budget_bytes == int(sizes.sum() * 0.5)
        assert (trace.name, trace.depends) == ("small, a, seed 3", "")
        assert trace.policy == '{"name":"lru","args":{}}'
        hits += done.meter.hits
    assert hits
    assert len(list((home / TRACE_FOLDER).iterdir())) == 2


def test_a_round_that_is_trained_again_replaces_its_part(
    named: Callable[..., Experiment], home: Path
) -> None:
    host = Host(named(), home)
    arrays = Central(named()).initial_arrays
    part = home / TRACE_FOLDER / "2-5.npz"
    host.device(2).train(arrays, 5, local_steps=2)
    first = part.read_bytes()
    host.device(2).train(arrays, 5, local_steps=3)
    assert len(read_trace(part).streams[0].requests) == 24
    host.device(2).train(arrays, 5, local_steps=2)
    assert part.read_bytes() == first
    assert list(part.parent.iterdir()) == [part]


def test_nothing_is_written_unless_it_is_asked_for(
    small: Small, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "__init__", pytest.fail)
    experiment = small()
    Host(experiment, home).device(0).train(Central(experiment).initial_arrays, 1, local_steps=1)
    assert not list((home / TRACE_FOLDER).iterdir())


def test_recording_changes_no_result(
    small: Small, named: Callable[..., Experiment], home: Path, tmp_path: Path
) -> None:
    results = []
    for experiment, place in ((named(), home), (small(), tmp_path / "plain")):
        done = (
            Host(experiment, place)
            .device(0)
            .train(Central(experiment).initial_arrays, 1, local_steps=3)
        )
        results.append((done.meter, done.claims, done.train_loss))
    assert results[0] == results[1]


def test_a_device_elsewhere_than_the_server_says_so(
    named: Callable[..., Experiment], tmp_path: Path
) -> None:
    host = Host(named(), tmp_path)
    with pytest.raises(RunError, match="the devices have to run where the server writes the run"):
        host.device(0).train(Central(named()).initial_arrays, 1, local_steps=1)


def test_a_part_that_cannot_be_written_is_an_error_that_ends_the_run(
    named: Callable[..., Experiment], home: Path
) -> None:
    (home / TRACE_FOLDER / "0-1.npz").mkdir()
    host = Host(named(), home)
    with pytest.raises(RunError, match=r"cannot record a trace: .*0-1\.npz") as caught:
        host.device(0).train(Central(named()).initial_arrays, 1, local_steps=1)
    with pytest.raises(RunError, match=r"^cannot record a trace: "):
        check_recorded(str(caught.value))


def written(experiment: Experiment, home: Path, policy: Policy, served: list[int]) -> Trace:
    recorder = Recorder(experiment, home, 3, np.full(4, 9), 20)
    losses = np.array([[0.5, np.inf], [np.nan, 2.0]])
    done = Participated(6, np.array([3, 0, 3, 1]), np.array(served), losses, hits=1, depth=3)
    sampler = SAMPLERS[experiment.chosen.sampler.name](4, 2)
    recorder.write(done, sampler, policy)
    return read_trace(home / TRACE_FOLDER / "3-6.npz")


def test_what_was_served_is_kept_where_it_differs(
    named: Callable[..., Experiment], home: Path
) -> None:
    (stream,) = written(named(), home, LRU(4), [3, 0, 3, 1]).streams
    assert stream.served.tolist() == []
    np.testing.assert_equal(stream.losses, np.float32([0.5, np.inf, np.nan, 2]))
    assert (stream.hits.tolist(), stream.depth.tolist()) == ([1], [3])
    (stream,) = written(named(), home, LRU(4), [3, 2, 3, 1]).streams
    assert stream.served.tolist() == [3, 2, 3, 1]
    assert stream.requests.tolist() == [3, 0, 3, 1]


def test_it_says_what_depends_on_the_cache(named: Callable[..., Experiment], home: Path) -> None:
    order = [3, 0, 3, 1]
    assert written(named(), home, LRU(4), order).depends == ""
    pads = written(named("pads"), home, LRU(4), order).depends
    assert pads == "sampler pads may order by what is cached"
    policy = written(named(), home, StandIns(4), order).depends
    assert policy == "policy lru substitutes cached samples for others"
    assert written(named("pads"), home, StandIns(4), order).depends == f"{pads} and {policy}"
    staged = written(named(staging=True), home, LRU(4), order).depends
    assert staged == "staging brought samples in between"
    assert (
        written(named("pads", staging=True), home, LRU(4), order).depends == f"{pads} and {staged}"
    )


@pytest.mark.parametrize("kind", [*SAMPLERS.values(), SkipEasy])
def test_a_sampler_that_says_so_orders_alike_whatever_is_cached(kind: type[Sampler]) -> None:
    orders = set()
    for cached in (0, 10, 30):
        resident = np.arange(30) < cached
        sampler = kind(30, 5)
        sampler.order(resident, 20, np.random.default_rng(4))
        sampler.feedback(np.arange(5), np.arange(5.0))
        orders.add(tuple(sampler.order(resident, 50, np.random.default_rng(5)).tolist()))
    assert (len(orders) == 1) == (not kind.uses_resident)


def test_a_sampler_that_says_nothing_of_its_own_order_may_depend() -> None:
    class Renamed(Uniform):
        pass

    class Own(Uniform):
        def order(
            self, resident: np.ndarray, accesses: int, rng: np.random.Generator
        ) -> np.ndarray:
            return rng.permutation(np.resize(np.flatnonzero(resident), accesses))

    class Sure(Own):
        uses_resident = False

    assert [kind.uses_resident for kind in (Uniform, Renamed, Own, Sure, Pads)] == [
        False, False, True, False, True,
    ]  # fmt: skip
