"""Every feasible client is as likely as any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strategies.selector import Cohort, Selector, State, View


class Uniform(Selector):
    """Draws uniformly without replacement, as FedAvg does (McMahan et al., AISTATS 2017).

    Where clients stage it draws one round ahead, from all that are known, those at work included:
    they will be idle by then. Those of them that are not idle when the round comes are replaced by
    others, drawn then.
    """

    names_next = True

    def initial_state(self, clients: int) -> State:  # noqa: ARG002
        """Nobody is named yet."""
        return {"named": np.zeros(0, dtype=np.int64)}

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Take those named a round ago, fill up from all other candidates, and name the next."""
        idle = state["named"][view.feasible[state["named"]]]
        everyone, named = np.arange(len(candidates)), np.searchsorted(candidates, idle)
        if len(named) > view.count:
            named = rng.choice(named, view.count, replace=False, shuffle=False)
        others = np.delete(everyone, named) if len(named) else everyone
        missing = min(view.count - len(named), len(others))
        drawn = rng.choice(others, missing, replace=False, shuffle=False)
        cohort = Cohort.of(view, candidates, {"named": named, "drawn": drawn}, everyone, {})
        if not view.staging:
            return cohort, dict(state)
        known = np.flatnonzero(view.fleet.known)
        count = min(view.count, len(known))
        ahead = np.sort(rng.choice(known, count, replace=False, shuffle=False))
        return replace(cohort, next=ahead), {"named": ahead}
