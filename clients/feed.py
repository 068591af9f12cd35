"""What a training is fed with: batches on the accelerator, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from clients.accelerator import Accelerator

Batch = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Images uint8 [B, C, H, W], labels int64 [B], and the weights of their losses, float64 [B], or
None where all are 1."""


class Feed:
    """Moves each batch to the accelerator when it is asked for.

    Attributes:
        stall_s: wall-clock seconds of waiting for batches, so far.
        copy_s: of moving them.
        came_s: when the last one came, by the clock.
    """

    def __init__(
        self, batches: Iterable[Batch], accelerator: Accelerator, now_s: Callable[[], float]
    ) -> None:
        """Get ready.

        Args:
            batches: the memory of one may be used again when the next is asked for.
            accelerator: where they are wanted.
            now_s: the clock.
        """
        self._source = iter(batches)
        self._accelerator = accelerator
        self._now_s = now_s
        self.stall_s = self.copy_s = self.came_s = 0.0

    def next(self) -> list[torch.Tensor] | None:
        """Return images, labels and, if there are any, weights; None after the last batch.

        On the CPU the tensors are views of the batch: let go of them before the next call.
        """
        now_s = self._now_s
        asked_s = now_s()
        self._accelerator.wait()
        free_s = now_s()
        batch = next(self._source, None)
        self.came_s = now_s()
        self.copy_s += free_s - asked_s
        self.stall_s += self.came_s - free_s
        if batch is None:
            return None
        tensors = self._accelerator.copy(*[array for array in batch if array is not None])
        self.copy_s += now_s() - self.came_s
        return tensors
