"""The file that saved states go to: each is appended, and the last whole one counts.

An append is one short write, where replacing a file would have the file system make, rename and
forget one. A write that a crash cut short, or bytes that are no longer what they were, leave the
states before them in force, and the next append takes their place.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from storage.errors import CorruptCache

_log = logging.getLogger(__name__)

LIMIT_BYTES = 1 << 20
"""A file that would grow beyond this is replaced by one with the three newest states alone."""

_RECORD = struct.Struct(">4sII")
_MAGIC = b"idx\n"


class IndexFile:
    """Saved states, one behind the other: magic, length and checksum, then the bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end: int | None = None

    def append(self, state: bytes | memoryview, *, durable: bool) -> None:
        """Add a state.

        Args:
            state: its bytes.
            durable: wait for the disk.

        Raises:
            OSError: the file took it not or not whole; the state before it stays in force.
        """
        record = _record(state)
        if self._end is None:
            self.states()
        end = self._end or 0
        if end and end + len(record) > LIMIT_BYTES:
            self._replace([*self.states()[:2][::-1], state], durable=durable)
        else:
            _write(self.path, record, end, durable=durable)
            self._end = end + len(record)

    def states(self) -> list[memoryview]:
        """Return all states up to the first that is not whole, the newest first, not copied.

        There are none when there is no file.

        Raises:
            CorruptCache: not even the first is whole.
        """
        self._end = 0
        if not self.path.exists():
            return []
        data = _read(self.path)
        at = 0
        found: list[memoryview] = []
        while at + _RECORD.size <= len(data):
            magic, length, checksum = _RECORD.unpack_from(data, at)
            begin = at + _RECORD.size
            state = data[begin : begin + length]
            if magic != _MAGIC or len(state) < length or _checksum(state) != checksum:
                break
            found.append(state)
            at = begin + length
        if not found:
            raise CorruptCache(f"{self.path} is damaged: it holds no whole state")
        if at < len(data):
            _log.warning("%s: what follows the state before is not whole, and left out", self.path)
        self._end = at
        return found[::-1]

    def keep(self, states: Sequence[bytes | memoryview]) -> None:
        """Keep these states alone, the newest first.

        Raises:
            OSError: the file stays as it is.
        """
        self._replace(states[::-1], durable=True)

    def version(self) -> object:
        """Return what every change of the file changes."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size

    def remove(self) -> None:
        """Forget all states."""
        self.path.unlink(missing_ok=True)
        self._end = 0

    def _replace(self, states: Sequence[bytes | memoryview], *, durable: bool) -> None:
        fresh = self.path.with_name(f"{self.path.name}.new")
        records = b"".join(map(_record, states))
        _write(fresh, records, 0, durable=durable)
        fresh.replace(self.path)
        self._end = len(records)


def _record(state: bytes | memoryview) -> bytes:
    return b"".join((_RECORD.pack(_MAGIC, len(state), _checksum(state)), state))


def _checksum(state: bytes | memoryview) -> int:
    """Not 0 for an empty state: zeros are what a disk has where nothing was written."""
    return zlib.crc32(state, zlib.crc32(_MAGIC))


def _read(path: Path) -> memoryview:
    """The bytes of a file, in memory that goes back to the system when nobody looks at it."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = memoryview(mmap.mmap(-1, max(1, size)))
        read = 0
        while count := file.readinto(data[read:size]):
            read += count
        return data[:read]


def _write(path: Path, data: bytes, at: int, *, durable: bool) -> None:
    """Write behind the first `at` bytes of a file and end it there; on failure it ends at `at`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], at + written)
        os.ftruncate(descriptor, at + len(data))
        if durable:
            os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, at)
        raise
    finally:
        os.close(descriptor)
