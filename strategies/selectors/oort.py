"""Oort: statistical utility, discounted for slow clients (Lai et al., OSDI 2021)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from fedio.errors import InputError
from fedio.plugins import unknown
from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import (
    predicted_phases,
    usable_samples,
    usable_seconds,
    usable_utility,
)
from strategies.selectors.draws import draw, top
from strategies.selectors.oort_parameters import PRESETS, OortParameters

_SHORTEST_S = 1e-4  # a duration below it is discounted as if it were that long


class Oort(Selector):
    """The training selector of Oort's artifact, in the edition that FedScale runs, mended.

    A tried client scores its utility, normalised, plus sqrt(0.1 ln t / last round); an untried one
    its prior min(n, q). Both are multiplied by (T / duration)^penalty where they take longer than
    the preferred duration T, a percentile of all known durations: those observed, else those
    registered, which are download, compute and upload from claimed speeds, without storage. Part of
    the slots goes to the untried; a pacer moves the percentile when the exploited utility stays
    flat or jumps. The first edition scores alike, but rounds the slots for the tried down.

    It departs where the artifact fails: claims that are no positive number are utility 0, and no
    score is below 0; unknown durations neither count nor are discounted; slots that one side cannot
    fill go to the other; exclusion counts selections, answered or not, and never leaves fewer
    clients than are wanted. Ties at a border are drawn.

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
        scored = self.scored(view, self._without_excluded(view, candidates, rng), threshold)
        score, old, new = scored.score, scored.tried, scored.untried

        exploration = max(float(state["exploration"]) * p.exploration_decay, p.exploration_min)
        explore = min(int(view.count * exploration), len(new))
        exploit = min(view.count - explore, len(old))
        explore = min(view.count - exploit, len(new))  # what exploitation cannot fill

        best = old[exploitable(score[old], exploit, p.cut_off_util, rng)]
        window = new[top(score[new], int(p.sample_window * explore), rng)]
        exploited = best[draw(score[best], exploit, rng)]
        explored = window[draw(score[window], explore, rng)]
        cohort = Cohort.of(
            view,
            scored.clients,
            {"exploit": exploited, "explore": explored},
            np.concatenate([best, window]),
            {"score": score, "utility": scored.utility, "assumed_s": scored.duration_s},
        )
        return cohort, {
            "exploration": np.array(exploration),
            "round_threshold": np.array(threshold),
            "round": np.array(view.round),
            "exploited": np.sort(scored.clients[exploited]),
            "exploited_utility": history,
        }

    def scored(self, view: View, pool: np.ndarray, threshold: float) -> Scored:
        """Return the clients of `pool` with their scores, T being this percentile of durations."""
        p = self.parameters
        last_round = view.fleet.last_round[pool]
        tried = last_round > 0
        new = np.flatnonzero(~tried)
        utility = usable_utility(view.fleet.utility[pool])
        utility[new] = usable_samples(view, pool[new])
        seconds = durations(view)
        duration_s = seconds[pool]
        score = confident_scores(utility, last_round, view.round, p.clip_bound)
        score[new] = utility[new]
        score *= discount(duration_s, preferred_s(seconds, threshold), p.round_penalty)
        return Scored(pool, np.flatnonzero(tried), new, utility, duration_s, score)

    def _pace(self, view: View, state: State) -> tuple[np.ndarray, float]:
        """Return the history of exploited utility with the last round in it, and the threshold.

        The history holds, per round, the mean utility of the clients that the round before
        exploited and that answered; the pacer compares the sums of its last two windows. The mean
        of none is 0 by the artifact's way: a ten-thousandth of a client is added to their number.
        """
        p = self.parameters
        exploited, threshold = state["exploited"], float(state["round_threshold"])
        answered = exploited[view.fleet.last_round[exploited] >= state["round"]]
        utility = usable_utility(view.fleet.utility[answered])
        gained = utility.sum() / (len(utility) + 1e-4)
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


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Clients with their scores, one row each.

    Attributes:
        clients: partition-ids, ascending.
        tried, untried: their positions.
        utility: as claimed, or the prior.
        duration_s: seconds last observed, else registered; NaN is unknown.
        score: from 0 up.
    """

    clients: np.ndarray
    tried: np.ndarray
    untried: np.ndarray
    utility: np.ndarray
    duration_s: np.ndarray
    score: np.ndarray


def durations(view: View) -> np.ndarray:
    """Return the seconds of all clients: last observed, else registered; NaN is unknown."""
    seconds = view.fleet.duration_s.copy()
    unseen = np.flatnonzero(~(seconds >= 0))
    seconds[unseen] = np.nan
    unseen = unseen[view.fleet.known[unseen]]
    claimed = predicted_phases(view, unseen)
    with np.errstate(all="ignore"):
        registered = claimed.download_s + claimed.compute_s + claimed.upload_s
    seconds[unseen] = usable_seconds(registered)
    return seconds


def preferred_s(seconds: np.ndarray, threshold: float) -> float:
    """Return T, this percentile of the durations that are known; infinite of none, and from 100."""
    known = np.count_nonzero(~np.isnan(seconds))
    if threshold >= 100 or known == 0:
        return float("inf")
    position = int(known * threshold / 100)
    return float(np.partition(seconds, position)[position])  # which puts the unknown last


def normalisation(utility: np.ndarray, clip_bound: float) -> tuple[float, float, float]:
    """Return cap, least and range over the positive utilities, priors of the untried among them.

    The cap is the percentile `clip_bound`, the least is 0.999 of the lowest, and the range reaches
    from there to the highest before the cap, 1e-4 at least.
    """
    positive = utility[utility > 0]
    if not len(positive):
        return 0.0, 0.0, 1e-4
    position = min(int(len(positive) * clip_bound), len(positive) - 1)
    positive.partition(position)
    least = 0.999 * float(positive.min())
    return float(positive[position]), least, max(float(positive.max()) - least, 1e-4)


def confident_scores(
    utility: np.ndarray, last_round: np.ndarray, server_round: int, clip_bound: float
) -> np.ndarray:
    """Return the normalised utility of clients plus the age of their figure, from 0 up.

    (min(u, cap) - least) / range + sqrt(0.1 ln t / last round), which counts for the tried alone.
    Only a client without utility can come out below 0, where the others are alike; the artifact
    takes the amount of that. The terms are worked out in place: a million is a matter of memory.
    """
    cap, least, span = normalisation(utility, clip_bound)
    scores: np.ndarray = np.minimum(utility, cap)
    scores -= least
    scores /= span
    age = 0.1 * np.log(server_round) / np.maximum(last_round, 1)
    scores += np.sqrt(age, out=age)
    return np.maximum(scores, 0.0, out=scores)


def discount(duration_s: np.ndarray, preferred_s: float, penalty: float) -> np.ndarray:
    """Return (T / duration)^penalty where that is slower than T, else 1: never more than 1."""
    factor: np.ndarray = np.maximum(duration_s, _SHORTEST_S)
    with np.errstate(invalid="ignore"):  # infinity over itself, which is not slower
        np.divide(preferred_s, factor, out=factor)
    factor **= penalty
    np.copyto(factor, 1.0, where=~(duration_s > preferred_s))  # nor is an unknown duration
    return factor


def exploitable(
    scores: np.ndarray, exploit: int, cut_off_util: float, rng: np.random.Generator
) -> np.ndarray:
    """Return positions of scores from the cut-off up, and of more than ten times those wanted.

    The cut-off is a share of the best score beyond those wanted; without one, all are taken.
    """
    if exploit == 0 or exploit >= len(scores):
        return np.arange(len(scores) if exploit else 0)
    border = len(scores) - 1 - exploit
    good = np.flatnonzero(scores >= cut_off_util * np.partition(scores, border)[border])
    return good if len(good) > 10 * exploit else top(scores, 10 * exploit + 1, rng)
