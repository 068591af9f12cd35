"""What a cache needs from the place where its payloads lie."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from storage.layout import Layout


@dataclass(frozen=True, slots=True)
class Saved:
    """A state that a store has kept.

    Attributes:
        index: the cache's part, as it was given to `Store.save`.
        mark: of the data at that time.
        record: how the store finds it again.
    """

    index: bytes | memoryview
    mark: object
    record: bytes | memoryview = b""


class Store(ABC):
    """Payloads by sample number, and the states of the cache that were saved beside them.

    A store knows neither budget nor policy. It gives back what was put, or says that it cannot.

    Attributes:
        lock: held by whoever calls any of the methods below.
        seed: of the checksums of its payloads (`storage.checksum`).
        rebuilt_reason: why the store had to start empty; "" when it did not.
        writable: whether this process may change it.
        wanted: the layout that `fit` brings about.
    """

    lock: threading.RLock
    seed: int = 0
    rebuilt_reason: str = ""
    writable: bool = True
    wanted: Layout

    @abstractmethod
    def get(
        self, samples: np.ndarray, lengths: np.ndarray, checksums: np.ndarray, buffer: np.ndarray
    ) -> np.ndarray:
        """Copy payloads back to back into `buffer` (uint8[m]) from 0, leaving out the bad ones.

        Args:
            samples: int64[k].
            lengths: the length that each has, int64[k].
            checksums: of each, uint64[k].
            buffer: long enough for all of them.

        Returns:
            Which are there and right, bool[k].

        Raises:
            CorruptCache: the store as a whole does not read back.
        """

    @abstractmethod
    def get_one(self, sample: int, length: int, checksum: int) -> bytes | None:
        """The payload of one sample; None when it is not there or not right."""

    @abstractmethod
    def remove(self, samples: Sequence[int]) -> None:
        """Forget samples, unknown ones ignored. Never fails for lack of room."""

    @abstractmethod
    def put(
        self,
        samples: Sequence[int],
        buffer: np.ndarray,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Keep payloads of samples that are not there, each once.

        Raises:
            StoreFull: there is no room; none of them is there then.
            CorruptCache: the store as a whole does not read back.
        """

    @abstractmethod
    def present(self) -> np.ndarray:
        """The samples that are there, ascending, int64[k]."""

    @abstractmethod
    def clear(self) -> None:
        """Start empty, whatever state the data and the saved states are in."""

    @abstractmethod
    def save(self, index: bytes) -> None:
        """Keep a state: all payloads first, then the index, beside the state kept before."""

    @abstractmethod
    def saved(self) -> list[Saved]:
        """The states that are kept, the newest first.

        Raises:
            CorruptCache: they do not read back.
        """

    @abstractmethod
    def adopt(self, saved: Saved) -> bool:
        """Go back to a saved state as far as payloads are still there.

        Returns:
            Whether the data are untouched since, so that no payload has to be looked at.
        """

    @abstractmethod
    def fit(self, samples: np.ndarray, lengths: np.ndarray, checksums: np.ndarray) -> bool:
        """Take the layout on that is wanted; what the store takes is within that when it returns.

        Args:
            samples: what is there, int64[k], and fits into that layout.
            lengths: of each, int64[k].
            checksums: of each, uint64[k].

        Returns:
            Whether places have changed, so that states saved before are worth nothing now.
        """

    @abstractmethod
    def compact(self) -> int:
        """Give space back that no sample needs, places may change; returns how many bytes."""

    @abstractmethod
    def version(self) -> object:
        """What changes with every change of data or states, by any process; comparable by ==."""

    @abstractmethod
    def claim(self) -> bool:
        """Keep other processes from changing the store until `release_claim`; cheap when held.

        Returns:
            Whether it was not held before.

        Raises:
            NotAllowed: another process is changing it, or this one may only read.
        """

    @abstractmethod
    def release_claim(self) -> None:
        """Let other processes change the store."""

    @abstractmethod
    def share(self) -> Self:
        """Another handle on the same store."""

    @abstractmethod
    def close(self) -> None:
        """Give up this handle; twice does no harm."""
