"""REFL: the clients that are least likely to be there later, before it is too late."""

from __future__ import annotations

import numpy as np

from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.draws import top


class REFL(Selector):
    """Prefers the clients that expect to be available least in a window to come.

    Each client forecasts for itself what share of that window it is going to be there for; the
    lowest shares are chosen, equal ones are drawn. A client of which no share from 0 to 1 is known
    counts as available all the time. A client that answered within the last `rest_rounds` rounds
    rests; where too few others are left, those that have rested longest are taken as well.

    Departures: the artifact knows two classes, those there for a whole next slot and those not;
    ours ranks by the forecast, as the paper does. The artifact replaces a client that has to rest
    by any other, drawn; ours ranks without it. What else REFL consists of is no matter of a
    selector: stale updates are weighted by the aggregation, and how many are wanted is given.

    Source: Abdelmoniem et al., REFL: Resource-Efficient Federated Learning (EuroSys 2023),
    intelligent participant selection; its artifact for `rest_rounds`.

    Args:
        rest_rounds: rounds after an answer in which a client is not selected again.

    Raises:
        ValueError: `rest_rounds` is negative.
    """

    def __init__(self, rest_rounds: int = 5) -> None:
        if rest_rounds < 0:
            raise ValueError(f"rest_rounds is {rest_rounds}, not a number from 0 up")
        self.rest_rounds = rest_rounds

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Leave out those that rest, and rank the others."""
        pool = self._without_resting(view, candidates, rng)
        later = view.fleet.available_later[pool]
        forecast = np.where((later >= 0) & (later <= 1), later, 1.0)
        chosen = top(-forecast, view.count, rng)
        resting = self._resting(view, pool[chosen])
        picked = {"least available": chosen[~resting], "rested longest": chosen[resting]}
        details = {"forecast": forecast}
        return Cohort.of(view, pool, picked, np.arange(0), details), dict(state)

    def _resting(self, view: View, clients: np.ndarray) -> np.ndarray:
        """Return which of `clients` answered too short a time ago."""
        last = view.fleet.last_round[clients]
        resting: np.ndarray = (last > 0) & (view.round - last < self.rest_rounds)
        return resting

    def _without_resting(
        self, view: View, candidates: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return candidates without those that rest; as many are left as are wanted."""
        resting = np.flatnonzero(self._resting(view, candidates))
        spare = len(candidates) - view.count
        latest = top(view.fleet.last_round[candidates[resting]], spare, rng)
        return np.delete(candidates, resting[latest])
