"""Payloads in memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Self

import numpy as np

from storage.store import Store


class MemoryStore(Store):
    """Keeps payloads and the saved index for as long as the object lives."""

    transaction_pages = sys.maxsize

    def __init__(self) -> None:
        self._payloads: dict[int, bytes] = {}
        self._index: bytes | None = None
        self._changes = 0

    def get(self, samples: np.ndarray, lengths: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        """Copy payloads back to back; see `Store.get`."""
        view = buffer.data
        found = np.zeros(len(samples), dtype=bool)
        at = 0
        pairs = zip(samples.tolist(), lengths.tolist(), strict=True)
        for position, (sample, length) in enumerate(pairs):
            payload = self._payloads.get(sample)
            if payload is not None and len(payload) == length:
                view[at : at + length] = payload
                at += length
                found[position] = True
        return found

    def write(
        self,
        removed: Sequence[int],
        samples: Sequence[int],
        buffer: np.ndarray,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Remove samples and put others; see `Store.write`."""
        self._changes += 1
        view = buffer.data
        for sample in removed:
            self._payloads.pop(sample, None)
        for sample, start, length in zip(samples, starts, lengths, strict=True):
            self._payloads[sample] = bytes(view[start : start + length])

    def present(self) -> tuple[np.ndarray, np.ndarray]:
        """The samples that are there and their lengths."""
        samples = sorted(self._payloads)
        lengths = [len(self._payloads[sample]) for sample in samples]
        return np.array(samples, np.int64), np.array(lengths, np.int64)

    def clear(self) -> None:
        """Forget everything."""
        self._payloads.clear()
        self._index = None

    def save_index(self, index: bytes) -> None:
        """Keep an index in the object."""
        self._index = index
        self._changes += 1

    def load_index(self) -> bytes | None:
        """The index that was kept last."""
        return self._index

    def version(self) -> object:
        """How often it was written or saved."""
        return self._changes

    def share(self) -> Self:
        """The object itself: there is nothing to count."""
        return self

    def close(self) -> None:
        """Nothing to give up: whoever holds the object can open the cache again."""
