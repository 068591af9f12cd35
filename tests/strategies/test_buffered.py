"""Buffered asynchronous aggregation without clients: the buffer, and the order of what comes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.buffered import Buffer, Underway

# Five clients; client i takes so long, and wherever it starts its training ends at i + 1.
DURATIONS_S = (2.0, 3.0, 9.0, 4.0, 3.0)
AT_ONCE, ROOT = 3, 2**0.5
# Round by round: who starts when, and who arrives when with what staleness; buffer 2, 3 at once.
# A free slot goes to who was selected the most rounds ago, of several to the lowest number, not to
# who started in this round already. The model starts at 0.
#
# Round 1 (version 0): 0, 1 and 2 start at 0 s; 0 arrives at 2 s with 1 - 0, and 3 starts; 1 arrives
#   at 3 s with 2 - 0. x = 0 + (1 + 2) / 2 = 3/2.
# Round 2 (version 1): 4 starts at 3 s. At 6 s 3 arrives, with 4 - 0 and one update late, and 0
#   starts; then, at once but with a higher number, 4 arrives with 5 - 3/2.
#   x = 3/2 + (4 / sqrt 2 + 7/2) / 2 = 13/4 + sqrt 2.
# Round 3 (version 2): 1 starts at 6 s; 0 arrives at 8 s with 1 - 3/2, one late, and 3 starts; 1
#   arrives at 9 s with 2 - x, just before 2. x = x + (-1/2 / sqrt 2 + 2 - x) / 2.
# Round 4 (version 3): 0 starts at 9 s; 2 arrives at 9 s with 3 - 0, three late, that is half of it,
#   and starts again; 0 arrives at 11 s with 1 - x. x = x + (3/2 + 1 - x) / 2.
STARTS = [
    [(0.0, 0), (0.0, 1), (0.0, 2), (2.0, 3)],
    [(3.0, 4), (6.0, 0)],
    [(6.0, 1), (8.0, 3)],
    [(9.0, 0), (9.0, 2)],
]
ARRIVALS = [
    [(2.0, 0, 0), (3.0, 1, 0)],
    [(6.0, 3, 1), (6.0, 4, 0)],
    [(8.0, 0, 1), (9.0, 1, 0)],
    [(9.0, 2, 3), (11.0, 0, 0)],
]
SECOND = 13 / 4 + ROOT
THIRD = SECOND + (-1 / 2 / ROOT + 2 - SECOND) / 2
MODELS = [3 / 2, SECOND, THIRD, THIRD + (3 / 2 + 1 - THIRD) / 2]


@dataclass
class Example:
    """Five clients around an `Underway`, as in the comment above."""

    underway: Underway = field(default_factory=lambda: Underway(Buffer(2)))
    model: float = 0.0
    now_s: float = 0.0
    selected_round: list[int] = field(default_factory=lambda: [0] * 5)

    def fill(self, server_round: int) -> list[tuple[float, int]]:
        started = []
        while len(self.underway) < AT_ONCE:
            free = [
                (selected, client)
                for client, selected in enumerate(self.selected_round)
                if client not in self.underway.clients and selected < server_round
            ]
            _, client = min(free)
            self.selected_round[client] = server_round
            delta = {"w": np.array([client + 1 - self.model])}
            self.underway.trains(client, self.now_s + DURATIONS_S[client], delta)
            started.append((self.now_s, client))
        return started

    def play(
        self, server_round: int
    ) -> tuple[list[tuple[float, int]], list[tuple[float, int, int | None]]]:
        started, arrived = self.fill(server_round), []
        while True:
            ended = self.underway.take()
            self.now_s = ended.time_s
            arrived.append((ended.time_s, ended.client, ended.staleness))
            if self.underway.buffer.is_full:
                break
            started += self.fill(server_round)
        self.model = float(self.underway.update({"w": np.array([self.model])})["w"][0])
        return started, arrived


def test_a_run_of_five_clients_by_hand() -> None:
    example = Example()
    for number, model in enumerate(MODELS):
        started, arrived = example.play(number + 1)
        assert started == STARTS[number]
        assert arrived == ARRIVALS[number]
        assert example.model == pytest.approx(model, rel=1e-12)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_restored_twin_goes_on_alike(rounds: int) -> None:
    whole, twin = Example(), Example()
    for server_round in range(1, rounds + 1):
        whole.play(server_round)
    if rounds:  # in the middle of a round, too
        whole.now_s = whole.underway.take().time_s
    state = {name: values.copy() for name, values in sorted(whole.underway.state().items())}
    twin.underway.restore(state)
    twin.model, twin.now_s = whole.model, whole.now_s
    twin.selected_round = whole.selected_round.copy()
    for server_round in range(rounds + 1, rounds + 6):
        assert whole.play(server_round) == twin.play(server_round)
        assert whole.model == twin.model


def test_an_update_is_the_mean_of_what_is_in_the_buffer_by_weight_and_staleness() -> None:
    buffer = Buffer(3, lr=0.5, exponent=1.0)
    buffer.add({"w": np.array([6.0]), "b": np.array(1.0)}, staleness=2)
    buffer.add({"w": np.array([1.0]), "b": np.array(2.0)}, staleness=0, weight=2.0)
    assert not buffer.is_full
    buffer.add({"w": np.array([4.0]), "b": np.array(0.0)}, staleness=1)
    assert buffer.is_full
    model = {"w": np.array([10.0], np.float32), "b": np.array(1, np.float32)}
    new = buffer.update(model)
    # (6/3 + 2 * 1 + 4/2) / 4 = 1.5 and (1/3 + 2 * 2 + 0) / 4 = 13/12, and half of each.
    assert new["w"] == pytest.approx([10.75])
    assert new["b"] == pytest.approx(1 + 13 / 24)
    assert {values.dtype for values in new.values()} == {np.dtype(np.float32)}
    assert model["w"] == [10.0]
    assert not buffer.is_full
    for delta in (1.0, 2.0, 3.0):
        buffer.add({"w": np.array([delta]), "b": np.array(0.0)}, staleness=0)
    assert buffer.update(model)["w"] == pytest.approx([11.0])


def test_without_an_exponent_staleness_does_not_count() -> None:
    buffer = Buffer(1, exponent=0.0)
    buffer.add({"w": np.array([2.0])}, staleness=7)
    assert buffer.update({"w": np.array([1.0])})["w"] == [3.0]


def test_what_brings_nothing_frees_its_slot_and_no_more() -> None:
    underway = Underway(Buffer(1))
    underway.wastes(0, 5.0)
    underway.trains(7, 5.0, {"w": np.array([1.0])})
    assert underway.clients == {0, 7}
    # At the same time what arrives comes first, whatever the number of the client.
    first, second = underway.take(), underway.take()
    assert (first.client, first.staleness) == (7, 0)
    assert (second.client, second.staleness) == (0, None)
    assert not underway


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(-10, 10)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_it_is_the_mean_in_whatever_order_they_arrive(
    deltas: list[tuple[int, float]], random: object
) -> None:
    def update(given: list[tuple[int, float]]) -> float:
        buffer = Buffer(len(given))
        for staleness, delta in given:
            buffer.add({"w": np.array([delta])}, staleness)
        return float(buffer.update({"w": np.zeros(1)})["w"][0])

    shuffled = deltas.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    expected = np.mean([delta / (1 + staleness) ** 0.5 for staleness, delta in deltas])
    assert update(deltas) == pytest.approx(expected, abs=1e-9)
    assert update(shuffled) == pytest.approx(expected, abs=1e-9)
