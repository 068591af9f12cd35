"""Files read past the page cache, so that a second read takes as long as the first."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import OriginError
from storage.filesystem import file_system

_LARGEST_READ_BYTES = 8 << 20
_IN_MEMORY = frozenset({"ramfs", "tmpfs"})
"""File systems that are nothing but page cache."""


class _Scratch(threading.local):
    """Memory of each thread that begins with a page, which is where the system can read to."""

    def __init__(self) -> None:
        self._pages = memoryview(b"")

    def pages(self, size_bytes: int) -> memoryview:
        """Whole pages for so many bytes; it grows by doubling, and stays."""
        size_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if size_bytes > len(self._pages):
            self._pages = memoryview(mmap.mmap(-1, max(size_bytes, 2 * len(self._pages))))
        return self._pages[:size_bytes]


_scratch = _Scratch()


def read_direct(path: Path, view: memoryview) -> None:
    """Fill `view` with a file of exactly that length, from the disk and not from the page cache.

    It opens the file with O_DIRECT (open(2)). Where the file system refuses that, it asks the
    system to drop the file's pages before and after a normal read (posix_fadvise(2)), which drops
    no page that is still to be written.

    Raises:
        OriginError: the file cannot be read, or has another length.
    """
    try:
        try:
            with _opened(path, os.O_DIRECT) as file:
                got_bytes = _fill(view, file)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            with _opened(path, 0) as file:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                got_bytes = _fill(view, file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise OriginError(f"cannot read {path}: {error.strerror}") from error
    if got_bytes != len(view):
        raise OriginError(f"{path} has changed its size since the data set was opened")


def direct_io(path: str | os.PathLike[str]) -> bool:
    """Whether reads of a file go past the page cache by O_DIRECT: not so in memory.

    Raises:
        OriginError: it cannot be read at all.
    """
    try:
        with _opened(Path(path), os.O_DIRECT) as file:
            os.preadv(file, [_scratch.pages(1)], 0)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise OriginError(f"cannot read {path}: {error.strerror}") from error
    return file_system(Path(path)) not in _IN_MEMORY


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | flags)
    try:
        yield file
    finally:
        os.close(file)


def _fill(view: memoryview, file: int) -> int:
    """Copy a file of that length into `view`; returns its length, or where it came to an end."""
    length = os.fstat(file).st_size
    if length != len(view):
        return length
    got_bytes = 0
    while got_bytes < length:
        pages = _scratch.pages(min(length - got_bytes, _LARGEST_READ_BYTES))
        count = min(os.preadv(file, [pages], got_bytes), length - got_bytes)
        if not count:
            break
        view[got_bytes : got_bytes + count] = pages[:count]
        got_bytes += count
    return got_bytes
