"""A policy of one's own: the cache keeps the samples that the model finds hardest."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import numpy as np

from storage import ScorePolicy


class Hardest(ScorePolicy):
    """Keeps the samples with the greatest loss in their last training step.

    `ScorePolicy` evicts the lowest score first and stores the scores, so a policy says only what
    the score is, and when it changes. A sample scores 0 until its first step: it comes into a cache
    that has room, and into a full one once it proved harder than what is there.

    Uniform sampling asks for every sample equally often, so there it hits no more often than a
    cache that is filled once. It pays with a sampler that prefers hard samples, such as `SkipEasy`.
    """

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Uses change nothing: hard is what counts, not recent."""

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Score samples by the losses of their step; `rescore` sorts out what is no number."""
        self.rescore(samples, losses)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the easiest first, as long as the incoming sample is harder; then reject it."""
        with closing(super().victims(incoming)) as easiest_first:
            for sample in easiest_first:
                if incoming is not None and self.scores[incoming] <= self.scores[sample]:
                    return
                yield sample
