"""The cohort of the best expected progress per second of the round, storage included."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedio.errors import InputError
from fedio.plugins import unknown
from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.calibration import calibrated, uncalibrated, with_asked
from strategies.selectors.cohorts import best_cohort, spares, spread
from strategies.selectors.draws import top
from strategies.selectors.io_beliefs import BELIEFS, believed_s
from strategies.selectors.prospects import Prospects, waited_rounds

NOBODY = np.zeros(0, dtype=np.int64)


class IOAware(Selector):
    """Picks the K clients that bring the most per second of the round they make together.

        maximise  sum of value / seconds of the slowest,  value = (utility * rounds waited) ** power

    *Seconds* are the cost model's prediction from claims about compute, network, tiers, samples,
    cache content, sampler and overlap, times a correction of each client that its observed
    durations teach. *Utility* is Oort's, as last claimed. What all others claim bounds both; see
    `prospects`. *Rounds waited* are those since a client was picked. So one that is slow, or worth
    little, waits until enough of its like have become worth a round, and is picked with them. In
    the long run clients of equal seconds are picked in proportion to utility, those of equal
    utility to 1 / seconds ** (1 / power): with a lower power rounds are quicker, with a higher one
    all are picked more alike.

    A share `explore` of the picks goes to those that have waited longest, if for more than
    `patience` turns; a turn is the N / K rounds that a uniform selector lets pass. So a client that
    can always be selected is picked within patience * N / K + N / ceil(explore * K) rounds, N being
    all clients, whatever it or others claim.

    Over-commitment: the K picks are what should count. The other clients of the cohort stand by
    and are slower, so that they count only where picks fail or are late, and they wait on. Where
    clients stage, the picks of the next round are named one round ahead, at work or not, and
    predicted with a cache as full as staging can make it; those that are idle when their round
    comes are picked first. Of more than 2 ** 18 clients as many are looked at in a round, and those
    beyond patience. The length of the run is not used.

    Args:
        explore: share of the picks for those beyond patience, rounded up.
        patience: turns.
        power: exponent of what a client brings, above 0.
        io: "claimed", or for comparison "alike", blind to differences in I/O, or "free", which
            takes I/O to cost nothing; these two learn nothing from durations, which would tell.

    Raises:
        ValueError: an argument is out of range.
    """

    names_next = True

    def __init__(
        self,
        explore: float = 0.1,
        patience: float = 3.0,
        power: float = 0.5,
        io: str = "claimed",
    ) -> None:
        if not 0 <= explore <= 1 or not patience >= 0 or not 0 < power < math.inf:
            raise ValueError("needs 0 <= explore <= 1, patience >= 0 and power > 0")
        if io not in BELIEFS:
            raise InputError(unknown("io", io, list(BELIEFS)))
        self.explore, self.patience, self.power, self.io = explore, patience, power, io

    def initial_state(self, clients: int) -> State:
        """Return that nobody was picked, named or asked."""
        return uncalibrated(clients) | {
            "picked_round": np.zeros(clients, dtype=np.int64),
            "named": NOBODY,
        }

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Pick, have others stand by, and name the picks of the next round."""
        if self.io == "claimed":
            state = calibrated(state, view.fleet)
        named = state["named"][view.feasible[state["named"]]]
        pool, of, chosen = self._plan(view, candidates, named, state, rng)
        picks = np.concatenate(list(chosen.values()))
        missing = min(view.count, len(candidates)) - len(picks)
        chosen["spare"] = spares(of.seconds, picks, missing, rng)
        figures = {"assumed_s": of.seconds, "value": of.value}
        cohort = Cohort.of(view, pool, chosen, picks, figures)
        details = cohort.reasons.details
        details["waited_rounds"] = waited_rounds(view, cohort.clients, state).astype(np.float64)
        details["correction"] = state["correction"][cohort.clients]

        state = with_asked(state, view.round, cohort.clients, details["assumed_s"])
        state["picked_round"] = state["picked_round"].copy()
        state["picked_round"][pool[picks]] = view.round
        state["named"] = self._next(view, state, rng) if view.staging else NOBODY
        return replace(cohort, next=state["named"]), state

    def _plan(
        self,
        view: View,
        clients: np.ndarray,
        named: np.ndarray,
        state: State,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, Prospects, dict[str, np.ndarray]]:
        """Return the clients looked at, their prospects, and picks by why: positions in them."""
        count = min(view.wanted, view.count, len(clients))
        named, waited = named[:count], waited_rounds(view, clients, state)
        late = clients[waited * count > self.patience * len(clients)]
        late = late[~np.isin(late, named)]
        slots = min(math.ceil(self.explore * count), count - len(named))
        due = late[top(waited_rounds(view, late, state), slots, rng)]
        held = np.concatenate([named, due])
        pool = spread(clients, held, rng)
        predicted_s = believed_s(view, pool, state["named"], self.io)
        of = Prospects.of(view, pool, state, predicted_s, self.power)
        at = np.searchsorted(pool, held)
        best = best_cohort(of.seconds, of.value, at, count, rng)
        return pool, of, {"named": at[: len(named)], "due": at[len(named) :], "best": best}

    def _next(self, view: View, state: State, rng: np.random.Generator) -> np.ndarray:
        """Return who is to be picked in the next round, ascending, as far as is known now."""
        known = np.flatnonzero(view.fleet.known)
        staged = state | {"named": known}  # whoever is named fills its cache
        ahead = replace(view, round=view.round + 1)
        pool, _, chosen = self._plan(ahead, known, NOBODY, staged, rng)
        return np.sort(pool[np.concatenate(list(chosen.values()))])
