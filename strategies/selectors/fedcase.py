"""FedCaSe: a cohort of another selector, and the clients of most experience beside it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedio.errors import InputError
from fedio.plugins import unknown
from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import usable_seconds, usable_utility
from strategies.selectors.draws import top
from strategies.selectors.oort import Oort
from strategies.selectors.share import FixedShare, LearnedShare, Share
from strategies.selectors.uniform import Uniform

BASES: dict[str, type[Selector]] = {"oort": Oort, "uniform": Uniform}
_BASE, _SHARE = "base.", "share."


class FedCaSe(Selector):
    """Selects as its base does, and appends the clients that were quick and useful before.

    The base draws `view.count` clients, over-commitment included. Then the int(rho K) clients of
    the highest experience in the whole fleet are appended, but for those that are there already
    and those that are not feasible:

        experience = 0.1 (tmax - t)/(tmax - tmin) + 0.9 (u - umin)/(umax - umin)

    t is the duration last observed, u Oort's utility as last claimed. The extremes are over all
    that was seen so far in any round, and a term whose range is zero is 0. A client of which either
    is unknown has no experience. As everywhere only the K that finish first count, so what is
    appended makes the round quicker, and trains the same clients more often.

    The cohort may thus be larger than `view.count`, by rho K at most.

    Source: FedCaSe (SoCC 2024), its artifact; for rho see `LearnedShare`. Departures: clients of
    equal experience at the border are drawn; claims that are no number from 0 up are unknown.

    Args:
        base: the selector, "oort" or "uniform".
        share: rho from 0 to 1, or "learned".
        base_args: arguments of the base; Oort has the parameters of FedScale when none are given.

    Raises:
        InputError: unknown base, a share out of range, arguments that the base does not take, or
            no scikit-learn for a learned share.
    """

    def __init__(
        self, base: str = "oort", share: float | str = "learned", **base_args: Any
    ) -> None:
        if base not in BASES:
            raise InputError(unknown("base", base, BASES))
        given = {"parameters": "fedscale"} | base_args if base == "oort" else base_args
        try:
            self._base = BASES[base](**given)
        except TypeError as error:
            raise InputError(
                f"fedcase: base {base!r} does not take {base_args}: {error}"
            ) from error
        self.names_next = self._base.names_next
        self._share: Share = LearnedShare() if share == "learned" else FixedShare(share)

    def initial_state(self, clients: int) -> State:
        """Return the states of base and share, and that nothing was seen."""
        return {
            **_named(_BASE, self._base.initial_state(clients)),
            **_named(_SHARE, self._share.initial_state()),
            "seconds_range": np.array([np.inf, -np.inf]),
            "utility_range": np.array([np.inf, -np.inf]),
        }

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Let the base choose, and append."""
        rho, share_state = self._share.choose(view, _part(_SHARE, state), rng)
        cohort, base_state = self._base.choose(view, candidates, _part(_BASE, state), rng)
        seconds_s, utility = figures(view)
        seconds_range = widened(state["seconds_range"], seconds_s)
        utility_range = widened(state["utility_range"], utility)
        score = experience(seconds_s, utility, seconds_range, utility_range)
        known = np.flatnonzero(np.isfinite(score))
        # The product of a share like 0.7 and a whole number may lie a little below the right one.
        best = known[top(score[known], math.floor(rho * view.wanted + 1e-9), rng)]
        appended = np.setdiff1d(best[view.feasible[best]], cohort.clients)
        return _joined(view, candidates, cohort, appended, score), {
            **_named(_BASE, base_state),
            **_named(_SHARE, share_state),
            "seconds_range": seconds_range,
            "utility_range": utility_range,
        }


def figures(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Return observed seconds and claimed utility of all clients, float64 [N]; NaN is unknown."""
    seconds_s = usable_seconds(view.fleet.duration_s)
    claimed = view.fleet.utility
    good = np.isfinite(claimed) & (claimed >= 0)
    return (
        np.where(np.isfinite(seconds_s), seconds_s, np.nan),
        np.where(good, usable_utility(claimed), np.nan),
    )


def widened(extremes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return (min, max) with known values taken in; (inf, -inf) is nothing seen yet."""
    known = values[~np.isnan(values)]
    low, high = extremes.tolist()
    return np.array([known.min(initial=low), known.max(initial=high)])


def experience(
    seconds_s: np.ndarray,
    utility: np.ndarray,
    seconds_range: np.ndarray,
    utility_range: np.ndarray,
) -> np.ndarray:
    """Return the experience of clients, float64 [N], 0 to 1; NaN where either figure is unknown."""
    (quickest, slowest), (least, most) = seconds_range.tolist(), utility_range.tolist()
    score = np.where(np.isnan(seconds_s) | np.isnan(utility), np.nan, 0.0)
    if slowest > quickest:
        score += 0.1 * ((slowest - seconds_s) / (slowest - quickest))
    if most > least:
        score += 0.9 * ((utility - least) / (most - least))
    return score


def _joined(
    view: View, candidates: np.ndarray, cohort: Cohort, appended: np.ndarray, score: np.ndarray
) -> Cohort:
    """Return the base's cohort and the appended clients as one, with reasons for all."""
    clients = np.concatenate([cohort.clients, appended])
    why = np.array([*cohort.reasons.why, *["experienced"] * len(appended)])
    positions = np.searchsorted(candidates, clients)
    picked = {reason: positions[why == reason] for reason in dict.fromkeys(why.tolist())}
    details = {"experience": score[candidates]}
    for name, chosen in cohort.reasons.details.items():
        figures_of_base = np.full(len(candidates), np.nan)
        figures_of_base[positions[: len(chosen)]] = chosen
        details[f"base_{name}"] = figures_of_base
    joined = Cohort.of(view, candidates, picked, np.arange(len(candidates)), details)
    return replace(joined, next=cohort.next)


def _named(prefix: str, state: State) -> State:
    return {prefix + name: array for name, array in state.items()}


def _part(prefix: str, state: State) -> State:
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }
