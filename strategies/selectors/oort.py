"""Oort: statistical utility, discounted for slow clients (Lai et al., OSDI 2021)."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from fedio.errors import InputError
from fedio.plugins import unknown
from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import (
    predicted_phases,
    quantile,
    usable_samples,
    usable_seconds,
    usable_utility,
)
from strategies.selectors.draws import draw, top
from strategies.selectors.oort_parameters import PRESETS, OortParameters


class Oort(Selector):
    """The training selector of Oort's artifact (OSDI 2021), without its faults.

    A tried client scores its utility, normalised, plus sqrt(0.1 ln t / last round); an untried one
    its prior min(n, q). Both are multiplied by (T / duration)^penalty where they take longer than
    the preferred duration T, a percentile of the durations observed so far. Part of the slots
    goes to the untried; a pacer moves the percentile when the exploited utility stays flat or
    jumps. The penalty of the untried rests on the duration they register: download, compute and
    upload from claimed speeds, without storage, as FedScale registers them.

    Departures from the artifact: claims that are no positive number are utility 0, and score no
    less than nothing; T knows observed durations only; ties are drawn; slots that one side cannot
    fill go to the other; exclusion never leaves fewer clients than are wanted. The cut-off is
    taken at the last exploited client, as in the paper's algorithm 1; the artifact's is one below.
    As in the artifact the range of the normalisation is that of the utilities before clipping.

    Raises:
        InputError: unknown parameter set, or a parameter that does not exist or is impossible.
    """

    def __init__(self, parameters: str = "repository", **overrides: float) -> None:
        if parameters not in PRESETS:
            raise InputError(unknown("parameter set", parameters, PRESETS))
        known = [field.name for field in fields(OortParameters)]
        for name in overrides:
            if name not in known:
                raise InputError(unknown("parameter", name, known))
        try:
            self.parameters = replace(PRESETS[parameters], **overrides)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise InputError(f"oort: {error}") from error

    def initial_state(self, clients: int) -> State:  # noqa: ARG002
        """Return exploration and threshold at their start, and no history."""
        return {
            "exploration": np.array(self.parameters.exploration_factor),
            "round_threshold": np.array(float(self.parameters.round_threshold)),
            "round": np.array(0),
            "exploited": np.zeros(0, dtype=np.int64),
            "exploited_utility": np.zeros(0),
        }

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Exploit among the tried and explore among the untried."""
        p = self.parameters
        history, threshold = self._pace(view, state)
        pool = self._without_excluded(view, candidates, rng)
        tried = view.fleet.tried[pool]
        utility = np.where(
            tried, usable_utility(view.fleet.utility[pool]), usable_samples(view, pool)
        )
        duration_s = durations(view, pool)
        score = utility.copy()
        score[tried] = confident_scores(
            utility[tried], view.fleet.last_round[pool][tried], view.round, p.clip_bound
        )
        score *= discount(duration_s, self._preferred_s(view, threshold), p.round_penalty)

        exploration = max(float(state["exploration"]) * p.exploration_decay, p.exploration_min)
        old, new = np.flatnonzero(tried), np.flatnonzero(~tried)
        explore = min(int(view.count * exploration), len(new))
        exploit = min(view.count - explore, len(old))
        explore = min(view.count - exploit, len(new))  # what exploitation cannot fill

        best = old[exploitable(score[old], exploit, p.cut_off_util, rng)]
        window = new[top(score[new], int(p.sample_window * explore), rng)]
        exploited = best[draw(score[best], exploit, rng)]
        explored = window[draw(score[window], explore, rng)]
        cohort = Cohort.of(
            view,
            pool,
            {"exploit": exploited, "explore": explored},
            np.concatenate([best, window]),
            {"score": score, "utility": utility, "assumed_s": duration_s},
        )
        return cohort, {
            "exploration": np.array(exploration),
            "round_threshold": np.array(threshold),
            "round": np.array(view.round),
            "exploited": np.sort(pool[exploited]),
            "exploited_utility": history,
        }

    def _pace(self, view: View, state: State) -> tuple[np.ndarray, float]:
        """Return the history of exploited utility with the last round in it, and the threshold.

        The history holds, per round, the mean utility of the clients that the round before
        exploited and that answered; the pacer compares the sums of its last two windows.
        """
        p = self.parameters
        exploited, threshold = state["exploited"], float(state["round_threshold"])
        answered = exploited[view.fleet.last_round[exploited] >= state["round"]]
        utility = usable_utility(view.fleet.utility[answered])
        gained = utility.mean() if len(utility) else 0.0
        history = np.append(state["exploited_utility"], gained)[-2 * p.pacer_step :]
        if view.round % p.pacer_step == 0 and len(history) == 2 * p.pacer_step:
            before, now = history[: p.pacer_step].sum(), history[p.pacer_step :].sum()
            if abs(now - before) <= 0.1 * before:
                threshold = min(100.0, threshold + p.pacer_delta)
            elif abs(now - before) >= 5 * before:
                threshold = max(p.pacer_delta, threshold - p.pacer_delta)
        return history, threshold

    def _without_excluded(
        self, view: View, candidates: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return candidates without the most used; as many are left as are wanted."""
        p = self.parameters
        if p.blacklist_rounds < 0:
            return candidates
        used = view.fleet.times_selected[candidates]
        over = np.flatnonzero(used > p.blacklist_rounds)
        most = min(int(p.blacklist_max_len * len(view.fleet)), len(candidates) - view.count)
        return np.delete(candidates, over[top(used[over], most, rng)])

    def _preferred_s(self, view: View, threshold: float) -> float:
        """Return T: the threshold's percentile of all observed durations, infinite of none."""
        if threshold >= 100:
            return float("inf")
        observed = usable_seconds(view.fleet.duration_s)
        return quantile(observed[~np.isnan(observed)], threshold / 100, np.inf)


def durations(view: View, clients: np.ndarray) -> np.ndarray:
    """Return the seconds last observed, else those registered: claimed, and without storage."""
    seconds = usable_seconds(view.fleet.duration_s[clients])
    unseen = np.flatnonzero(np.isnan(seconds))
    claimed = predicted_phases(view, clients[unseen])
    with np.errstate(all="ignore"):
        registered = claimed.download_s + claimed.compute_s + claimed.upload_s
    seconds[unseen] = usable_seconds(registered)
    return seconds


def confident_scores(
    utility: np.ndarray, last_round: np.ndarray, server_round: int, clip_bound: float
) -> np.ndarray:
    """Return the clipped and normalised utility of tried clients plus the age of their figure.

    (min(u, clip) - 0.999 min) / max(max - 0.999 min, 1e-4) + sqrt(0.1 ln t / last round), over
    the positive utilities; a client without one scores 0 in the first term, the least there is.
    """
    positive = utility[utility > 0]
    clip = quantile(positive, clip_bound, 0.0)
    least, most = (0.999 * positive.min(), positive.max()) if len(positive) else (0.0, 0.0)
    gain = np.maximum(np.minimum(utility, clip) - least, 0.0) / max(most - least, 1e-4)
    scores: np.ndarray = gain + np.sqrt(0.1 * np.log(server_round) / last_round)
    return scores


def discount(duration_s: np.ndarray, preferred_s: float, penalty: float) -> np.ndarray:
    """Return (T / duration)^penalty where that is slower than T, else 1: never more than 1."""
    slower = duration_s > preferred_s  # an unknown duration is not
    factor = np.ones(len(duration_s))
    np.divide(preferred_s, duration_s, out=factor, where=slower)
    np.power(factor, penalty, out=factor)
    return factor


def exploitable(
    scores: np.ndarray, exploit: int, cut_off_util: float, rng: np.random.Generator
) -> np.ndarray:
    """Return positions of scores from the cut-off up, and of more than ten times those wanted."""
    if exploit == 0:
        return np.zeros(0, dtype=np.int64)
    last = np.partition(scores, len(scores) - exploit)[len(scores) - exploit]
    good = int(np.count_nonzero(scores >= cut_off_util * last))
    return top(scores, max(good, 10 * exploit + 1), rng)
