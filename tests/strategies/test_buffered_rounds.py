"""Rounds of buffered aggregation: clients, clock, selector and fleet table around the buffer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedio.arrays import pack
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.profiles import Speeds
from fedio.protocol import ProfileClaims
from fedio.runs import RunFolder
from strategies.buffered import Buffer
from strategies.buffered_rounds import BufferedRounds
from strategies.chooser import Chooser
from strategies.durations import Durations
from strategies.fleet import Fleet
from strategies.ledger import Ledger, RoundRecord
from strategies.selector import Cohort, NoFeasibleClient, Selector, State, View
from strategies.selectors.uniform import Uniform
from strategies.shared import Shared
from strategies.timeline import Timeline
from strategies.trouble import Trouble
from tests.strategies.replies import error, reply
from tests.strategies.scripted_grid import ScriptedGrid, speeds
from tests.strategies.test_buffered import ARRIVALS, DURATIONS_S, MODELS, STARTS

# What a client does in a round: changes to a sound reply, an error, or no answer.
Script = Callable[[int, int], dict[str, Any] | str | None]


class LongestAgo(Selector):
    """Takes who was selected the most rounds ago, of several the lowest number.

    Client i trains i + 2 steps, and why it was chosen tells when.
    """

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        del rng
        since = view.fleet.selected_round[candidates]
        picked = np.argsort(since, kind="stable")[: view.count]
        details = {"since": since}
        everyone = np.arange(len(candidates))
        why = f"at {view.now_s:.0f} s"
        cohort = Cohort.of(view, candidates, {why: picked}, everyone, details)
        return replace(cohort, local_steps=cohort.clients + 2), state


def trains(client: int, server_round: int) -> dict[str, Any]:
    """Wherever it starts its training ends at its number plus 1."""
    del server_round
    return {"arrays": {"w": np.array([client + 1.0])}}


def claims_of(client: int, devices: Speeds) -> ProfileClaims:
    return ScriptedGrid(devices, lambda *_: None).profile(client)


class Run:
    """A run without a grid: rounds of scripted clients, each of which works as long as given."""

    def __init__(
        self,
        durations_s: tuple[float, ...],
        buffer: Buffer,
        script: Script = trains,
        *,
        selector: Selector | None = None,
        **sections: dict[str, Any],
    ) -> None:
        clients = len(durations_s)
        values: dict[str, Any] = {
            "name": "buffered",
            "data": {"clients": clients},
            "rounds": {"rounds": 100, "cohort": min(3, clients)} | sections.get("rounds", {}),
            "arms": {"a": {"aggregation": "fedbuff"} | sections.get("arm", {})},
        }
        self.experiment = Experiment.model_validate(values).for_arm()
        self.fleet = Fleet.unknown(clients)
        # Nothing but computing takes any time: what ends at once ends at the very same time.
        devices = speeds(clients, durations_s)
        free = {"download_bytes_per_s": np.inf, "upload_bytes_per_s": np.inf}
        free |= {"origin_read_bytes_per_s": np.inf, "cache_read_bytes_per_s": np.inf}
        devices = replace(devices, **{name: np.full(clients, v) for name, v in free.items()})
        self.fleet.registered([claims_of(client, devices) for client in range(clients)])
        self.durations = Durations(self.experiment, devices)
        self.timeline = Timeline(self.fleet, self.durations)
        self.chooser = Chooser(self.experiment, selector or LongestAgo(), self.fleet)
        self.trouble = Trouble(5)
        shared = Shared(self.fleet, self.timeline, self.chooser, self.trouble)
        self.rounds = BufferedRounds(self.experiment, shared, buffer)
        self.script, self.model = script, ArrayRecord({"w": pack(np.zeros(1))})
        self.starts: list[tuple[float, int]] = []

    @property
    def x(self) -> float:
        return float(self.model["w"].numpy()[0])

    def play(self, server_round: int) -> RoundRecord:
        def ask(cohort: Cohort) -> dict[int, Message]:
            self.starts += [(self.timeline.now_s, client) for client in cohort.clients.tolist()]
            said = {c: self.script(c, server_round) for c in cohort.clients.tolist()}
            return {
                c: error(does)
                if isinstance(does, str)
                else reply(c, server_round, **({"meter": {"trained_samples": 1}} | does))
                for c, does in said.items()
                if does is not None
            }

        self.starts = []
        new, record = self.rounds.play(server_round, self.model, ask)
        self.model = new or self.model
        return record

    def state(self) -> list[dict[str, np.ndarray]]:
        parts = (self.fleet.arrays, self.timeline.state, self.chooser.state, self.rounds.state)
        return [{name: a.copy() for name, a in part().items()} for part in parts]

    def restore(self, state: list[dict[str, np.ndarray]]) -> None:
        parts = (self.fleet, self.timeline, self.chooser, self.rounds)
        for part, arrays in zip(parts, state, strict=True):
            part.restore(arrays)


def test_the_run_of_five_clients_by_hand() -> None:
    run = Run(DURATIONS_S, Buffer(2))
    arrived: dict[tuple[int, int], float] = {}
    for number, model in enumerate(MODELS):
        start_s = run.timeline.now_s
        record = run.play(number + 1)
        assert run.starts == STARTS[number]
        assert run.x == pytest.approx(model, rel=1e-12)
        assert (record.start_s, record.outcome.end_s) == (start_s, ARRIVALS[number][-1][0])
        assert record.outcome.counted.tolist() == sorted(c for _, c, _ in ARRIVALS[number])
        assert record.cohort.clients.tolist() == sorted(c for _, c in STARTS[number])
        assert record.wanted == 2
        for report, arrival_s in zip(record.reports, record.arrivals_s, strict=True):
            arrived[number + 1, report.client] = arrival_s
            assert record.outcome.of(report.client) == "counted"
    assert arrived == {
        (number + 1, client): start_s + DURATIONS_S[client]
        for number, starts in enumerate(STARTS)
        for start_s, client in starts
    }
    assert run.fleet.times_selected.tolist() == [3, 2, 2, 2, 1]
    assert run.fleet.times_trained.tolist() == [3, 2, 1, 1, 1]
    assert run.fleet.duration_s.tolist() == list(DURATIONS_S)


def test_those_that_start_in_a_round_are_one_cohort() -> None:
    run = Run(DURATIONS_S, Buffer(2))
    first, second = run.play(1), run.play(2)
    assert first.cohort.reasons.why == ["at 0 s"] * 3 + ["at 2 s"]
    # At 2 s, when 3 starts: 1 and 2 are at work, 0 has trained in this round, 4 comes later.
    assert first.cohort.reasons.rest == {"busy": 2, "unavailable": 1, "not drawn": 1}
    # First 4 and then 0, but by number.
    assert second.cohort.clients.tolist() == [0, 4]
    assert second.cohort.reasons.why == ["at 6 s", "at 3 s"]
    assert second.cohort.reasons.details["since"].tolist() == [1, 0]
    assert second.cohort.local_steps.tolist() == [2, 6]
    # Steps of 20 samples are predicted, and one sample was trained.
    assert second.predicted_s == pytest.approx([2 * 20 * 2.0, 6 * 20 * 3.0])
    assert [report.client for report in second.reports] == [4, 0]
    assert second.actual.total_s.tolist() == [3.0, 2.0]
    assert second.arrivals_s.tolist() == [6.0, 8.0]


def test_the_ledger_takes_it_down(tmp_path: Path) -> None:
    run = Run(DURATIONS_S, Buffer(2), rounds={"rounds": 3})
    ledger = Ledger(
        RunFolder.create(tmp_path, run.experiment), run.experiment, ["phone"] * 5, run.durations
    )
    for server_round in range(1, 4):
        ledger.record(run.play(server_round), 0.5, 1.0, {})
    rounds, clients = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("rounds.jsonl", "clients.jsonl")
    )
    assert [row["selected"] for row in rounds] == [[0, 1, 2, 3], [0, 4], [1, 3]]
    assert [row["counted"] for row in rounds] == [[0, 1], [3, 4], [0, 1]]
    assert [row["late"] for row in rounds] == [[], [], [3]]
    assert [(row["round"], row["client"], row["outcome"]) for row in clients] == [
        *((1, client, "counted") for client in range(4)),
        *((2, client, "counted") for client in (0, 4)),
        (3, 1, "counted"),
        (3, 3, "late"),
    ]


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_a_restored_run_goes_on_alike(rounds: int) -> None:
    def script(client: int, server_round: int) -> dict[str, Any] | str:
        bad = {(3, 1): {"weight": 0}, (0, 2): "boom", (1, 4): {"weight": 0}}
        does = bad.get((client, server_round), {})
        return does if isinstance(does, str) else trains(client, server_round) | does

    whole, twin = (Run(DURATIONS_S, Buffer(3), script) for _ in range(2))
    for server_round in range(1, rounds + 1):
        whole.play(server_round)
    twin.restore(whole.state())
    twin.model = whole.model
    for server_round in range(rounds + 1, rounds + 7):
        one, other = whole.play(server_round), twin.play(server_round)
        assert whole.starts == twin.starts
        assert whole.x == twin.x
        assert one.outcome.end_s == other.outcome.end_s
        assert one.outcome.counted.tolist() == other.outcome.counted.tolist()
    for mine, its in zip(whole.state(), twin.state(), strict=True):
        assert {name: a.tolist() for name, a in mine.items() if a.dtype != np.float64} == {
            name: a.tolist() for name, a in its.items() if a.dtype != np.float64
        }


def test_replies_weigh_by_samples_or_all_alike() -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        return trains(client, server_round) | {"weight": 3 if client == 0 else 1}

    for weighting, expected in (("samples", (3 * 1 + 2) / 4), ("equal", 1.5)):
        run = Run((1.0, 2.0, 9.0), Buffer(2), script, arm={"weighting": weighting})
        run.play(1)
        assert run.x == expected


def test_who_fails_is_not_replaced_before_somebody_ends() -> None:
    def script(client: int, server_round: int) -> dict[str, Any] | str:
        return "boom" if client in {0, 2} else trains(client, server_round)

    run = Run((1.0, 4.0, 1.0, 2.0, 5.0), Buffer(2), script)
    record = run.play(1)
    assert run.starts == [(0.0, 0), (0.0, 1), (0.0, 2), (4.0, 3), (4.0, 4)]
    assert {c: problem.outcome for c, problem in record.problems.items()} == dict.fromkeys(
        (0, 2), "failed"
    )
    assert (record.outcome.counted.tolist(), record.outcome.end_s) == ([1, 3], 6.0)
    assert run.fleet.failures.tolist() == [1, 0, 1, 0, 0]
    assert run.fleet.times_trained.tolist() == [0, 1, 0, 1, 0]


def test_when_all_fail_the_model_stays_and_the_next_round_asks_again() -> None:
    def script(client: int, server_round: int) -> dict[str, Any] | str:
        return "boom" if server_round < 3 else trains(client, server_round)

    run = Run(DURATIONS_S, Buffer(2), script)
    for server_round in (1, 2):
        record = run.play(server_round)
        assert len(run.starts) == 3
        assert record.outcome.counted.tolist() == []
        assert (record.outcome.end_s, run.x) == (0.0, 0.0)
    assert run.play(3).outcome.counted.tolist() == [0, 1]


def test_rejected_work_takes_its_time_and_too_much_of_it_ends_the_round() -> None:
    run = Run((1.0,) * 9, Buffer(2), lambda *_: {"weight": 0})
    record = run.play(1)
    # Three at work at once; the third of them to end in vain is enough.
    assert run.starts == [(0.0, 0), (0.0, 1), (0.0, 2), (1.0, 3), (1.0, 4)]
    assert (record.outcome.end_s, run.x) == (1.0, 0.0)
    assert {problem.outcome for problem in record.problems.values()} == {"rejected"}
    assert run.fleet.busy_until_s.tolist() == [1.0] * 3 + [2.0] * 2 + [0.0] * 4
    assert run.play(2).start_s == 1.0


def test_work_that_is_left_frees_its_slot_when_the_client_goes() -> None:
    run = Run((4.0, 6.0, 9.0, 1.0), Buffer(1))
    arrivals_s = run.timeline.arrivals_s

    def leave(clients: np.ndarray, durations_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        arrives_s, ends_s = arrivals_s(clients, durations_s)
        goes = clients == 1
        return np.where(goes, np.inf, arrives_s), np.where(goes, 2.0, ends_s)

    run.timeline.arrivals_s = leave  # type: ignore[method-assign]
    record = run.play(1)
    assert run.starts == [(0.0, 0), (0.0, 1), (0.0, 2), (2.0, 3)]
    assert record.outcome.left.tolist() == [1]
    assert [record.outcome.of(client) for client in (0, 1, 3)] == ["counted", "left", "counted"]
    assert (record.outcome.counted.tolist(), record.outcome.end_s) == ([3], 3.0)
    assert np.isnan(run.fleet.duration_s[1])


def test_a_client_trains_once_a_round_and_the_buffer_waits_for_the_next() -> None:
    def script(client: int, server_round: int) -> dict[str, Any] | str:
        return "boom" if (client, server_round) == (3, 1) else trains(client, server_round)

    run = Run((1.0, 2.0, 3.0, 4.0), Buffer(4), script)
    first = run.play(1)
    # Three have trained, the fourth has failed, and nobody else can.
    assert (first.outcome.counted.tolist(), first.outcome.end_s) == ([0, 1, 2], 3.0)
    assert run.x == 0.0
    second = run.play(2)
    assert run.starts[:3] == [(3.0, 0), (3.0, 1), (3.0, 2)]
    assert (second.outcome.counted.tolist(), second.outcome.end_s) == ([0], 4.0)
    assert run.x == pytest.approx((1 + 2 + 3 + 1) / 4)


def test_a_buffer_that_could_never_be_full_in_a_round_is_refused() -> None:
    with pytest.raises(InputError, match="the buffer is 4, but each of the 3 clients counts once"):
        Run((1.0, 2.0, 3.0), Buffer(4))


def test_in_the_last_round_who_is_still_at_work_is_late() -> None:
    run = Run(DURATIONS_S, Buffer(2), rounds={"rounds": 2})
    assert run.play(1).outcome.late.tolist() == []
    record = run.play(2)
    assert record.outcome.late.tolist() == [0]
    assert [record.outcome.of(client) for client in (0, 4)] == ["late", "counted"]


def test_when_nobody_can_be_chosen_it_is_an_error() -> None:
    run = Run(DURATIONS_S, Buffer(2))
    run.fleet.fits[:] = False
    with pytest.raises(NoFeasibleClient):
        run.play(1)


def test_the_clock_moves_to_the_first_that_is_there() -> None:
    run = Run((1.0, 2.0), Buffer(1))
    run.fleet.busy_until_s[:] = [8.0, 5.0]
    record = run.play(1)
    assert (record.start_s, run.starts[0]) == (5.0, (5.0, 1))
    assert record.outcome.end_s == 7.0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"staging": True}, "staging"),
        ({"local_work": "together"}, "local_work"),
        ({"normalisation": "fednova"}, "normalisation"),
    ],
)
def test_what_needs_a_cohort_that_is_waited_for_is_refused(
    changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(InputError, match=f"{key} needs rounds that wait"):
        Run(DURATIONS_S, Buffer(2), arm=changes)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 7.0]), min_size=2, max_size=8),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_whatever_clients_do_what_arrives_counts_once_in_its_order(
    durations_s: list[float], size: int, at_once: int, seed: int
) -> None:
    def script(client: int, server_round: int) -> dict[str, Any] | str | None:
        luck = np.random.default_rng([seed, client, server_round]).random()
        if luck < 0.1:
            return "boom" if luck < 0.05 else None
        return trains(client, server_round) | ({"weight": -1} if luck < 0.2 else {})

    size = min(size, len(durations_s))
    buffer = Buffer(size)
    rounds = {"cohort": min(at_once, len(durations_s))}
    run = Run(tuple(durations_s), buffer, script, selector=Uniform(), rounds=rounds)
    arrived, counted, now_s = 0, 0, 0.0
    for server_round in range(1, 9):
        before = run.model
        trained = run.fleet.times_trained.copy()
        record = run.play(server_round)
        assert now_s <= record.start_s <= record.outcome.end_s == run.timeline.now_s
        now_s = record.outcome.end_s
        clients = record.cohort.clients
        assert len(np.unique(clients)) == len(clients)
        assert [c for _, c in sorted(run.starts, key=lambda start: start[1])] == clients.tolist()
        assert {report.client for report in record.reports} | record.problems.keys() == set(
            clients.tolist()
        )
        arrived += len(record.reports)
        counted += int((run.fleet.times_trained - trained).sum())
        updated = run.model is not before
        assert updated == (
            counted % size == 0 and counted > 0 and bool(len(record.outcome.counted))
        )
        at_work = np.count_nonzero(run.fleet.busy_until_s > now_s)
        assert at_work <= rounds["cohort"]
    assert counted <= arrived <= counted + rounds["cohort"]
