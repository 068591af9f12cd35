"""TiFL: the clients of a round are about equally fast, of one of five classes."""

from __future__ import annotations

import numpy as np

from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import predicted_s, usable_seconds
from strategies.selectors.draws import draw, top
from strategies.selectors.power_of_choice import median_loss, usable_loss


class TiFL(Selector):
    """Draws one latency tier per round, and the cohort evenly from its clients.

    The tiers hold equally many clients, by how long a participation takes; tier 0 is the fastest.
    Each tier has credits, and a round takes one from the tier it draws. Every `interval_rounds`
    rounds the tiers are looked at: if the one drawn last became no better since, the chances
    become (n - i)/(1 + 2 + .. + n) for the i-th of n tiers in the order of accuracy, the worst
    being i = 0, so that what is learned badly is trained more often. At first all are alike.

    Departures. Nothing is profiled beforehand: a latency is the duration last observed, else the
    one predicted from claims, and a client of which neither is known is in the slowest tier; so
    tiers follow what is seen, and clients equally fast share one, which may leave another empty.
    The mean loss that a tier's clients claimed last stands for its accuracy, as nobody is tested
    for the server; a tier without any counts as the worst. The length of a run is not known, so
    credits are not for a run: they are renewed with every interval, and when no tier has both
    credits and feasible clients. A tier that cannot fill the cohort is filled up from the nearest.

    Source: Chai et al., TiFL: A Tier-based Federated Learning System (HPDC 2020), adaptive tier
    selection; the chances as independent re-implementations have them (FLTK, FLGo).

    Args:
        tiers: n, the number of tiers.
        interval_rounds: rounds from one look at the tiers to the next.
        credit_rounds: rounds of an interval that may draw the same tier.

    Raises:
        ValueError: one of them is below 1.
    """

    def __init__(self, tiers: int = 5, interval_rounds: int = 10, credit_rounds: int = 4) -> None:
        if min(tiers, interval_rounds, credit_rounds) < 1:
            raise ValueError("needs tiers, interval_rounds and credit_rounds of at least 1")
        self.tiers, self.interval_rounds = tiers, interval_rounds
        self.credit_rounds = credit_rounds

    def initial_state(self, clients: int) -> State:  # noqa: ARG002
        """Return full credits, equal chances, and that no loss is known and no tier was drawn."""
        return {
            "credits": np.full(self.tiers, self.credit_rounds),
            "chances": np.full(self.tiers, 1 / self.tiers),
            "losses": np.full(self.tiers, np.nan),
            "drawn": np.array(-1),
        }

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Draw a tier that has credits and clients, and clients from it."""
        latency_s, tier_of = latency_tiers(view, self.tiers)
        if (view.round - 1) % self.interval_rounds == 0:
            state = self._looked_at(mean_losses(view, tier_of, self.tiers), state, rng)
        own = tier_of[candidates]
        there = np.bincount(own, minlength=self.tiers) > 0
        left = state["credits"].copy()
        if not (there & (left > 0)).any():
            left[:] = self.credit_rounds
        drawn = int(draw(np.where(there & (left > 0), state["chances"], 0.0), 1, rng)[0])
        left[drawn] -= 1

        tiers = np.arange(self.tiers)
        distance = 2 * np.abs(tiers - drawn) + (tiers > drawn)  # of two as near, the faster first
        far = distance[own]
        chosen = top(-far, view.count, rng)
        picked = {"tier": chosen[far[chosen] == 0], "nearest": chosen[far[chosen] > 0]}
        details = {"latency_tier": own, "assumed_s": latency_s[candidates]}
        cohort = Cohort.of(view, candidates, picked, np.flatnonzero(far == 0), details)
        return cohort, {**state, "credits": left, "drawn": np.array(drawn)}

    def _looked_at(self, losses: np.ndarray, state: State, rng: np.random.Generator) -> State:
        """Return the state with credits renewed, and chances too where the last tier needs it."""
        chances, drawn = state["chances"], int(state["drawn"])
        if losses[drawn] >= state["losses"][drawn]:  # not so where either is unknown
            worst_first = np.lexsort((rng.random(self.tiers), -np.nan_to_num(losses, nan=np.inf)))
            chances = np.empty(self.tiers)
            chances[worst_first] = np.arange(self.tiers, 0, -1) / np.arange(self.tiers + 1).sum()
        renewed = np.full(self.tiers, self.credit_rounds)
        return {**state, "credits": renewed, "chances": chances, "losses": losses}


def latency_tiers(view: View, tiers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the assumed seconds of all clients, infinite of unknown ones, and their tiers.

    The borders between tiers are quantiles of the clients that are known or feasible.
    """
    latency_s = usable_seconds(view.fleet.duration_s)
    counted = view.fleet.known | view.feasible
    unseen = np.flatnonzero(np.isnan(latency_s) & counted)
    latency_s[unseen] = usable_seconds(predicted_s(view, unseen))
    latency_s[np.isnan(latency_s)] = np.inf
    ordered = np.sort(latency_s[counted])
    tier_of = np.zeros(len(latency_s), dtype=np.int16)
    for tier in range(1, tiers):
        tier_of += latency_s > ordered[-(-len(ordered) * tier // tiers) - 1]
    return latency_s, tier_of


def mean_losses(view: View, tier_of: np.ndarray, tiers: int) -> np.ndarray:
    """Return the mean of the losses that each tier's clients claim; NaN of none."""
    claimed = view.fleet.loss
    loss = usable_loss(claimed, median_loss(claimed))
    known = ~np.isnan(loss)
    claims = np.bincount(tier_of[known], minlength=tiers)
    total = np.bincount(tier_of[known], weights=loss[known], minlength=tiers)
    means = np.full(tiers, np.nan)
    np.divide(total, claims, out=means, where=claims > 0)
    return means
