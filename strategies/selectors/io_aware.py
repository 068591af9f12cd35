"""Utility per predicted second of a participation, storage included."""

from __future__ import annotations

import math

import numpy as np

from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import (
    predicted_phases,
    quantile,
    usable_samples,
    usable_seconds,
    usable_utility,
)
from strategies.selectors.draws import draw, top


class IOAware(Selector):
    """Prefers clients that improve the model most per second, as their caches stand now.

        score = utility * (1 + age_weight * turns missed) / predicted seconds

    *Predicted seconds* is the cost model's whole participation: download, reads from origin and
    cache, decoding, compute, upload, less what overlaps. A client's share of hits is that of its
    samples which it reports as cached, so a warm client is worth more than a cold one of the same
    speed. Oort sees storage only in durations that are over, and discounts only beyond a threshold;
    a rate ranks all clients, and the fastest are not the best where their utility is low.

    *Utility* is the last claim; of an untried client, the upper quartile of the utilities claimed
    per sample times min(n, q), so that it is tried early but does not outrank all that is known.
    *Turns missed* is rounds since the last training, in units of the N/K rounds that a uniform
    selector would let pass; it grows without bound, so a client k times slower waits about k times
    longer, and none for ever. Claims per sample are capped at their 95th percentile and seconds at
    their 5th from below: one claim alone cannot win every round.

    The cohort is drawn by score from the best `pool` times as many, since a pure ranking would
    train the same few clients. A share `explore` of the slots is drawn from all others in
    proportion to rounds since training per predicted second, whatever utility they claim.
    The length of the run is not used: the selector may run for any number of rounds.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, explore: float = 0.1, pool: float = 2.0, age_weight: float = 0.5) -> None:
        if not 0 <= explore <= 1 or not 1 <= pool < math.inf or not 0 <= age_weight < math.inf:
            raise ValueError("needs 0 <= explore <= 1, pool >= 1 and age_weight >= 0")
        self.explore, self.pool, self.age_weight = explore, pool, age_weight

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Draw from the best by score, and a few from the others by age."""
        utility, predicted_s = expected_utility(view, candidates), expected_s(view, candidates)
        seconds = np.maximum(predicted_s, max(quantile(predicted_s, 0.05, 0.0), 1e-9))
        count = min(view.count, len(candidates))
        age = view.fleet.age_rounds(view.round)[candidates]
        score = utility * (1 + self.age_weight * age * count / len(candidates)) / seconds

        explore = int(count * self.explore + rng.random())  # the share holds on average
        exploit = count - explore
        best = top(score, math.ceil(self.pool * exploit), rng)
        exploited = best[draw(score[best], exploit, rng)]
        others = np.delete(np.arange(len(candidates)), exploited)
        explored = others[draw((age / seconds)[others], explore, rng)]
        details = {"score": score, "utility": utility, "assumed_s": predicted_s}
        picked = {"exploit": exploited, "explore": explored}
        return Cohort.of(view, candidates, picked, best, details), dict(state)


def expected_utility(view: View, clients: np.ndarray) -> np.ndarray:
    """Return the claimed utility, capped per sample, or an optimistic one of the untried."""
    samples = usable_samples(view, clients)
    per_sample = usable_utility(view.fleet.utility[clients]) / np.maximum(samples, 1)
    tried = view.fleet.tried[clients]
    known = per_sample[tried & (per_sample > 0)]
    capped = np.minimum(per_sample, quantile(known, 0.95, np.inf))
    utility: np.ndarray = samples * np.where(tried, capped, quantile(known, 0.75, 1.0))
    return utility


def expected_s(view: View, clients: np.ndarray) -> np.ndarray:
    """Return predicted seconds; else those last observed; else the median of all others."""
    with np.errstate(all="ignore"):
        seconds = usable_seconds(predicted_phases(view, clients).total_s)
    observed = usable_seconds(view.fleet.duration_s[clients])
    seconds = np.where(np.isnan(seconds), observed, seconds)
    median = quantile(seconds[~np.isnan(seconds)], 0.5, 1.0)
    return np.where(np.isnan(seconds), median, seconds)
