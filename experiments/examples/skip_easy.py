"""A sampler of one's own: a participation leaves out the samples that the model knows best."""

from __future__ import annotations

import numpy as np

from clients.samplers import Sampler


class SkipEasy(Sampler):
    """Draws as the uniform sampler does, from all but a share of the samples: the easiest.

    Easy is a small loss in the last training step. What was never trained is not easy, and what is
    left out keeps its loss while those of the others fall, so it comes back in time.

    Fewer distinct samples are read, and the same ones for longer, which suits a cache; but training
    no longer sees the client's own distribution. So judge it by accuracy as well as by bytes.

    Args:
        samples: n, how many samples the client has.
        batch_size: B.
        skip: the share to leave out, 0 to below 1.

    Raises:
        ValueError: no such share.
    """

    uses_resident = False

    def __init__(self, samples: int, batch_size: int, skip: float = 0.3) -> None:
        super().__init__(samples, batch_size)
        if not 0 <= skip < 1:
            raise ValueError(f"skip is a share from 0 to below 1, got {skip}")
        self._skipped_samples = int(skip * samples)
        self._losses = np.full(samples, np.inf)

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        """Return permutations of the harder samples, one after another, cut to `accesses`."""
        del resident  # a sampler may put cached samples first; this one does not
        by_loss = np.argsort(self._losses, kind="stable")
        trained = int(np.isfinite(self._losses).sum())
        kept = by_loss[min(self._skipped_samples, trained) :]
        passes = -(-accesses // len(kept))
        return np.concatenate([rng.permutation(kept) for _ in range(passes)])[:accesses]

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Remember the losses of a step; a sample whose loss is no number counts as never trained.

        Of a sample that is in the step twice the last position counts.
        """
        self._losses[samples] = np.where(np.isfinite(losses), losses, np.inf)

    def columns(self) -> dict[str, np.ndarray]:
        """Return what the next participation has to know; it is stored beside the cache."""
        return {"losses": self._losses}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take it back; there is nothing before the first participation."""
        if columns:
            self._losses = columns["losses"].copy()
