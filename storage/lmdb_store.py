"""Payloads in an LMDB file."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import lmdb
import numpy as np

from storage import environment as environments
from storage.contents import IDENTITY_KEY, Contents
from storage.errors import CorruptCache, NotAllowed, StorageError, StoreFull
from storage.index_file import IndexFile
from storage.layout import PAGE_BYTES, PAGE_CHARGE_BYTES
from storage.store import Store

INDEX_FILE = "index"
_VERSION = b"\x01"

_DAMAGE = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
# LMDB reports a write that was cut short, as on a full disk, as an input/output error.
_DISK_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)))

_SPARE_PAGES = 16
"""Pages that puts leave alone, so that removing works in a full file too."""


class LmdbStore(Store):
    """Keeps payloads in `path`/data.mdb, laid out as `storage.layout` says, and the index beside.

    Read transactions never outlive a call, and payloads are copied into the caller's buffer. The
    same folder opened twice is one file with two handles. One process at a time may write.

    Raises (on opening):
        NotAllowed: the folder cannot hold a cache, or holds somebody else's LMDB file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        map_bytes: int,
        identity: bytes = b"",
        *,
        durable: bool = True,
    ) -> None:
        """Open the store in a folder, or make it.

        Args:
            path: the folder.
            map_bytes: the largest size of the data file.
            identity: names what the samples are; a folder filled from other ones is emptied.
            durable: saving waits for the disk, so that it survives the loss of the machine. Without
                it, what was saved survives the end of the process, by SIGKILL too.
        """
        self._durable = durable
        self._environment, self.rebuilt_reason = environments.acquire(path, map_bytes)
        self._index_file = IndexFile(self._environment.path / INDEX_FILE)
        self._identity = _VERSION + identity
        self._seed = zlib.crc32(self._identity)
        self._limit_pages = map_bytes // PAGE_CHARGE_BYTES - _SPARE_PAGES
        # A page that a transaction frees can be used again by the next but one.
        self.transaction_pages = max(4, map_bytes // PAGE_BYTES // 64)
        self._closed = False
        try:
            self._check_identity()
            self._contents()
        except CorruptCache as error:
            self.rebuilt_reason = str(error)
            self.clear()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The folder, without links."""
        return self._environment.path

    @property
    def owner(self) -> object:
        """What this process keeps about the folder, shared by all handles on it."""
        return self._environment.owner

    @owner.setter
    def owner(self, owner: object) -> None:
        self._environment.owner = owner

    def get(self, samples: np.ndarray, lengths: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        """Copy payloads back to back; see `Store.get`."""
        view = buffer.data
        found = np.zeros(len(samples), dtype=bool)
        at = 0
        pairs = zip(samples.tolist(), lengths.tolist(), strict=True)
        contents = self._contents()
        with self._transaction(write=False) as reader:
            for position, (sample, length) in enumerate(pairs):
                if contents.copy(reader, sample, view[at : at + length]):
                    found[position] = True
                    at += length
        return found

    def write(
        self,
        removed: Sequence[int],
        samples: Sequence[int],
        buffer: np.ndarray,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Remove samples and put others in one transaction; see `Store.write`.

        When file or disk have too little room for all at once, the removals are committed first,
        and one change follows the other as pages become free.
        """
        view = buffer.data
        puts = [
            (sample, view[start : start + length])
            for sample, start, length in zip(samples, starts, lengths, strict=True)
        ]
        try:
            self._change(removed, puts)
        except (lmdb.MapFullError, StoreFull):
            try:
                self._change_slowly(removed, puts)
            except lmdb.MapFullError as error:
                raise self._full() from error

    def present(self) -> tuple[np.ndarray, np.ndarray]:
        """The samples that are there and their lengths."""
        known = self._contents().lengths
        samples = sorted(known)
        lengths = [known[sample] for sample in samples]
        return np.array(samples, np.int64), np.array(lengths, np.int64)

    def clear(self) -> None:
        """Replace the file by an empty one and drop the index."""
        self._open()
        self._environment.recreate()
        self._index_file.remove()
        self._tick()

    def save_index(self, index: bytes) -> None:
        """Bring the data to the disk, then the index.

        After a crash in between, the data are newer than the index: the cache compares the two
        when it opens. The other order could promise payloads that never arrived.
        """
        try:
            if self._durable:
                self._open().sync(True)
            self._index_file.append(index, durable=self._durable)
        except (OSError, lmdb.Error) as error:
            raise StoreFull(f"cannot save the index in {self.path}: {error}") from error

    def load_index(self) -> bytes | None:
        """The index file."""
        return self._index_file.last()

    def version(self) -> object:
        """The last transaction, and how far the index file has grown."""
        return self._open().info()["last_txnid"], self._index_file.version()

    def share(self) -> Self:
        """Another handle, which has to be closed on its own."""
        self._open()
        environments.retain(self._environment)
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def close(self) -> None:
        """Give up this handle; the file is closed with the last one."""
        if not self._closed:
            self._closed = True
            environments.release(self._environment)

    def _open(self) -> lmdb.Environment:
        if self._closed:
            raise NotAllowed(f"the cache in {self._environment.path} is closed: open it again")
        return self._environment.handle

    def _contents(self) -> Contents:
        """What lies in the file, read when it is not known: after opening, a fork, a failure."""
        self._open()
        if self._environment.contents is None:
            contents = Contents(self._seed)
            with self._transaction(write=False) as reader:
                contents.load(reader)
            if contents.needs_repair:
                with self._transaction(write=True) as writer:
                    contents.repair(writer)
            self._environment.contents = contents
        return self._environment.contents

    def _change(self, removed: Sequence[int], puts: Sequence[tuple[int, memoryview]]) -> None:
        contents = self._contents()
        # Forgotten until the commit: after a failure the file says what is there.
        self._environment.contents = None
        with self._transaction(write=True) as writer:
            contents.change(writer, removed, puts)
            if puts and contents.pages > self._limit_pages:
                raise self._full()
        self._environment.contents = contents

    def _change_slowly(
        self, removed: Sequence[int], puts: Sequence[tuple[int, memoryview]]
    ) -> None:
        """One sample a transaction; a freed page can be used again by the next but one."""
        put: list[int] = []
        self._tick()
        try:
            for sample in removed:
                self._tick()
                self._change([sample], [])
            self._tick()
            for sample, payload in puts:
                self._tick()
                self._change([], [(sample, payload)])
                put.append(sample)
        except (lmdb.MapFullError, StoreFull):
            for sample in put:
                self._change([sample], [])
            raise

    @contextlib.contextmanager
    def _transaction(self, *, write: bool) -> Iterator[lmdb.Transaction]:
        try:
            with self._open().begin(write=write, buffers=True) as transaction:
                yield transaction
        except lmdb.MapFullError:
            raise
        except _DAMAGE as error:
            raise CorruptCache(f"{self.path}: {error}") from error
        except lmdb.Error as error:
            if str(error).endswith(_DISK_FULL):
                raise StoreFull(f"the disk of {self.path} took no more: {error}") from error
            raise StorageError(f"{self.path}: {error}") from error

    def _tick(self) -> None:
        """A transaction that only counts as one."""
        with self._transaction(write=True) as writer:
            writer.put(IDENTITY_KEY, self._identity)

    def _check_identity(self) -> None:
        with self._transaction(write=False) as reader:
            found = reader.get(IDENTITY_KEY)
            identity = None if found is None else bytes(found)
        entries = self._open().stat()["entries"]
        if identity is None and not entries:
            self._tick()
        elif identity is None and (self.path / INDEX_FILE).exists():
            raise CorruptCache(f"{self.path} has lost its first entry")
        elif identity is None:
            raise NotAllowed(f"{self.path} holds another program's LMDB file: name another folder")
        elif identity != self._identity:
            if self._environment.references > 1:
                raise NotAllowed(f"the cache in {self.path} is open for other data: close it first")
            raise CorruptCache(f"{self.path} was filled from other data")

    def _full(self) -> StoreFull:
        return StoreFull(f"the cache file in {self.path} is full: give it a larger map")
