"""Who is there when: against a slow walk through the stays, and for each kind."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.availability import TICKS_PER_S, Availability
from fedio.availability_kinds import CYCLE_STAYS, availability_of, forecasts
from fedio.config import Experiment

Client = tuple[float, list[tuple[float, float]]]  # its period, and its stays within that


@st.composite
def clients(draw: st.DrawFn) -> Client:
    """A client with stays in ascending order that may be empty and may touch, in quarters."""
    period = draw(st.integers(1, 60))
    times = draw(st.lists(st.integers(0, period), max_size=10).map(sorted))
    pairs = zip(times[::2], times[1::2], strict=False)
    return period / 4, [(start / 4, end / 4) for start, end in pairs]


fleets = st.lists(clients(), min_size=1, max_size=5)
moments = st.one_of(st.integers(0, 400).map(lambda n: n / 4), st.floats(0, 100))


def availability(fleet: list[Client]) -> Availability:
    stays = [(c, *stay) for c, (_, all_stays) in enumerate(fleet) for stay in all_stays]
    client, starts_s, ends_s = np.array(stays, np.float64).reshape(-1, 3).T
    periods_s = np.array([period_s for period_s, _ in fleet])
    return Availability.of(client.astype(np.int64), starts_s, ends_s, periods_s)


class Walk:
    """One client, its stays one after the other from before 0 s on, joined where they touch."""

    def __init__(self, client: Client, until_s: float) -> None:
        self.stays: list[list[float]] = []
        period_s, within = client
        for cycle in range(-1, int(until_s / period_s) + 2):
            for start, end in within:
                start_s, end_s = cycle * period_s + start, cycle * period_s + end
                if self.stays and self.stays[-1][1] == start_s:
                    self.stays[-1][1] = end_s
                elif end_s > start_s:
                    self.stays.append([start_s, end_s])
        self.always = sum(end - start for start, end in within) == period_s

    def stay_at(self, now_s: float) -> list[float] | None:
        return next((stay for stay in self.stays if stay[0] <= now_s < stay[1]), None)

    def next_s(self, now_s: float) -> float:
        if self.stay_at(now_s):
            return now_s
        return next((start for start, _ in self.stays if start >= now_s), math.inf)

    def leaves_s(self, now_s: float) -> float:
        stay = self.stay_at(now_s)
        return now_s if stay is None else math.inf if self.always else stay[1]

    def finish_s(self, start_s: float, work_s: float, *, resumes: bool) -> float:
        if work_s == 0 or start_s + work_s <= self.leaves_s(start_s):
            return start_s + work_s
        if resumes:
            for start, end in self.stays:
                worked_s = max(end - max(start, start_s), 0.0)
                if 0 < worked_s >= work_s:
                    return max(start, start_s) + work_s
                work_s -= worked_s
        return math.inf

    def share(self, from_s: float, to_s: float) -> float:
        there = (min(end, to_s) - max(start, from_s) for start, end in self.stays)
        return sum(max(seconds, 0.0) for seconds in there) / (to_s - from_s)


@given(fleets, moments)
def test_who_is_there_now_next_and_until_when(fleet: list[Client], now_s: float) -> None:
    presence = availability(fleet)
    walks = [Walk(client, now_s + 100) for client in fleet]
    everybody = np.arange(len(fleet))
    there, next_s = presence.at(now_s), presence.next_s(now_s)
    leaves_s = presence.leaves_s(everybody, now_s)
    # Within rounding of the end of a stay either is right.
    near = [any(abs(now_s - t) < 1e-9 for stay in w.stays for t in stay) for w in walks]
    exact = (now_s * 4).is_integer()
    for i in (i for i in range(len(fleet)) if exact or not near[i]):
        assert there[i] == (walks[i].stay_at(now_s) is not None)
        assert next_s[i] == walks[i].next_s(now_s)
        assert leaves_s[i] == walks[i].leaves_s(now_s)
    # Who is said to come is there then, and who is there leaves later.
    for client in np.flatnonzero(np.isfinite(next_s)):
        assert presence.at(float(next_s[client]))[client]
    assert (leaves_s[there] > now_s).all()
    assert (leaves_s[~there] == now_s).all()


@given(fleets, moments, st.data(), st.booleans())
def test_when_work_is_done(
    fleet: list[Client], start_s: float, data: st.DataObject, resumes: bool
) -> None:
    start_s = round(start_s * 4) / 4
    work = st.integers(0, 200).map(lambda n: n / 8)
    work_s = np.array([data.draw(work) for _ in fleet])
    chosen = np.array(data.draw(st.permutations(range(len(fleet)))), np.int64)
    done_s = availability(fleet).finish_s(chosen, start_s, work_s, resumes=resumes)
    for place, client in enumerate(chosen):
        walk = Walk(fleet[client], start_s + 1600)  # 25 s of work, at least 0.25 in every 15 s
        expected_s = walk.finish_s(start_s, work_s[place], resumes=resumes)
        assert done_s[place] == expected_s


@given(fleets, moments, st.floats(0.01, 100))
def test_the_share_of_a_window(fleet: list[Client], from_s: float, window_s: float) -> None:
    share = availability(fleet).share(from_s, from_s + window_s)
    walks = [Walk(client, from_s + window_s) for client in fleet]
    expected = [walk.share(from_s, from_s + window_s) for walk in walks]
    np.testing.assert_allclose(share, expected, atol=1e-9)
    assert ((share >= 0) & (share <= 1)).all()


@given(fleets, moments, st.floats(0.001, 50))
def test_work_that_is_resumed_takes_its_time_of_being_there(
    fleet: list[Client], start_s: float, work_s: float
) -> None:
    presence = availability(fleet)
    done_s = presence.finish_s(np.arange(len(fleet)), start_s, work_s, resumes=True)
    for client in np.flatnonzero(np.isfinite(done_s)):
        end_s = float(done_s[client])
        worked_s = presence.share(start_s, end_s)[client] * (end_s - start_s)
        assert worked_s == pytest.approx(work_s, abs=1e-6)


@given(fleets, st.lists(st.integers(0, 4), max_size=8), moments)
def test_taken_clients_are_there_as_those_they_are_taken_from(
    fleet: list[Client], rows: list[int], now_s: float
) -> None:
    whole, chosen = availability(fleet), np.array(rows, np.int64) % len(fleet)
    taken = whole.take(chosen)
    np.testing.assert_array_equal(taken.at(now_s), whole.at(now_s)[chosen])
    np.testing.assert_array_equal(taken.next_s(now_s), whole.next_s(now_s)[chosen])
    np.testing.assert_array_equal(
        taken.share(now_s, now_s + 7), whole.share(now_s, now_s + 7)[chosen]
    )


def test_a_stay_over_the_end_of_the_period_is_one() -> None:
    night = availability([(10.0, [(0.0, 2.0), (7.0, 10.0)])])
    one = np.array([0])
    assert night.at(0)[0]
    assert night.leaves_s(one, 8)[0] == 12
    assert night.finish_s(one, 8, [4.0], resumes=False)[0] == 12
    assert night.finish_s(one, 8, [5.0], resumes=False)[0] == np.inf
    assert night.finish_s(one, 8, [5.0], resumes=True)[0] == 18
    assert night.finish_s(one, [3.0], [11.0], resumes=True)[0] == 28


def test_no_time_is_no_window() -> None:
    with pytest.raises(ValueError, match="is no time"):
        availability([(1.0, [])]).share(3, 3)


def experiment(clients: int = 50, seed: int = 0, **setting: Any) -> Experiment:
    values = {"name": "x", "seed": seed, "data": {"clients": clients}, "rounds": {"cohort": 1}}
    return Experiment.model_validate(values | {"availability": setting})


def presence_of(clients: int = 50, seed: int = 0, **setting: Any) -> Availability:
    presence = availability_of(experiment(clients, seed, **setting))
    assert presence is not None
    return presence


KINDS: dict[str, dict[str, Any]] = {
    "periodic": {"period_s": 1000.0, "share": 0.3},
    "random": {"stay_s": 300.0, "absence_s": 700.0},
}


def test_always_needs_nobody_to_be_asked() -> None:
    assert availability_of(experiment(kind="always")) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_decides_who_is_there_when(kind: str) -> None:
    one, again = (presence_of(kind=kind, **KINDS[kind]) for _ in range(2))
    other = presence_of(kind=kind, **KINDS[kind], seed=1)
    moments_s = np.arange(0, 10_000, 77.0)
    there, same = ([p.at(t).tolist() for t in moments_s] for p in (one, again))
    assert there == same
    assert there != [other.at(t).tolist() for t in moments_s]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("from_s", [0.0, 1e7])
def test_a_share_of_the_fleet_is_there_from_the_beginning(kind: str, from_s: float) -> None:
    presence = presence_of(clients=4000, kind=kind, **KINDS[kind])
    at_once = [presence.at(from_s + t).mean() for t in (0, 250, 500)]
    np.testing.assert_allclose(at_once, 0.3, atol=0.04)  # 5 standard deviations
    np.testing.assert_allclose(presence.share(0, 1e7).mean(), 0.3, atol=0.02)


def test_random_stays_and_absences_are_exponential_and_never_end() -> None:
    presence = presence_of(clients=1000, kind="random", stay_s=300.0, absence_s=700.0)
    stays_s = presence.ends_s - presence.starts_s
    same_client = np.arange(1, len(stays_s)) % CYCLE_STAYS > 0
    absences_s = (presence.starts_s[1:] - presence.ends_s[:-1])[same_client]
    for lengths_s, mean_s in ((stays_s, 300), (absences_s, 700)):
        assert lengths_s.min() >= 1 / TICKS_PER_S
        assert lengths_s.mean() == pytest.approx(mean_s, rel=0.04)
        assert lengths_s.std() == pytest.approx(mean_s, rel=0.05)
        assert np.median(lengths_s) == pytest.approx(mean_s * math.log(2), rel=0.05)
    assert len(stays_s) == 1000 * CYCLE_STAYS
    assert np.isfinite(presence.next_s(1e9)).all()


def test_who_is_there_a_whole_period_never_leaves() -> None:
    presence = presence_of(kind="periodic", period_s=1000.0, share=1.0)
    assert (presence.leaves_s(np.arange(50), 123.4) == np.inf).all()
    assert (presence.finish_s(np.arange(50), 5.0, 1e6, resumes=False) == 1e6 + 5).all()


def test_clients_get_rows_of_a_trace_each_once_if_there_are_enough(tmp_path: Path) -> None:
    file = tmp_path / "stays.csv"
    rows = "\n".join(f"{i},{i},{i + 1}" for i in range(40))
    file.write_text(f"# period_s = 100\nclient,start_s,end_s\n{rows}\n")
    setting = {"kind": "trace", "file": str(file)}
    fewer = presence_of(clients=30, **setting).starts_s
    assert len(set(fewer)) == 30
    assert fewer.tolist() != sorted(fewer)
    assert fewer.tolist() == presence_of(clients=30, **setting).starts_s.tolist()
    assert fewer.tolist() != presence_of(clients=30, seed=1, **setting).starts_s.tolist()
    _, used = np.unique(presence_of(clients=90, **setting).starts_s, return_counts=True)
    assert sorted(used) == [2] * 30 + [3] * 10


def test_forecasts_are_right_as_often_as_declared_whatever_was_asked_before() -> None:
    asked = experiment(clients=5000, kind="periodic", forecast_s=3600.0, forecast_accuracy=0.8)
    presence = availability_of(asked)
    assert presence is not None
    now_s = 30_000.0
    truth = presence.share(now_s + 3600, now_s + 7200)
    forecast = forecasts(presence, now_s, asked)
    clear = truth != 0.5
    right = forecast == truth
    assert (forecast[~right] == 1 - truth[~right]).all()
    assert right[clear].mean() == pytest.approx(0.8, abs=0.03)
    forecasts(presence, 5.0, asked)
    np.testing.assert_array_equal(forecasts(presence, now_s, asked), forecast)
    # Errors are those of the window, and of no other.
    soon = forecasts(presence, now_s + 60, asked) == presence.share(now_s + 3660, now_s + 7260)
    later = forecasts(presence, now_s + 3600, asked) == presence.share(now_s + 7200, now_s + 10800)
    assert (soon == right)[clear].mean() > 0.95
    assert 0.5 < (later == right)[clear].mean() < 0.8


@pytest.mark.parametrize(("accuracy", "right"), [(1.0, True), (0.0, False)])
def test_forecasts_that_are_always_or_never_right(accuracy: float, right: bool) -> None:
    asked = experiment(kind="random", forecast_accuracy=accuracy)
    presence = availability_of(asked)
    assert presence is not None
    truth = presence.share(3600, 7200)
    np.testing.assert_array_equal(forecasts(presence, 0.0, asked), truth if right else 1 - truth)


def steps_of(query: Callable[[], object]) -> int:
    """Count what the interpreter does for a query: instructions of Python."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        query()
    finally:
        sys.settrace(before)
    return steps


def test_a_million_clients_are_asked_at_once() -> None:
    presence = presence_of(clients=10**6, kind="periodic", share=0.25)
    everybody = np.arange(10**6)
    queries = {
        "at": lambda: presence.at(12_345.0),
        "next_s": lambda: presence.next_s(12_345.0),
        "share": lambda: presence.share(12_345.0, 23_456.0),
        "finish_s": lambda: presence.finish_s(everybody, 0.0, 1e5, resumes=True),
    }
    assert {name: steps_of(query) < 10_000 for name, query in queries.items()} == dict.fromkeys(
        queries, True
    )
    assert presence.at(12_345.0).mean() == pytest.approx(0.25, abs=0.003)
