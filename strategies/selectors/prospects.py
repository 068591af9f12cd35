"""How long clients take and what they are worth: the figures that a cohort is chosen by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategies.selector import State, View
from strategies.selectors.claims import (
    BLOCK_CLIENTS,
    quantile,
    usable_samples,
    usable_utility,
)

MOST_SECONDS = 10.0  # predictions count up to so many times their median, and down to its inverse
MOST_UTILITY = 1.25  # claims likewise
OPTIMISM = 0.75  # quantile of the utilities per sample that is assumed of the untried
UNRELIABLE = 0.9  # who never answers is worth a tenth
SHORTEST_S, LONGEST_S = 1e-9, 1e12  # no prediction is meant to be beyond
_SAMPLE = 2**14


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """What to expect of clients, float64 [k] each.

    Attributes:
        seconds: of a participation, predicted and corrected, more than 0.
        value: what it brings to a round, (utility * rounds waited) ** power, more than 0.
    """

    seconds: np.ndarray
    value: np.ndarray

    @classmethod
    def of(
        cls, view: View, clients: np.ndarray, state: State, predicted_s: np.ndarray, power: float
    ) -> Prospects:
        """Return the prospects of `clients`, whose predicted seconds may be anything."""
        normal, found = Normal.of(view, clients, predicted_s), cls(*np.empty((2, len(clients))))
        # What is worked out in blocks stays in the processor's cache.
        for start in range(0, len(clients), BLOCK_CLIENTS):
            block = slice(start, start + BLOCK_CLIENTS)
            some, seconds = clients[block], normal.bounded_s(predicted_s[block])
            found.seconds[block] = seconds * state["correction"][some]
            waited = waited_rounds(view, some, state)
            found.value[block] = (normal.utility(view, some) * waited) ** power
        return found


def waited_rounds(view: View, clients: np.ndarray, state: State) -> np.ndarray:
    """Return the rounds since clients were picked, or since the start; at least 1."""
    rounds: np.ndarray = np.maximum(view.round - state["picked_round"][clients], 1)
    return rounds


@dataclass(frozen=True, slots=True)
class Normal:
    """What is normal among clients, which bounds what the claims of one can do.

    Attributes:
        median_s: of the predictions.
        median_utility: of what the tried ones claim.
        per_sample: the utility per sample that is assumed of the untried.
        failures: whether any of the fleet ever failed.
    """

    median_s: float
    median_utility: float
    per_sample: float
    failures: bool

    @classmethod
    def of(cls, view: View, clients: np.ndarray, predicted_s: np.ndarray) -> Normal:
        """Return what is normal among `clients`, as some show that are evenly spaced."""
        some, some_s = evenly_spaced(clients), evenly_spaced(predicted_s)
        samples, utility = usable_samples(view, some), usable_utility(view.fleet.utility[some])
        useful = (view.fleet.last_round[some] > 0) & (utility > 0) & (samples > 0)
        claimed = utility[useful]
        return cls(
            median_s=quantile(np.minimum(some_s[some_s > SHORTEST_S], LONGEST_S), 0.5, 1.0),
            median_utility=quantile(claimed if len(claimed) else samples[samples > 0], 0.5, 1.0),
            per_sample=quantile(claimed / samples[useful], OPTIMISM, 1.0),
            failures=bool(view.fleet.failures.any()),
        )

    def bounded_s(self, predicted_s: np.ndarray) -> np.ndarray:
        """Return predictions within 1 / MOST_SECONDS and MOST_SECONDS of the median.

        So claims make nobody the only fast one, nor one for whom all others wait; what lies beyond
        is for observation to tell. Of whom nothing can be predicted takes the median.
        """
        seconds = np.where(predicted_s >= 0, predicted_s, self.median_s)
        least_s, most_s = self.median_s / MOST_SECONDS, self.median_s * MOST_SECONDS
        np.clip(seconds, least_s, most_s, out=seconds)
        return seconds

    def utility(self, view: View, clients: np.ndarray) -> np.ndarray:
        """Return the utility of clients in units of the median, float64 [k], more than 0.

        It is the last claim, within 1 / MOST_UTILITY and MOST_UTILITY. The untried are worth an
        optimistic utility per sample times min(n, q), within the same bounds. Whoever failed is
        worth less by the share of its failures.
        """
        fleet, bounds = view.fleet, (1 / MOST_UTILITY, MOST_UTILITY)
        utility: np.ndarray = np.fmax(fleet.utility[clients], 0.0)
        untried = np.flatnonzero(fleet.last_round[clients] == 0)
        utility[untried] = self.per_sample * usable_samples(view, clients[untried])
        with np.errstate(over="ignore"):
            utility /= self.median_utility
        np.clip(utility, *bounds, out=utility)
        if self.failures:
            failed = fleet.failures[clients] / (fleet.times_selected[clients] + 1)
            utility *= 1 - np.minimum(failed, UNRELIABLE)
        return utility


def evenly_spaced(values: np.ndarray) -> np.ndarray:
    """Return all values, or about 16384 of more: enough for a quantile."""
    return values[:: max(len(values) // _SAMPLE, 1)]
