"""Payloads in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from storage.index_file import IndexFile
from storage.layout import Layout
from storage.store import Saved, Store

_KEPT_STATES = 3
_OF_ANOTHER_PROCESS = -1  # the mark of payloads that are gone


class MemoryStore(Store):
    """Keeps payloads and the saved states for as long as the object lives.

    Where there is a file for them, saved states outlive it; their payloads have to be brought back.

    Args:
        path: that file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.lock = threading.RLock()
        self.wanted = Layout.for_budget(0)
        self._payloads: dict[int, bytes] = {}
        self._file = None if path is None else IndexFile(path)
        self._saved: list[Saved] | None = None if path else []
        self._changes = 0

    def get(
        self,
        samples: np.ndarray,
        lengths: np.ndarray,
        checksums: np.ndarray,  # noqa: ARG002 - memory is trusted
        buffer: np.ndarray,
    ) -> np.ndarray:
        """Copy payloads back to back; see `Store.get`."""
        view = buffer.data
        found = np.ones(len(samples), dtype=bool)
        at = 0
        pairs = zip(samples.tolist(), lengths.tolist(), strict=True)
        for row, (sample, length) in enumerate(pairs):
            payload = self._payloads.get(sample)
            if payload is None or len(payload) != length:
                found[row] = False
            else:
                view[at : at + length] = payload
                at += length
        return found

    def get_one(self, sample: int, length: int, checksum: int) -> bytes | None:  # noqa: ARG002
        """The payload of one sample."""
        payload = self._payloads.get(sample)
        return payload if payload is not None and len(payload) == length else None

    def remove(self, samples: Sequence[int]) -> None:
        """Forget samples."""
        self._changes += 1
        for sample in samples:
            self._payloads.pop(sample, None)

    def put(
        self,
        samples: Sequence[int],
        buffer: np.ndarray,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Keep payloads; see `Store.put`."""
        self._changes += 1
        view = buffer.data
        for sample, start, length in zip(samples, starts, lengths, strict=True):
            self._payloads[sample] = bytes(view[start : start + length])

    def present(self) -> np.ndarray:
        """The samples that are there."""
        return np.array(sorted(self._payloads), np.int64)

    def clear(self) -> None:
        """Forget everything."""
        self._changes += 1
        self._payloads.clear()
        self._saved = []
        if self._file is not None:
            self._file.remove()

    def save(self, index: bytes) -> None:
        """Keep a state and the two before it."""
        self._changes += 1
        self._saved = [Saved(index, self._changes), *self.saved()][:_KEPT_STATES]
        if self._file is not None:
            self._file.append(index, durable=False)

    def saved(self) -> list[Saved]:
        """The states that are kept, the newest first."""
        if self._saved is None:
            states = [] if self._file is None else self._file.states()
            self._saved = [Saved(state, _OF_ANOTHER_PROCESS) for state in states[:_KEPT_STATES]]
        return list(self._saved)

    def adopt(self, saved: Saved) -> bool:
        """Forget the states saved after this one; the payloads are what they are."""
        kept = self.saved()
        newer = next(at for at, state in enumerate(kept) if state is saved)
        self._saved = kept[newer:]
        if newer and self._file is not None:
            self._file.keep([bytes(state.index) for state in self._saved])
        return saved.mark == self._changes

    def fit(self, samples: np.ndarray, lengths: np.ndarray, checksums: np.ndarray) -> bool:  # noqa: ARG002
        """Memory takes what it is given."""
        return False

    def compact(self) -> int:
        """Nothing is kept in vain."""
        return 0

    def version(self) -> object:
        """How often it was changed or saved."""
        return self._changes

    def claim(self) -> bool:
        """No other process can reach it."""
        return False

    def release_claim(self) -> None:
        """No other process can reach it."""

    def share(self) -> Self:
        """The object itself: there is nothing to count."""
        return self

    def close(self) -> None:
        """Nothing to give up: whoever holds the object can open the cache again."""
