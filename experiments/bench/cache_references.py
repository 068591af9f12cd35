"""What the cache is measured beside: a bare py-lmdb loop, and diskcache."""

from __future__ import annotations

import struct
from collections import deque
from pathlib import Path
from typing import NamedTuple, Protocol

import diskcache
import lmdb
import numpy as np

_KEY = struct.Struct(">I")
_AUTOMATIC_CULL = 10
"""diskcache's own default: how many samples it may evict when one comes in."""


class Answered(Protocol):
    """What a read returns, as far as it is looked at here."""

    @property
    def served(self) -> np.ndarray:
        """Which requests were answered, bool[k]."""


class Cache(Protocol):
    """What is measured, with the meaning that it has in `storage.SampleCache`."""

    def get(self, sample: int) -> bytes | None:
        """Return one payload."""

    def read(self, samples: np.ndarray, buffer: np.ndarray) -> Answered:
        """Copy payloads back to back."""

    def put(self, sample: int, payload: bytes) -> bool:
        """Take one payload in."""

    def offer(
        self, samples: np.ndarray, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Take payloads in."""

    def close(self) -> None:
        """Close the files."""

    def __len__(self) -> int:
        """How many samples are in it."""


class Copied(NamedTuple):
    """Where payloads lie in the buffer, int64[k] twice, and which were there, bool[k]."""

    starts: np.ndarray
    lengths: np.ndarray
    served: np.ndarray


class PyLmdb:
    """What one writes first: a value per sample, a transaction per batch, the oldest ones leave.

    Without a policy, a checksum or a count of bytes; no payload is empty.
    """

    def __init__(self, path: Path, map_bytes: int, residents: int) -> None:
        """Open a file, or make it.

        Args:
            path: its folder.
            map_bytes: the largest size of the file.
            residents: how many samples it may hold.
        """
        self._handle = lmdb.open(
            str(path), map_size=map_bytes, sync=False, readahead=False, meminit=False
        )
        self._oldest: deque[int] = deque()
        self._residents = residents

    def get(self, sample: int) -> bytes | None:
        """Return one payload, from a transaction of its own."""
        with self._handle.begin() as reader:
            held: bytes | None = reader.get(_KEY.pack(sample))
        return held

    def read(self, samples: np.ndarray, buffer: np.ndarray) -> Copied:
        """Copy payloads back to back."""
        view, pack = buffer.data, _KEY.pack
        copied = [0] * len(samples)
        at = 0
        with self._handle.begin(buffers=True) as reader:
            get = reader.get
            for row, sample in enumerate(samples.tolist()):
                held = get(pack(sample))
                if held is not None:
                    end = at + len(held)
                    view[at:end] = held
                    copied[row] = end - at
                    at = end
        lengths = np.array(copied)
        return Copied(np.cumsum(lengths) - lengths, lengths, lengths > 0)

    def put(self, sample: int, payload: bytes) -> bool:
        """Take one payload in, in a transaction of its own."""
        with self._handle.begin(write=True) as writer:
            self._put(writer, sample, payload)
        return True

    def offer(
        self, samples: np.ndarray, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Take payloads in, except those that are there already, byte for byte."""
        view = buffer.data
        rows = zip(samples.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        with self._handle.begin(write=True) as writer:
            for sample, start, length in rows:
                self._put(writer, sample, view[start : start + length])
        return np.ones(len(samples), dtype=bool)

    def _put(self, writer: lmdb.Transaction, sample: int, payload: bytes | memoryview) -> None:
        key, oldest = _KEY.pack(sample), self._oldest
        held = writer.get(key)
        if held is None:
            if len(oldest) >= self._residents:
                writer.delete(_KEY.pack(oldest.popleft()))
            writer.put(key, payload)
            oldest.append(sample)
        # Two memoryviews would compare ten times slower than two copies.
        elif held != bytes(payload):
            writer.put(key, payload)

    def samples(self) -> np.ndarray:
        """Return which samples the file holds, ascending, uint32[k]."""
        with self._handle.begin() as reader:
            keys = b"".join(reader.cursor().iternext(values=False))
        return np.frombuffer(keys, ">u4")

    def close(self) -> None:
        """Close the file."""
        self._handle.close()

    def __len__(self) -> int:
        return len(self._oldest)


class DiskCache:
    """diskcache, least recently used, with a transaction per batch.

    Like the other two, it does not wait for the disk. It evicts by itself where a sample comes
    alone. Inside a transaction it would not see the room that it makes, and empty itself; so
    there its `cull` follows the transaction.
    """

    def __init__(self, path: Path, budget_bytes: int) -> None:
        """Open a cache in a folder, or make it."""
        self._cache = diskcache.Cache(
            str(path),
            size_limit=budget_bytes,
            eviction_policy="least-recently-used",
            statistics=0,
            sqlite_synchronous=0,
        )

    def get(self, sample: int) -> bytes | None:
        """Return one payload."""
        held: bytes | None = self._cache.get(sample)
        return held

    def read(self, samples: np.ndarray, buffer: np.ndarray) -> Copied:
        """Copy payloads back to back."""
        view, get = buffer.data, self._cache.get
        copied = [0] * len(samples)
        at = 0
        with self._cache.transact():
            for row, sample in enumerate(samples.tolist()):
                held = get(sample)
                if held is not None:
                    end = at + len(held)
                    view[at:end] = held
                    copied[row] = end - at
                    at = end
        lengths = np.array(copied)
        return Copied(np.cumsum(lengths) - lengths, lengths, lengths > 0)

    def put(self, sample: int, payload: bytes) -> bool:
        """Take one payload in, and let the cache evict by itself."""
        self._cache.reset("cull_limit", _AUTOMATIC_CULL, update=False)
        self._put(sample, payload)
        return True

    def offer(
        self, samples: np.ndarray, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Take payloads in, except those that are there already, byte for byte."""
        cache, view = self._cache, buffer.data
        cache.reset("cull_limit", 0, update=False)
        rows = zip(samples.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        with cache.transact():
            for sample, start, length in rows:
                self._put(sample, bytes(view[start : start + length]))
        cache.cull()
        return np.ones(len(samples), dtype=bool)

    def close(self) -> None:
        """Close the files."""
        self._cache.close()

    def __len__(self) -> int:
        return len(self._cache)

    def _put(self, sample: int, payload: bytes) -> None:
        if self._cache.get(sample) != payload:
            self._cache.set(sample, payload)
