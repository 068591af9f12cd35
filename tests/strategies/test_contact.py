"""Clients that go silent, leave, and come back as another node; and the devices' own clock."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedio.config import Experiment
from fedio.errors import RunError
from fedio.runs import Run
from strategies import contact as contact_module
from strategies import transport
from strategies.contact import Contact
from tests.strategies.scripted_grid import ScriptedGrid, speeds
from tests.strategies.scripted_run import FIVE_S, WORK, play

WALL = {"clock": "wall"}
PHASES = ("download_s", "origin_s", "cache_s", "decode_s", "write_s", "stall_s", "compute_s")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between looks."""
    monkeypatch.setattr(contact_module, "POLL_S", 0.0)
    monkeypatch.setattr(transport, "POLL_S", 0.0)


def own_time(client: int, server_round: int) -> dict[str, Any]:
    """Take another time than the cost model thinks: client 4 is the fastest, 0 the slowest."""
    del server_round
    seconds = {"stall_s": 1.0, "compute_s": 8.0 - client, "download_s": 0.5, "behind_s": 0.25}
    return {"meter": WORK, "wall": seconds}


def contact_of(grid: ScriptedGrid, clock: str = "wall") -> Contact:
    values = {"name": "x", "data": {"clients": 3}, "engine": {"clock": clock}}
    values["rounds"] = {"cohort": 1, "roster_timeout_s": 0.2}
    return Contact(grid, Experiment.model_validate(values).for_arm())


def grid_of(clients: int = 3) -> ScriptedGrid:
    return ScriptedGrid(speeds(clients, np.ones(clients)), lambda *_: None)


def rows_of(run: Run, server_round: int) -> dict[int, dict[str, Any]]:
    return {row["client"]: row for row in run.clients if row["round"] == server_round}


def test_a_node_that_left_is_out_of_reach_and_comes_back_as_another() -> None:
    grid = grid_of()
    contact = contact_of(grid)
    (old,) = contact.nodes([1])
    del grid.partition_of[old]
    reachable, returned = contact.reachable()
    assert reachable.tolist() == [True, False, True]
    assert returned == []
    grid.partition_of[123_456_789] = 1
    reachable, returned = contact.reachable()
    assert reachable.all()
    assert [profile.partition for profile in returned] == [1]
    assert contact.nodes([1]) == [123_456_789]
    assert contact.reachable()[1] == []


def test_a_stranger_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_of()
    contact = contact_of(grid)
    everyone = contact.nodes(range(3))
    grid.partition_of[123_456_789] = 2
    other = grid.profile(2)

    def stranger(client: int) -> Any:
        del client
        return type(other)(**{n: getattr(other, n) for n in other.__slots__} | {"partition": 7})

    monkeypatch.setattr(grid, "profile", stranger)
    reachable, returned = contact.reachable()
    assert reachable.all()
    assert returned == []
    assert contact.nodes(range(3)) == everyone


def test_when_nobody_is_left_it_is_an_error_in_bounded_time() -> None:
    grid = grid_of()
    contact = contact_of(grid)
    grid.partition_of.clear()
    with pytest.raises(RunError, match=r"no client has answered or come back within 0\.2 s"):
        contact.reachable()


def test_by_the_virtual_clock_nodes_do_not_leave() -> None:
    grid = grid_of()
    contact = contact_of(grid, "virtual")
    grid.partition_of.clear()
    assert contact.reachable()[0].all()


def test_who_owes_an_answer_is_not_asked_until_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[str, Message] = {}
    original = ScriptedGrid.pull_messages

    def pull(self: ScriptedGrid, message_ids: Iterable[str]) -> Iterable[Message]:
        """Have the answer of client 1 to round 1 come in the second pull of round 3."""
        wanted = list(message_ids)
        if held:
            self._replies.pop("late", None)
        come = list(original(self, wanted))
        keep = [m for m in come if _client(self, m) == 1 and self.trained[-1][0] == 1]
        for message in keep:
            held[message.metadata.reply_to_message_id] = message
        if self.trained and self.trained[-1][0] >= 3:
            come += [held.pop(key) for key in wanted if key in held]
        return [message for message in come if message not in keep]

    def _client(grid: ScriptedGrid, message: Message) -> int:
        return grid.partition_of[message.metadata.src_node_id] if grid.trained else -1

    monkeypatch.setattr(ScriptedGrid, "pull_messages", pull)
    run, grid, _ = play(tmp_path, rounds=5, cohort=5, reply_timeout_s=0.2)
    assert rows_of(run, 1)[1]["outcome"] == "late"
    asked = {r: [c for at, c in grid.trained if at == r] for r in range(1, 6)}
    assert asked == {1: [0, 1, 2, 3, 4], 2: [0, 2, 3, 4], 3: [0, 2, 3, 4]} | {
        r: [0, 1, 2, 3, 4] for r in (4, 5)
    }
    assert run.rounds[3]["counted"] == [0, 2, 3, 4]  # its answer of round 1 counts nowhere


def test_who_owes_an_answer_at_the_end_does_not_hold_it_up(tmp_path: Path) -> None:
    def silent(client: int, server_round: int) -> dict[str, Any] | None:
        return None if (client, server_round) == (1, 2) else {"meter": WORK}

    run, _, _ = play(tmp_path, silent, rounds=2, cohort=5, reply_timeout_s=0.2)
    told = [accuracy is not None for accuracy in run.summary["holdout"]["accuracy"]]
    # Client 0 answers that it holds no samples out.
    assert told == [False, False, True, True, True]


def test_the_devices_own_time_is_the_clock_and_the_virtual_one_is_beside_it(
    tmp_path: Path,
) -> None:
    run, _, _ = play(tmp_path, own_time, rounds=1, engine=WALL, cohort=3, over_commitment=5 / 3)
    rows = rows_of(run, 1)
    assert run.rounds[1]["counted"] == [2, 3, 4]
    assert run.rounds[1]["late"] == [0, 1]
    assert run.rounds[1]["end_s"] == run.clock_s == run.summary["device_s"] == 0.5 + 1 + 6
    assert "virtual_s" not in run.summary
    assert run.summary["clock"] == run.clock == "wall"
    assert rows[4]["duration_s"] == rows[4]["arrival_s"] == 5.5
    assert (rows[4]["stall_s"], rows[4]["compute_s"], rows[4]["behind_s"]) == (1.0, 4.0, 0.25)
    assert [rows[c]["virtual_compute_s"] for c in range(5)] == [10 * s for s in FIVE_S]
    assert rows[4]["virtual_duration_s"] == pytest.approx(100.0)
    assert all(row["flower_s"] is not None for row in rows.values())


def test_a_reply_without_its_devices_time_is_rejected(tmp_path: Path) -> None:
    def some(client: int, server_round: int) -> dict[str, Any]:
        bad = {"compute_s": -1.0} if client == 2 else {}
        told = own_time(client, server_round)
        return {"meter": WORK} if client == 1 else told | {"wall": told["wall"] | bad}

    run, _, _ = play(tmp_path, some, rounds=1, cohort=5, engine=WALL)
    assert run.rounds[1]["rejected"] == [1, 2]
    rows = rows_of(run, 1)
    assert rows[1]["problem"] == "wallseconds.download_s is None"
    assert rows[2]["problem"] == "wall.compute_s is -1.0"
    assert rows[2]["duration_s"] is None


def test_virtual_rows_have_nothing_of_the_wall(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path, own_time, rounds=1)
    assert not {"behind_s", "flower_s", "virtual_duration_s", "faults"} & run.clients[0].keys()
    assert run.summary["virtual_s"] == run.clock_s


def test_faults_are_written_down_and_take_virtual_time(tmp_path: Path) -> None:
    faults = {"stop": {"round": 2, "clients": [0], "seconds": 7.0}, "kill": {"round": 1}}
    run, _, _ = play(tmp_path, faults=faults, rounds=2, cohort=5)
    assert [rows_of(run, 1)[c]["faults"] for c in range(5)] == [["kill"]] * 5
    second = rows_of(run, 2)
    assert [second[c]["faults"] for c in range(5)] == [["stop"], [], [], [], []]
    assert second[0]["duration_s"] == pytest.approx(10 * FIVE_S[0] + 7)
    assert second[0]["stall_s"] == pytest.approx(7)
    assert second[1]["duration_s"] == pytest.approx(10 * FIVE_S[1])
