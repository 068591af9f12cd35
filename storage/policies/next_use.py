"""Keeps what the known order of a participation needs soonest."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

import numpy as np

from storage.policy import ScorePolicy

# The score of what the plan does not need any more: below any position in it.
_NEVER = -(2.0**53)


class NextUse(ScorePolicy):
    """Evicts what the plan needs last, and lets in only what it needs sooner than that.

    A participation's order is fixed before it starts, so within one this is Belady's rule with
    bypass. Nothing is known of later ones: what the plan needs no more leaves first, ties by the
    lowest number, and is not exchanged for more of its kind, for that would only be writing. So
    without a plan the cache fills once and stays as it is.

    The score of a sample is minus the position of its next use in the plan. Each access takes the
    next use of its sample, whether or not it comes where the plan has it; one that the plan does
    not have changes nothing.

    Source: clairvoyance from the seed is NoPFS's (Dryden et al., SC 2021); the rule is MIN (Belady
    1966) with bypass.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.scores[:] = _NEVER
        self._order = self._next = np.empty(0, np.int64)
        self._cursor = 0  # where in the plan the next access should be

    def plan(self, order: np.ndarray) -> None:
        """Take a new plan; of the one before nothing is left."""
        self._follow(order.copy(), 0)
        self.scores[:] = _NEVER
        positions = np.arange(len(order))[::-1]
        self.scores[order[::-1]] = -positions  # of a repeated sample the first counts
        self._queue.clear()

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        """Turn to the uses after these."""
        first, self._cursor = self._cursor, self._cursor + len(samples)
        if np.array_equal(self._order[first : self._cursor], samples):
            # Of a repeated sample the last counts.
            self.scores[samples] = self._scores_of(self._next[first : self._cursor])
        else:
            for sample in samples.tolist():
                score = self.scores.item(sample)
                if score > _NEVER:
                    at = int(-score)
                    self.scores[sample] = self._scores_of(self._next[at : at + 1]).item()
                    first = at + 1
            self._cursor = first
        self._queue.put(samples)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield what is needed last first, as long as the incoming one is needed sooner."""
        claim = np.inf if incoming is None else self.scores.item(incoming)
        with closing(super().victims(incoming)) as order:
            for victim in order:
                if claim <= self.scores.item(victim):
                    return
                yield victim

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through the order once for all; a subclass says so itself."""
        if type(self) is not NextUse:
            return super().exchange(incoming)
        return self._queue.exchange(incoming, self.scores[incoming].tolist())

    def columns(self) -> dict[str, np.ndarray]:
        """Scores, who is cached, and the plan as long as any of it lies ahead."""
        is_over = not np.count_nonzero(self.scores > _NEVER)
        order = self._order[:0] if is_over else self._order
        return super().columns() | {"order": order, "cursor": np.array(self._cursor)}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        super().restore(columns)
        self._follow(columns["order"], int(columns["cursor"]))

    def _follow(self, order: np.ndarray, cursor: int) -> None:
        """Find the next use after each position of an order; its length where there is none."""
        self._order, self._cursor = order, cursor
        self._next = np.full(len(order), len(order))
        by_sample = np.argsort(order, kind="stable")
        again = np.flatnonzero(np.diff(order[by_sample]) == 0)
        self._next[by_sample[again]] = by_sample[again + 1]

    def _scores_of(self, positions: np.ndarray) -> np.ndarray:
        return np.where(positions < len(self._order), -positions, _NEVER)
