"""What a cache needs from the place where its payloads lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np


class Store(ABC):
    """Payloads by sample number, and one saved index beside them.

    A store knows neither budget nor policy. It gives back what was put, or says that it cannot.

    Attributes:
        transaction_pages: how many pages (`layout.whole_pages`, and one for each sample put or
            removed) one `write` should touch at most; a single larger sample is allowed.
        rebuilt_reason: why the store had to start empty; "" when it did not.
    """

    transaction_pages: int
    rebuilt_reason: str = ""

    @abstractmethod
    def get(self, samples: np.ndarray, lengths: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        """Copy payloads back to back into `buffer` (uint8[m]) from 0, leaving out the bad ones.

        Args:
            samples: int64[k].
            lengths: the length that each must have, int64[k].
            buffer: long enough for all of them.

        Returns:
            Which are there, whole and as they were put, bool[k].

        Raises:
            CorruptCache: the store as a whole does not read back.
        """

    @abstractmethod
    def write(
        self,
        removed: Sequence[int],
        samples: Sequence[int],
        buffer: np.ndarray,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Remove samples (unknown ones are ignored) and put others, in one transaction.

        Raises:
            StoreFull: no sample was put; the removals may have been done.
            CorruptCache: the store as a whole does not read back.
        """

    @abstractmethod
    def present(self) -> tuple[np.ndarray, np.ndarray]:
        """The samples that are there, ascending, and the length of each, int64[k] twice."""

    @abstractmethod
    def clear(self) -> None:
        """Start empty, whatever state the data and the saved index are in."""

    @abstractmethod
    def save_index(self, index: bytes) -> None:
        """Keep an index: all data first, then the index, which replaces the old one at once."""

    @abstractmethod
    def load_index(self) -> bytes | None:
        """The index that was kept last; None when there is none."""

    @abstractmethod
    def version(self) -> object:
        """What changes with every write and save, by this process or another; comparable by ==."""

    @abstractmethod
    def share(self) -> Self:
        """Another handle on the same store."""

    @abstractmethod
    def close(self) -> None:
        """Give up this handle; twice does no harm."""
