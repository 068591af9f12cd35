"""Every feasible client is as likely as any other."""

from __future__ import annotations

import numpy as np

from strategies.selector import Cohort, Selector, State, View


class Uniform(Selector):
    """Draws uniformly without replacement, as FedAvg does (McMahan et al., AISTATS 2017)."""

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Draw from all candidates."""
        everyone = np.arange(len(candidates))
        drawn = rng.choice(everyone, min(view.count, len(candidates)), replace=False, shuffle=False)
        return Cohort.of(view, candidates, {"drawn": drawn}, everyone, {}), dict(state)
