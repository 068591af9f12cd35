"""The sampler: it fixes all accesses of a participation before the first one."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class Sampler(ABC):
    """Chooses which samples of one client a participation trains on, and in which order.

    What it must remember from one participation to the next goes through `columns` and `restore`.

    Attributes:
        uses_resident: whether `order` may look at `resident`. A class says False beside an `order`
            that does not, so that a trace of what it ordered holds for any other cache as well.
        samples: n, how many samples the client has.
        batch_size: B, how many of the accesses make one training step.
    """

    uses_resident = True

    def __init_subclass__(cls) -> None:
        """Believe no class about an `order` that another one has replaced."""
        super().__init_subclass__()
        if "order" in vars(cls) and "uses_resident" not in vars(cls):
            cls.uses_resident = True

    def __init__(self, samples: int, batch_size: int) -> None:
        self.samples = samples
        self.batch_size = batch_size

    @property
    def learns(self) -> bool:
        """Whether it takes feedback."""
        return type(self).feedback is not Sampler.feedback

    @abstractmethod
    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        """Return the samples to access, in order.

        Args:
            resident: bool [n], which of the client's n samples are cached now.
            accesses: how many accesses the participation makes, S x B.
            rng: this participation's generator.

        Returns:
            int64 [accesses], each in 0..n-1.
        """

    def checked_order(
        self, resident: np.ndarray, accesses: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the order, if it is one.

        Raises:
            ValueError: `order` gave something else; a mistake in it must not pass as less work.
        """
        order = np.asarray(self.order(resident, accesses, rng))
        who = type(self).__name__
        if order.shape != (accesses,) or not np.issubdtype(order.dtype, np.integer):
            raise ValueError(
                f"sampler {who} gave {order.dtype} {order.shape}, not int64 ({accesses},)"
            )
        if not 0 <= order.min() <= order.max() < self.samples:
            raise ValueError(f"sampler {who} named a sample outside 0..{self.samples - 1}")
        return order.astype(np.int64, copy=False)

    def weights(self, order: np.ndarray) -> np.ndarray | None:
        """Return how much each access of the last order weighs in the loss of its step.

        A step's gradient is that of mean(weight * loss) over its batch.

        Args:
            order: int64 [m], what `order` has returned.

        Returns:
            float64 [m], finite and not negative, or None where all are 1.
        """
        del order
        return None

    def checked_weights(self, order: np.ndarray) -> np.ndarray | None:
        """Return the weights, if they are some.

        Raises:
            ValueError: `weights` gave something else.
        """
        given = self.weights(order)
        if given is None:
            return None
        weights = np.asarray(given)
        who = type(self).__name__
        if weights.shape != order.shape or not np.can_cast(weights.dtype, np.float64):
            raise ValueError(
                f"sampler {who} gave weights {weights.dtype} {weights.shape}, "
                f"not float64 {order.shape}"
            )
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"sampler {who} gave a weight that is negative or no finite number")
        return weights.astype(np.float64, copy=False)

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:  # noqa: B027 - optional
        """Learn the losses of a training step, float64[k], of the samples it trained, int64[k].

        They are as they come, without weights.
        """

    def columns(self) -> dict[str, np.ndarray]:
        """Return what to remember, as named arrays."""
        return {}

    def restore(self, columns: dict[str, np.ndarray]) -> None:  # noqa: B027 - optional
        """Take back what `columns` returned; an empty dictionary is the first participation."""
