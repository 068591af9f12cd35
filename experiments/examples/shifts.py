"""A selector of one's own: clients work in shifts, several rounds in a row."""

from __future__ import annotations

import numpy as np

from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.draws import top


class Shifts(Selector):
    """Keeps a cohort for some rounds, and then takes the clients that have waited longest.

    Longer shifts let more participations find a cache that was filled before, and reach fewer
    clients in the same number of rounds: coverage and the accuracy of the clients never selected
    say what that costs. With one round a shift this is round robin. Whoever is still busy when a
    round starts is stood in for by those who have waited longest.

    Args:
        rounds: how many rounds a shift lasts, 1 or more.

    Raises:
        ValueError: it lasts none.
    """

    def __init__(self, rounds: int = 3) -> None:
        if rounds < 1:
            raise ValueError(f"a shift lasts 1 round or more, got {rounds}")
        self._rounds = rounds

    def initial_state(self, clients: int) -> State:
        """Nobody is on duty, and the shift is over: the first round begins one."""
        return {"on_duty": np.zeros(clients, dtype=np.bool_), "last_round": np.array(0)}

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Take those on duty first, then by the rounds they have waited; equal ones are drawn."""
        begins = view.round > state["last_round"]
        on_duty = state["on_duty"][candidates] & ~begins
        waited_rounds = view.round - view.fleet.selected_round[candidates]
        rank = waited_rounds + np.where(on_duty, view.round + 1, 0)  # nobody waits that long
        chosen = top(rank, view.count, rng)
        picked = {
            "on duty": chosen[on_duty[chosen]],
            "waited longest": chosen[~on_duty[chosen]],
        }
        everyone = np.arange(len(candidates))
        cohort = Cohort.of(view, candidates, picked, everyone, {"waited_rounds": waited_rounds})
        return cohort, self._shift_of(view, cohort) if begins else dict(state)

    def _shift_of(self, view: View, cohort: Cohort) -> State:
        """Return the state of a shift that begins: new arrays, for those given never change."""
        on_duty = np.zeros(len(view.fleet), dtype=np.bool_)
        on_duty[cohort.clients] = True
        return {"on_duty": on_duty, "last_round": np.array(view.round + self._rounds - 1)}
