"""Opening LMDB on a folder: its lock file has its space, and what goes wrong has a type."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import lmdb

from storage.errors import CorruptCache, NotAllowed, StorageError, StoreFull
from storage.lmdb_file import check, create, last_transaction

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
LOCK_BYTES = 8192
"""LMDB's lock file with its 126 readers, in whole pages."""

SPARE_PAGES = 64
"""What a file that is too large may still grow by: without free pages nothing can be removed."""

_DAMAGE = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)


class TooManyFiles(NotAllowed):
    """The process has no descriptor left."""


def open_checked(
    folder: Path, map_bytes: int, page_bytes: int, *, read_only: bool, written: bool
) -> lmdb.Environment:
    """Open the LMDB file of a folder after making sure that this cannot end the process.

    Args:
        folder: where it lies.
        map_bytes: see `open_lmdb`.
        page_bytes: see `open_lmdb`.
        read_only: see `open_lmdb`.
        written: another process may be writing it at the moment.

    Raises:
        CorruptCache: it is damaged.
        NotAllowed, lmdb.Error, OSError: see `open_lmdb`.
    """
    data = folder / DATA_FILE
    # It may be larger than its budget, and its last pages never written, but not by so much.
    limit_bytes = max(map_bytes, 2 * data.stat().st_size)
    if not written:
        check(data, page_bytes, limit_bytes)
        return open_lmdb(folder, map_bytes, page_bytes, read_only=read_only)
    # LMDB leaves alone what a reader sees: the check goes on as long as one is reading.
    last_transaction(data, page_bytes)
    handle = open_lmdb(folder, map_bytes, page_bytes, read_only=read_only)
    try:
        with handle.begin():
            check(data, page_bytes, limit_bytes)
    except BaseException:
        handle.close()
        raise
    return handle


def open_lmdb(
    folder: Path, map_bytes: int, page_bytes: int, *, read_only: bool
) -> lmdb.Environment:
    """Open the LMDB file of a folder, which has been checked.

    Args:
        folder: where it lies.
        map_bytes: how large it may become; one that is larger already stays so.
        page_bytes: the size of its pages.
        read_only: nothing will be written.

    Raises:
        NotAllowed: this LMDB takes no files with pages of `page_bytes`.
        lmdb.Error: LMDB refuses.
        OSError: the lock file cannot be made.
    """
    # Where a reader cannot write the lock file, it has to keep writers away by a claim.
    lock = not read_only or writable(folder)
    if lock:
        _reserve(folder / LOCK_FILE)
    file_bytes = (folder / DATA_FILE).stat().st_size
    if file_bytes > map_bytes:
        map_bytes = file_bytes + SPARE_PAGES * page_bytes
    # Never writemap: on a full disk it dies by SIGBUS. A cache may lose its last writes with the
    # machine, so a commit does not wait for the disk; saving an index does.
    handle = lmdb.open(
        str(folder),
        map_size=map_bytes,
        readonly=read_only,
        lock=lock,
        create=False,
        sync=False,
        writemap=False,
        meminit=False,
        readahead=False,
    )
    if handle.stat()["psize"] != page_bytes:
        handle.close()
        raise NotAllowed(f"this LMDB cannot use files with pages of {page_bytes} bytes: {folder}")
    # Processes that died while they were reading have left their slots taken.
    handle.reader_check()
    return handle


def make_empty(folder: Path, map_bytes: int, page_bytes: int) -> None:
    """Make an empty LMDB file in a folder, in place of what is there.

    Its lock file goes too: another process may use that with the old data.
    """
    remove(folder)
    create(folder / DATA_FILE, page_bytes, map_bytes)


def remove(folder: Path) -> None:
    """Take LMDB's files away from a folder."""
    for name in (DATA_FILE, LOCK_FILE):
        (folder / name).unlink(missing_ok=True)


def writable(folder: Path) -> bool:
    """Whether files can be made in a folder."""
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep the other processes from opening, making or replacing the files of a folder.

    Raises:
        OSError: there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Closing alone would leave it locked as long as a child that was just forked lives.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextlib.contextmanager
def typed_errors(folder: Path, *, read_only: bool = False) -> Iterator[None]:
    """Turn the errors of LMDB and of the system into ours, for a folder that is being opened."""
    try:
        yield
    except _DAMAGE as error:
        raise CorruptCache(f"{folder}: {error}") from error
    except lmdb.DiskError as error:
        raise StoreFull(f"the disk of {folder} took no more: {error}") from error
    except (lmdb.Error, OSError) as error:
        raise _typed(folder, error, read_only=read_only) from error


def _typed(folder: Path, error: Exception, *, read_only: bool) -> StorageError:
    if isinstance(error, OSError):
        number, text = error.errno, error.strerror
    else:
        # LMDB gives the system's words and not its number.
        text = str(error).rpartition(": ")[2]
        number = next((n for n in (*_FULL, *_TOO_MANY, *_FORBIDDEN) if os.strerror(n) == text), 0)
    if number in _FULL:
        return StoreFull(f"the disk of {folder} took no more: {text}")
    if number in _TOO_MANY:
        return TooManyFiles(f"no descriptor is left for the cache in {folder}: raise `ulimit -n`")
    if number in _FORBIDDEN and not read_only:
        return NotAllowed(
            f"cannot write the cache in {folder}: {text}; "
            "open it with read_only=True or name another folder"
        )
    return NotAllowed(f"cannot open the cache in {folder}: {text}")


def _reserve(path: Path) -> None:
    """Give LMDB's lock file its space on the disk.

    LMDB makes it sparse and writes through a memory map, which on a full disk ends the process.
    """
    if path.exists() and path.stat().st_size >= LOCK_BYTES:
        return
    with path.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, LOCK_BYTES)
