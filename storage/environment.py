"""Open LMDB files: one handle per file and process, checked before it is trusted."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import lmdb

from storage.contents import Contents
from storage.errors import CorruptCache, NotAllowed, StoreFull
from storage.filesystem import prepare_folder

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
LOCK_BYTES = 8192
"""LMDB's lock file with its 126 readers, in whole pages."""

# A meta page of LMDB 0.9 (mdb.c, struct MDB_meta): a page header of 16 bytes, magic, version,
# address, map size, two trees of 48 bytes (the first begins with the page size), last page, txn.
_META = struct.Struct("<16xII8x8xI92xQQ")
_MAGIC = 0xBEEFC0DE
_VERSION = 1


class Environment:
    """One LMDB file, shared by every handle on it in this process; made by `acquire` only.

    A forked child must not use its parent's handle: the child opens the file anew on first use.

    Attributes:
        contents: what lies in the file as far as this process knows; None when it has to look.
        owner: what this process keeps about the file beside its contents; None when nothing yet.
        references: how many handles there are.
    """

    def __init__(self, path: Path, map_bytes: int) -> None:
        self.path = path
        self.map_bytes = map_bytes
        self.references = 0
        self.contents: Contents | None = None
        self.owner: object = None
        self._pid = os.getpid()
        self._handle = self._open()

    @property
    def handle(self) -> lmdb.Environment:
        """The open environment of this process."""
        if self._pid != os.getpid():
            self._handle.close()
            self._handle = self._open()
            self._pid = os.getpid()
            self.contents = None
            self.owner = None
        return self._handle

    def recreate(self) -> None:
        """Throw the data away and open an empty file."""
        self._handle.close()
        _unlink(self.path)
        self._handle = self._open()
        self._pid = os.getpid()
        self.contents = None

    def close(self) -> None:
        """Close the file; `release` calls this."""
        self._handle.close()
        self.owner = None

    def _open(self) -> lmdb.Environment:
        check_file(self.path / DATA_FILE, self.map_bytes)
        _reserve_lock(self.path / LOCK_FILE)
        try:
            # Never writemap: on a full disk it dies by SIGBUS. A cache may lose its last writes
            # with the machine, so a commit does not wait for the disk; saving an index does.
            handle = lmdb.open(
                str(self.path),
                map_size=self.map_bytes,
                sync=False,
                writemap=False,
                meminit=False,
                readahead=False,
            )
        except lmdb.Error as error:
            if isinstance(
                error, lmdb.InvalidError | lmdb.CorruptedError | lmdb.VersionMismatchError
            ):
                raise CorruptCache(f"{self.path}: {error}") from error
            if isinstance(error, lmdb.DiskError):
                raise StoreFull(f"the disk of {self.path} took no more: {error}") from error
            raise NotAllowed(f"cannot open the cache in {self.path}: {error}") from error
        handle.reader_check()
        return handle


_lock = threading.RLock()
# The one thing that has to be global: LMDB allows one handle per file and process.
_environments: dict[str, Environment] = {}


def acquire(path: str | os.PathLike[str], map_bytes: int) -> tuple[Environment, str]:
    """The environment of a folder, opened if need be, and why it was recreated ("": it was not).

    Raises:
        NotAllowed: the folder cannot hold a cache, or it is open with another map size.
    """
    folder = Path(path)
    prepare_folder(folder)
    key = os.path.realpath(folder)
    reason = ""
    with _lock:
        environment = _environments.get(key)
        if environment is None:
            try:
                environment = Environment(Path(key), map_bytes)
            except CorruptCache as error:
                reason = str(error)
                _unlink(Path(key))
                environment = Environment(Path(key), map_bytes)
            _environments[key] = environment
        elif environment.map_bytes != map_bytes:
            raise NotAllowed(f"the cache in {folder} is open with another size: close it first")
        environment.references += 1
    return environment, reason


def retain(environment: Environment) -> None:
    """Count one more handle on an environment that is open."""
    with _lock:
        environment.references += 1


def release(environment: Environment) -> None:
    """Count one handle less, and close the file with the last one."""
    with _lock:
        environment.references -= 1
        if environment.references == 0:
            environment.close()
            del _environments[str(environment.path)]


def check_file(path: Path, map_bytes: int) -> None:
    """Make sure that touching the pages of a data file cannot end the process.

    LMDB maps the file and trusts its meta pages: beyond the end of a truncated file a read is a
    bus error. So the end is compared with the last page in use, on the bytes of the file.

    Raises:
        CorruptCache: the file is no LMDB file, is shorter than it says, or larger than `map_bytes`.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_META.size)
        if len(head) < _META.size:
            raise CorruptCache(f"{path} is truncated")
        page_bytes = _META.unpack(head)[2]
        if not 512 <= page_bytes <= 65536 or page_bytes & (page_bytes - 1):
            raise CorruptCache(f"{path} is no cache file")
        file.seek(page_bytes)
        second = file.read(_META.size)
    if len(second) < _META.size:
        raise CorruptCache(f"{path} is truncated")
    metas = [_META.unpack(head), _META.unpack(second)]
    if any(meta[:3] != (_MAGIC, _VERSION, page_bytes) for meta in metas):
        raise CorruptCache(f"{path} is no cache file")
    last_page = max(meta[3] for meta in metas)
    if size < (last_page + 1) * page_bytes:
        raise CorruptCache(f"{path} is truncated")
    if size > map_bytes:
        raise CorruptCache(f"{path} is larger than its budget")


def _reserve_lock(path: Path) -> None:
    """Give LMDB's lock file its space on the disk.

    LMDB makes it sparse and writes through a memory map, which on a full disk ends the process.

    Raises:
        StoreFull: the disk has no room for it.
    """
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, LOCK_BYTES)
    except OSError as error:
        raise StoreFull(f"the disk of {path.parent} took no more: {error.strerror}") from error


def _unlink(path: Path) -> None:
    for name in (DATA_FILE, LOCK_FILE):
        (path / name).unlink(missing_ok=True)
