"""Staging: whose window is how long, what a day allows, and what becomes of the answers."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from fedio.config import Experiment
from fedio.protocol import ProtocolError, Staged
from fedio.runs import Run
from strategies.contact import Contact
from strategies.durations import Spent
from strategies.presence import presence_of
from strategies.replies import Problem
from strategies.round import Outcome
from strategies.selector import Cohort, Reasons
from strategies.staging import NO_LIMIT, Stager, check_staged, windows_s
from tests.strategies.replies import asked, error, meter_of, staged_content
from tests.strategies.scripted_grid import Asked, ScriptedGrid, speeds
from tests.strategies.scripted_run import play, trains

DAY_S = 86_400
COUNTS = {
    "needed_samples": 10,
    "held_samples": 3,
    "staged_samples": 4,
    "origin_samples": 5,
    "origin_bytes": 500,
    "decoded_samples": 2,
    "decoded_bytes": 200,
    "written_samples": 4,
    "written_bytes": 400,
    "evicted_samples": 1,
}


def ids(*clients: int) -> np.ndarray:
    return np.array(clients, dtype=np.int64)


# --- windows --------------------------------------------------------------------------------------


def ended(next_: np.ndarray, problems: dict[int, Problem] | None = None) -> Any:
    """A round that lasted from 100 to 150 s."""
    cohort = Cohort(ids(0, 1), ids(8, 8), Reasons(["a", "a"], {}, {}), next_)
    outcome = Outcome(ids(0), ids(1), ids(), ids(), 150.0)
    return SimpleNamespace(
        start_s=100.0, outcome=outcome, cohort=cohort, problems=problems or {}, server_round=7
    )


def test_a_window_is_from_the_end_of_ones_work_to_that_of_the_round() -> None:
    # Done at 120 s, at work till 170 s, idle since 30 s, done as the round ends, idle from 0 s.
    ended_s = np.array([120.0, 170.0, 30.0, 150.0, 0.0])
    found = windows_s(ended(ids(0, 1, 2, 3, 4)), ended_s)
    assert found == {0: 30.0, 2: 50.0, 4: 50.0}
    assert windows_s(ended(ids(4)), ended_s) == {4: 50.0}
    assert windows_s(ended(ids()), ended_s) == {}


def test_of_a_client_that_failed_nobody_knows_when_it_was_done() -> None:
    problems = {0: Problem("failed", "boom"), 1: Problem("rejected", "odd", Spent(meter_of()))}
    found = windows_s(ended(ids(0, 1, 2), problems), np.array([0.0, 120.0, 0.0]))
    assert found == {1: 30.0, 2: 50.0}


def test_a_window_is_only_while_the_client_is_there(tmp_path: Path) -> None:
    # One of the trace's clients is there from 120 to 130 s of every 1,000 s, the others always.
    file = tmp_path / "stays.csv"
    rows = ["0,120,130", *(f"{client},0,1000" for client in range(1, 5))]
    file.write_text("\n".join(["# period_s = 1000", "client,start_s,end_s", *rows]) + "\n")
    presence = presence_of(
        Experiment.model_validate(
            {
                "name": "x",
                "data": {"clients": 5},
                "availability": {"kind": "trace", "file": str(file)},
            }
        )
    )
    assert presence is not None
    everyone, away = ids(*range(5)), int(np.argmin(presence.availability.at(0.0)))
    early, late = np.zeros(5), np.full(5, 125.0)
    assert windows_s(ended(everyone), early, presence) == {
        client: 10.0 if client == away else 50.0 for client in range(5)
    }
    assert windows_s(ended(everyone), late, presence)[away] == 5.0
    assert away not in windows_s(ended(everyone), late + 10, presence)


# --- a day's writes -------------------------------------------------------------------------------


class Day:
    """Two clients, asked again and again how much they may write."""

    def __init__(self, limit_bytes: int | None) -> None:
        values = {"name": "x", "data": {"clients": 2}, "rounds": {"cohort": 1}}
        values["cache"] = {} if limit_bytes is None else {"daily_write_bytes": limit_bytes}
        devices = speeds(2, (1.0, 1.0))
        experiment = Experiment.model_validate(values).for_arm()
        self.stager = Stager(experiment, devices)
        self.grid = ScriptedGrid(devices, lambda *_: None)
        self.contact = Contact(self.grid, experiment)

    def trains(self, client: int, end_s: float, written_bytes: int) -> None:
        ended_s = np.full(2, end_s)
        self.stager.trained({client: meter_of(written_bytes=written_bytes)}, ended_s)

    def stages(self, client: int, end_s: float, written_bytes: int = 0) -> int:
        """Return what it may write in a round that ends then, and have it write something."""
        self.grid.stages = lambda *_: {"written_bytes": written_bytes}
        done = ended(ids(client))
        done.outcome = Outcome(ids(), ids(), ids(), ids(), end_s)
        done.start_s = end_s - 1
        self.stager.stage(self.contact, done, np.zeros(2), 1.0)
        return self.grid.staged[-1].write_limit_bytes


def test_without_a_limit_there_is_none() -> None:
    day = Day(None)
    day.trains(0, 10, 10**15)
    assert day.stages(0, 20) == NO_LIMIT == -1


def test_what_was_written_today_by_whatever_counts() -> None:
    day = Day(1000)
    assert day.stages(0, 10) == 1000
    day.trains(0, 20, 300)
    assert day.stages(0, 30, 250) == 700
    assert day.stages(0, 40) == 450
    assert day.stages(1, 40) == 1000
    day.trains(0, 50, 9999)
    assert day.stages(0, 60) == 0


def test_a_day_begins_at_midnight_of_the_virtual_clock() -> None:
    day = Day(1000)
    day.trains(0, DAY_S - 1, 300)
    assert day.stages(0, DAY_S - 0.5, 100) == 700
    assert day.stages(0, DAY_S, 200) == 1000
    assert day.stages(0, DAY_S + 1) == 800
    # What trains past midnight is written on the day on which it ends.
    day.trains(0, 2 * DAY_S + 5, 50)
    assert day.stages(0, 2 * DAY_S + 6) == 950
    assert day.stages(0, 9 * DAY_S) == 1000


# --- answers --------------------------------------------------------------------------------------


def message(content: RecordDict) -> Any:
    reply = asked()
    reply.content = content
    return reply


def test_a_sound_answer_is_taken() -> None:
    found = check_staged(message(staged_content(3, 5, **COUNTS)), 3, 5)
    assert found == Staged(3, 5, 10, 3, 4, 5, 500, 2, 200, 4, 400, 1)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (None, "no reply in time"),
        (error("Traceback\nValueError: boom"), r"^ValueError: boom$"),
        (message(RecordDict()), r"staged\.partition is None"),
        (message(staged_content(2, 5)), "from partition 2 for round 5"),
        (message(staged_content(3, 4)), "from partition 3 for round 4"),
        (message(staged_content(3, 5, written_bytes=-1)), r"staged\.written_bytes is -1"),
        (message(staged_content(3, 5, staged_samples=1)), "more than the 0 needed"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(reply: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        check_staged(reply, 3, 5)


def test_the_cost_is_that_of_the_clients_own_device() -> None:
    day = Day(None)
    day.stager._speeds.origin_read_bytes_per_s[1] = 50.0
    day.stager._speeds.cache_write_latency_s[1] = 2.0
    day.grid.stages = lambda *_: COUNTS
    rows = day.stager.stage(day.contact, ended(ids(0, 1)), np.zeros(2), 1.0)
    assert [row["seconds"] for row in rows] == pytest.approx([0, 500 / 50 + 4 * 2], abs=1e-6)


# --- whole runs -----------------------------------------------------------------------------------


def rows_of(run: Run) -> list[list[dict[str, Any]]]:
    return [row["staged"] for row in run.rounds[1:]]


def test_a_run_stages_after_each_round_but_the_last(tmp_path: Path) -> None:
    # Client i trains for 10 (i + 1) s, or 100 s, and the round lasts until the third is done.
    run, grid, _ = play(
        tmp_path,
        rounds=6,
        over_commitment=5 / 3,
        stages=lambda *_: COUNTS,
        cache={"daily_write_bytes": 1000},
    )
    assert rows_of(run)[-1] == []
    assert {row.server_round for row in grid.staged} <= {2, 3, 4, 5, 6}
    assert {row.local_steps for row in grid.staged} == {2}
    sent = {(order.server_round - 1, order.client): order for order in grid.staged}
    busy_until_s = np.zeros(5)
    left_bytes = np.full(5, 1000)
    for row in run.rounds[1:]:
        taking_part = [line for line in run.clients if line["round"] == row["round"]]
        for line in taking_part:
            busy_until_s[line["client"]] = line["arrival_s"]
        listed = {entry["client"]: entry for entry in row["staged"]}
        for client in range(5):
            if client not in listed:
                assert (row["round"], client) not in sent
                continue
            window_s = row["end_s"] - max(row["start_s"], busy_until_s[client])
            order = sent[row["round"], client]
            assert listed[client]["window_s"] == order.window_s == pytest.approx(window_s)
            assert window_s > 0
            assert order.write_limit_bytes == left_bytes[client]
            left_bytes[client] = max(left_bytes[client] - 400, 0)
    assert sum(map(len, rows_of(run))) == len(grid.staged) > 5


def test_a_row_says_what_it_cost_and_what_it_did(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path, rounds=2, cohort=1, stages=lambda *_: COUNTS)
    (row,) = rows_of(run)[0]
    assert {name: row[name] for name in COUNTS} == COUNTS
    assert row.keys() == COUNTS.keys() | {"client", "window_s", "seconds"}
    # 500 bytes are read, 200 decoded and 400 written, at 1e12 bytes/s each.
    assert row["seconds"] == pytest.approx(1.1e-9)


def test_those_named_train_next_unless_they_are_at_work(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path, rounds=12, cohort=2, stages=lambda *_: {})
    for before, after in itertools.pairwise(run.rounds[1:]):
        staged = {entry["client"] for entry in before["staged"]}
        assert staged <= set(after["selected"])
    assert any(row for row in rows_of(run))
    why = {line["why"] for line in run.clients if line["round"] > 1}
    assert why == {"named"}


def test_staging_takes_nobodys_time_and_changes_nothing_in_the_table(tmp_path: Path) -> None:
    idle, _, _ = play(tmp_path / "a", rounds=8, stages=lambda *_: {})
    at_work, _, _ = play(tmp_path / "b", rounds=8, stages=lambda *_: COUNTS)
    assert idle.clients == at_work.clients
    for before, after in zip(idle.rounds, at_work.rounds, strict=True):
        assert before | {"staged": None} == after | {"staged": None}
    assert idle.summary["model_hash"] == at_work.summary["model_hash"]


def test_an_arm_that_does_not_stage_asks_nobody_and_writes_nothing_of_it(tmp_path: Path) -> None:
    run, grid, _ = play(tmp_path, rounds=4, cohort=2)
    assert grid.staged == []
    assert not any("staged" in row for row in run.rounds)
    assert {line["why"] for line in run.clients} == {"drawn"}


def test_a_client_that_fails_to_stage_is_told_of_once_and_trains_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stages(client: int, server_round: int, window_s: float) -> dict[str, int] | Exception:
        del window_s
        return ValueError(f"boom {client} {server_round}") if client == 0 else COUNTS

    run, grid, _ = play(tmp_path / "a", rounds=8, cohort=3, stages=stages)
    whole, _, _ = play(tmp_path / "b", rounds=8, cohort=3, stages=lambda *_: COUNTS)
    assert run.clients == whole.clients
    tried = [order.server_round for order in grid.staged if order.client == 0]
    assert tried
    for server_round in tried:
        said = f"partition 0 did not stage for round {server_round}: ValueError('boom 0"
        assert caplog.text.count(said) == 1
    for with_all, without in zip(rows_of(whole), rows_of(run), strict=True):
        assert [entry for entry in with_all if entry["client"] != 0] == without


def test_what_training_writes_counts_when_it_arrives_also_of_rejected_work(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        does = trains(client, server_round)
        does["meter"] = does["meter"] | {"written_samples": 1, "written_bytes": 70}
        return does | ({"weight": 0} if client == 1 else {})

    _, grid, _ = play(
        tmp_path,
        script,
        rounds=2,
        cohort=4,
        seconds=(1.0, 2.0, 3.0, 4.0),
        stages=lambda *_: {},
        cache={"daily_write_bytes": 100},
    )
    # All take part and all are named; the last to end, who ends the round, has no window.
    assert grid.staged == [
        Asked(0, 2, 2, pytest.approx(30.0), 30),
        Asked(1, 2, 2, pytest.approx(20.0), 30),
        Asked(2, 2, 2, pytest.approx(10.0), 30),
    ]
