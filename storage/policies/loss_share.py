"""Which samples are important by their last losses, settled from time to time."""

from __future__ import annotations

import numpy as np

# The importance of a sample that was never trained: above that of any other.
_UNTRAINED = float(np.finfo(np.float64).max)


class LossShare:
    """A share of the trained samples, those with the highest losses, and all that were not trained.

    Args:
        samples: how many there are.
        share: of the trained ones, 0 to 1; ties at the border are all in it.

    Attributes:
        losses: float64[n], the last ones; the highest number there is of who was not trained.
        scores: float64[n], the losses when it was settled last.
        important: bool[n], who was in the share then; at first everybody.
        flags: the same, n bytes: one at a time is read faster from these.
    """

    def __init__(self, samples: int, share: float) -> None:
        self._share = share
        self.losses = np.full(samples, _UNTRAINED)
        self.scores = self.losses.copy()
        self.flags = bytearray(b"\1" * samples)
        self.important = np.frombuffer(self.flags, np.bool_)

    def learn(self, samples: np.ndarray, losses: np.ndarray) -> int:
        """Keep losses, float64[k]; what is no finite number is the lowest. Returns how many are."""
        finite = np.isfinite(losses)
        self.losses[samples] = np.where(finite, losses, -np.inf)
        return len(losses) - int(np.count_nonzero(finite))

    def settle(self) -> None:
        """Let the losses count as they are now."""
        self.scores[:] = self.losses
        trained = self.losses[self.losses < _UNTRAINED]
        below = len(trained) - round(self._share * len(trained))
        border = np.partition(trained, below)[below] if below < len(trained) else _UNTRAINED
        self.important[:] = self.losses >= border
