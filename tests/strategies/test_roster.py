"""Nodes become clients: by partition-id, with a deadline, and with clear errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message

from fedio.errors import RunError
from fedio.protocol import ProfileClaims
from strategies import roster
from strategies.roster import gather
from strategies.transport import Post, last_line
from tests.strategies.scripted_grid import ScriptedGrid, speeds


def grid_of(clients: int, nodes: dict[int, int] | None = None) -> ScriptedGrid:
    return ScriptedGrid(speeds(clients, np.ones(clients)), lambda *_: None, nodes)


def test_random_node_ids_map_to_partitions() -> None:
    nodes = {8_001_234_567_890: 2, 17: 0, 5_000_000_000_001: 1}
    found = gather(Post(grid_of(3, nodes)), 3, timeout_s=1.0)
    assert found.nodes == {0: 17, 1: 5_000_000_000_001, 2: 8_001_234_567_890}
    assert [found.profiles[i].partition for i in range(3)] == [0, 1, 2]


def test_the_roster_waits_while_nodes_are_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "POLL_S", 0.0)
    grid = grid_of(3)
    everyone = list(grid.partition_of)
    seen: list[int] = []

    def growing() -> Iterable[int]:
        seen.append(min(len(seen), 3))
        return set(everyone[: seen[-1]])

    monkeypatch.setattr(grid, "get_node_ids", growing)
    assert len(gather(Post(grid), 3, timeout_s=60.0).nodes) == 3
    assert seen == [0, 1, 2, 3]


def test_too_few_nodes_are_a_clear_error() -> None:
    with pytest.raises(RunError, match=r"only 2 of 5 nodes connected.*start the missing"):
        gather(Post(grid_of(2)), 5, timeout_s=0.0)


def test_two_nodes_with_one_partition_are_refused() -> None:
    with pytest.raises(RunError, match="two nodes say that they are partition 0"):
        gather(Post(grid_of(2, {5: 0, 6: 0})), 2, timeout_s=1.0)


def test_a_partition_without_a_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_of(2)
    original = grid.profile

    def shifted(client: int) -> ProfileClaims:
        return replace(original(client), partition=client + 1)

    monkeypatch.setattr(grid, "profile", shifted)
    with pytest.raises(RunError, match="no node has partition-id 0"):
        gather(Post(grid), 2, timeout_s=1.0)


def test_a_failing_query_shows_what_the_client_said(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_of(1)

    def fails(message: Message) -> Message:
        return Message(Error(2, "Traceback:\nInputError: no partition-id"), reply_to=message)

    monkeypatch.setattr(grid, "_answer", fails)
    with pytest.raises(RunError, match="profile query: InputError: no partition-id"):
        gather(Post(grid), 1, timeout_s=1.0)


def test_the_last_line_of_a_traceback_says_what_happened() -> None:
    assert last_line("Traceback\n  File x\nValueError: boom\n\n") == "ValueError: boom"
    assert last_line("") == "no reason given"
