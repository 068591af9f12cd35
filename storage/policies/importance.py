"""Importance: what keeps a high loss rank stays (SHADE)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

import numpy as np

from storage.policies.ranks import UNSCORED, loss_ranks
from storage.policy import ScorePolicy

# A score holds the rank above the uses; both stay exact in a float.
_RANK = 2.0**32

_SETTLED_AT_ONCE = 64
"""So many calls change scores together, unless somebody has to leave before."""


class Importance(ScorePolicy):
    """Keeps samples whose losses rank high in their batches, then those used more often.

    A sample has importance w = ln(rank + 10), 1.0 before it was ever trained, and f, the number of
    its uses. The victim is the least (w, f), ties by the lowest number; an incoming sample comes
    in when its (w, f) is greater. Samples that are not cached keep theirs (SHADE's ghost cache).

    A use is an access, once each. The rank is that of the last training step, and of a sample that
    was in it more than once the last position counts. A loss that is no finite number is counted,
    and its sample is unscored again.

    Source: SHADE (Khan et al., FAST 2023) and FedCaSe's artifact. Departures: scores go
    to the samples that were trained (the public SHADE mixes the order drawn with the order in
    which hits are served first); f counts each use once, where the artifact adds 1 to every sample
    seen so far at each step; a sample without a score competes with the start value, where the
    artifact lets none in once the cache is full.

    Attributes:
        ranks: int64[n], `UNSCORED` before the first training step. They order as w does.
        uses: int64[n].
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.ranks = np.full(samples, UNSCORED, np.int64)
        self.uses = np.zeros(samples, np.int64)
        self.scores[:] = UNSCORED * _RANK
        self._changed: list[np.ndarray] = []  # samples whose scores are not what they should be

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        """Count the uses; a miss is one too."""
        np.add.at(self.uses, samples, 1)
        self._change(samples)

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Rank the losses of a training step."""
        self.ranks[samples] = ranks = loss_ranks(losses)
        self.quarantined += int(np.count_nonzero(ranks < 0))
        self._change(samples)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the least (w, f) first, as far as the incoming sample's is greater."""
        self._settle()
        scores = self.scores.item
        with closing(super().victims(incoming)) as order:
            for victim in order:
                if incoming not in {None, victim} and scores(incoming) <= scores(victim):
                    return
                yield victim

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through the order once for all; a subclass says so itself."""
        if type(self) is not Importance:
            return super().exchange(incoming)
        self._settle()
        return self._queue.exchange(incoming, self.scores[incoming].tolist())

    def columns(self) -> dict[str, np.ndarray]:
        """Ranks, uses and who is cached; scores follow from them."""
        return {
            "ranks": self.ranks,
            "uses": self.uses,
            "cached": self._cached,
            "quarantined": np.array(self.quarantined),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self.ranks[:] = columns["ranks"]
        self.uses[:] = columns["uses"]
        everybody = np.arange(self.samples)
        super().restore(columns | {"scores": self._scores_of(everybody)})

    def _scores_of(self, samples: np.ndarray) -> np.ndarray:
        scores: np.ndarray = self.ranks[samples] * _RANK + self.uses[samples]
        return scores

    def _change(self, samples: np.ndarray) -> None:
        self._changed.append(samples.copy())
        if len(self._changed) == _SETTLED_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        if self._changed:
            samples = np.concatenate(self._changed)
            self._changed.clear()
            self.scores[samples] = self._scores_of(samples)
            self._queue.put(samples)
