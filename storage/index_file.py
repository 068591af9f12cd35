"""The file that saved indexes go to: each is appended, and the last whole one counts.

An append is one short write, where replacing a file would have the file system make, rename and
forget one. A write that a crash cut short leaves the index before it in force.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from storage.errors import CorruptCache

LIMIT_BYTES = 1 << 20
"""A file that would grow beyond this is replaced by one with the newest index alone."""

_RECORD = struct.Struct(">4sII")
_MAGIC = b"idx\n"


class IndexFile:
    """Saved indexes, one behind the other: magic, length and checksum, then the bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, index: bytes, *, durable: bool) -> None:
        """Add an index.

        Args:
            index: its bytes.
            durable: wait for the disk.

        Raises:
            OSError: the file took it not or not whole; the index before it stays in force.
        """
        record = _RECORD.pack(_MAGIC, len(index), zlib.crc32(index)) + index
        size = self.path.stat().st_size if self.path.exists() else 0
        if size and size + len(record) > LIMIT_BYTES:
            fresh = self.path.with_name(f"{self.path.name}.new")
            fresh.unlink(missing_ok=True)
            _write(fresh, record, 0, durable=durable)
            fresh.replace(self.path)
        else:
            _write(self.path, record, size, durable=durable)

    def last(self) -> bytes | None:
        """Return the newest whole index, and cut off what a crash left behind it; None: no file.

        Raises:
            CorruptCache: what is there was not written like this.
        """
        if not self.path.exists():
            return None
        data = self.path.read_bytes()
        at, found = 0, None
        while at < len(data):
            begin = at + _RECORD.size
            if begin > len(data):
                break
            magic, length, checksum = _RECORD.unpack_from(data, at)
            if magic != _MAGIC:
                raise CorruptCache(f"{self.path} is damaged")
            if begin + length > len(data):
                break
            found = begin, begin + length, checksum
            at = begin + length
        if found is None:
            raise CorruptCache(f"{self.path} holds no whole index")
        if at < len(data):
            os.truncate(self.path, at)
        begin, end, checksum = found
        index = data[begin:end]
        if zlib.crc32(index) != checksum:
            raise CorruptCache(f"{self.path} is damaged")
        return index

    def version(self) -> object:
        """Return what every append changes."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size

    def remove(self) -> None:
        """Forget all indexes."""
        self.path.unlink(missing_ok=True)


def _write(path: Path, record: bytes, at: int, *, durable: bool) -> None:
    """Write a record behind the first `at` bytes of a file, which ends there again on failure."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        written = 0
        while written < len(record):
            written += os.pwrite(descriptor, record[written:], at + written)
        if durable:
            os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, at)
        raise
    finally:
        os.close(descriptor)
