"""Only the fast ones: a control, for what is won by leaving the slow part of a fleet out."""

from __future__ import annotations

import numpy as np

from strategies.selector import Cohort, Selector, State, View
from strategies.selectors.claims import predicted_s, usable_seconds
from strategies.selectors.draws import top


class FastShare(Selector):
    """Draws uniformly from the fastest share of the fleet, and from nobody else.

    Fast is who finishes soonest by the cost model on what clients claim, with a cold cache, so the
    share stays the same for the whole run. Only where too few of it are idle the next fastest fill
    up. It looks neither at what a client brings nor at its cache: a selector that is no better than
    this wins by excluding clients.

    Source: ours, as a control.

    Args:
        share: of the clients that are known, more than 0 and at most 1.

    Raises:
        ValueError: a share out of these bounds.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}, not more than 0 and at most 1")
        self.share = share

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Draw from the fast candidates, and fill up in the order of speed."""
        known = view.fleet.known
        seconds = usable_seconds(predicted_s(view, None, np.zeros(len(known))))
        seconds = np.where(known & np.isfinite(seconds), seconds, np.inf)
        fast = np.zeros(len(known), dtype=np.bool_)
        fast[top(-seconds, int(np.ceil(self.share * known.sum())), rng)] = True

        within = np.flatnonzero(fast[candidates])
        count = min(view.count, len(candidates))
        drawn = rng.choice(within, min(count, len(within)), replace=False, shuffle=False)
        slower = np.flatnonzero(~fast[candidates])
        filled = slower[top(-seconds[candidates[slower]], count - len(drawn), rng)]
        picked = {"fast": drawn, "next fastest": filled}
        details = {"predicted_s": seconds[candidates]}
        return Cohort.of(view, candidates, picked, within, details), dict(state)
