"""Power of choice: of some candidates, drawn by size, those with the highest loss."""

from __future__ import annotations

import math

import numpy as np

from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import UTILITY_CEILING, quantile
from strategies.selectors.draws import draw, top

LARGEST_SHARE = 0.95  # of the clients count with all their samples
NO_LOSS = 1e6  # times the median of all claims: no honest client comes near


class PowerOfChoice(Selector):
    """Draws d candidates in proportion to their samples and takes those with the highest loss.

    The loss is the one that a client claimed when it last trained (the variant rpow-d: nobody is
    asked for a loss before the round). That of a client which was never selected counts as the
    highest; equal ones are drawn.

    Departures: the samples of the largest clients count up to the 95th percentile, so that a false
    claim cannot make one a candidate in every round. A loss that cannot be one counts as the lowest
    of a client that has answered, so that it does not help; who was selected and has not answered
    yet counts as the median.

    Source: Cho, Wang and Joshi, Towards Understanding Biased Client Selection in Federated
    Learning (AISTATS 2022; arXiv 2010.01243), the sampling strategies.

    Args:
        choices: d as a multiple of the clients that are selected.

    Raises:
        ValueError: `choices` is below 1.
    """

    def __init__(self, choices: float = 2.0) -> None:
        if not 1 <= choices < math.inf:
            raise ValueError(f"choices is {choices}, not a number from 1 up")
        self.choices = choices

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Draw the d, and rank them."""
        fleet = view.fleet
        samples = fleet.samples[candidates]
        capped = np.minimum(samples, quantile(samples, LARGEST_SHARE, 0.0))
        count = min(view.count, len(candidates))
        drawn = draw(capped, math.ceil(self.choices * count), rng)

        median = median_loss(fleet.loss)
        known = usable_loss(fleet.loss[candidates[drawn]], median)
        new = np.isnan(known) & (fleet.times_selected[candidates[drawn]] == 0)
        # Who has answered and says no loss that can be one comes last.
        silent = np.where(fleet.last_round[candidates[drawn]] > 0, 0.0, median)
        rank = np.where(new, np.inf, np.where(np.isnan(known), silent, known))
        chosen = top(rank, count, rng)

        loss = np.full(len(candidates), np.nan)
        loss[drawn] = known
        others = np.delete(np.arange(len(candidates)), drawn)
        picked = {"new": drawn[chosen[new[chosen]]], "high loss": drawn[chosen[~new[chosen]]]}
        return Cohort.of(view, candidates, picked, others, {"loss": loss}), dict(state)


def median_loss(claimed: np.ndarray) -> float:
    """Return the median of the claims that can be positive numbers, 0 of none."""
    return quantile(claimed[(claimed > 0) & (claimed < UTILITY_CEILING)], 0.5, 0.0)


def usable_loss(claimed: np.ndarray, median: float) -> np.ndarray:
    """Return losses with NaN for what is none: negative, infinite, or far beyond the median."""
    return np.where((claimed >= 0) & (claimed <= NO_LOSS * median), claimed, np.nan)
