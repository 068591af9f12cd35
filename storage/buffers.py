"""A fixed pool of equal buffers, so that reading ahead takes no memory once it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from storage.arguments import check_buffer
from storage.errors import NoBuffer

_PAGE_BYTES = 4096


def touched(size_bytes: int) -> np.ndarray:
    """Memory whose pages are all there from the start, uint8[size_bytes]."""
    return np.full(size_bytes, 0, np.uint8)


class BufferPool:
    """Lends `count` buffers of `buffer_bytes` each, which begin with a page, to any thread.

    All lie in one slab, taken at the start (10Cache, SoCC 2025: one slab per device, carved into
    buffers with a list of the free ones). What is in a buffer is what its last user left.

    Attributes:
        count: how many there are.
        buffer_bytes: what each holds.
        closed: whether nothing is lent any more.
        changed: its lock, and told when a buffer comes back or the pool closes.
    """

    def __init__(
        self, count: int, buffer_bytes: int, allocate: Callable[[int], np.ndarray] = touched
    ) -> None:
        """Take the slab.

        Args:
            count: of buffers, at least 1.
            buffer_bytes: of each.
            allocate: gives the slab, uint8[m], for its m bytes; pinned memory, for example.

        Raises:
            ValueError: no buffer, a negative size, or a slab of another kind or length.
        """
        if count < 1 or buffer_bytes < 0:
            raise ValueError("a pool needs at least one buffer, of no negative size")
        self.count, self.buffer_bytes, self.closed = count, buffer_bytes, False
        self.changed = threading.Condition()
        row_bytes = -(-buffer_bytes // _PAGE_BYTES) * _PAGE_BYTES
        need_bytes = count * row_bytes + _PAGE_BYTES
        slab = allocate(need_bytes)
        check_buffer(slab, writable=True)
        if len(slab) < need_bytes:
            raise ValueError(f"the slab has {len(slab)} bytes, {need_bytes} are needed")
        first = -slab.ctypes.data % _PAGE_BYTES
        self._rows = slab[first : first + count * row_bytes].reshape(count, row_bytes)
        self._free = list(range(count))
        # By identity: a new array each time, so that one given back twice is known for it.
        self._lent: dict[int, tuple[int, np.ndarray]] = {}

    @property
    def free(self) -> int:
        """How many are not lent."""
        return len(self._free)

    def take(self, timeout_s: float | None = None) -> np.ndarray:
        """Borrow a buffer, uint8[buffer_bytes], as soon as one is free.

        Raises:
            NoBuffer: none came free in that time, or the pool is closed.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._free or self.closed, timeout_s)
            if self.closed:
                raise NoBuffer("the pool of buffers is closed")
            if not self._free:
                raise NoBuffer(f"none of {self.count} buffers came free in {timeout_s:g} s")
            row = self._free.pop()
            buffer: np.ndarray = self._rows[row, : self.buffer_bytes]
            self._lent[id(buffer)] = row, buffer
            return buffer

    def give(self, buffer: np.ndarray) -> None:
        """Give a buffer back: the very array that `take` returned; a closed pool takes it too.

        Raises:
            ValueError: it is not lent.
        """
        with self.changed:
            row, _ = self._lent.pop(id(buffer), (-1, None))
            if row < 0:
                raise ValueError("this buffer is not lent: it was given back, or is from elsewhere")
            self._free.append(row)
            self.changed.notify_all()

    def close(self) -> None:
        """Lend nothing any more; whoever waits for a buffer gets an error."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
