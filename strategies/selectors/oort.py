"""Oort: statistical utility, discounted for slow clients (Lai et al., OSDI 2021)."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from fedio.errors import InputError
from fedio.plugins import unknown
from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import usable_utility
from strategies.selectors.draws import draw, top
from strategies.selectors.oort_parameters import PRESETS, OortParameters
from strategies.selectors.oort_scores import exploitable, scored


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
        clients = scored(view, self._without_excluded(view, candidates, rng), threshold, p)
        score, old, new = clients.score, clients.tried, clients.untried

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
            clients.pool,
            {"exploit": exploited, "explore": explored},
            np.concatenate([best, window]),
            {"score": score, "utility": clients.utility, "assumed_s": clients.duration_s},
        )
        return cohort, {
            "exploration": np.array(exploration),
            "round_threshold": np.array(threshold),
            "round": np.array(view.round),
            "exploited": np.sort(clients.pool[exploited]),
            "exploited_utility": history,
        }

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
