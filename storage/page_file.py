"""The pages of a cache file, by number: drawn on in memory, and written to LMDB in bulk."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from storage.contents import Contents
from storage.environment import Environment
from storage.errors import CorruptCache, StorageError, StoreFull
from storage.lmdb_file import check, check_values
from storage.lmdb_handle import DATA_FILE

page_key = struct.Struct(">I").pack
_KEY_BYTES = 4

_IDENTITY_KEY, _NAME_KEY = b"\x00", b"\x01"
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

Get = Callable[[bytes], Any]
"""Reads a page as a memoryview, or gives None."""

Piece = tuple[int, int, int]
"""Where in its page a cell begins, and from where to where in a buffer its bytes lie."""


class PageFile:
    """Pages as values of LMDB, each the size of one of its own pages.

    A page that is drawn on lies in `Contents.images` until it is flushed: nothing that is not
    saved has to survive, so single samples need no transactions of their own.
    """

    def __init__(self, environment: Environment, contents: Contents, identity: bytes) -> None:
        """Take a file up.

        Args:
            environment: LMDB.
            contents: says which cells of which pages are taken.
            identity: the value of the one entry that is no page.
        """
        self._environment = environment
        self._contents = contents
        self._identity = identity
        contents.in_file = self._numbers

    @property
    def path(self) -> Path:
        """The folder."""
        return self._environment.path

    @property
    def last_transaction(self) -> int:
        """The number of the last change."""
        number: int = self._environment.handle.info()["last_txnid"]
        return number

    @contextlib.contextmanager
    def reading(self) -> Iterator[Get]:
        """A read transaction, to get pages by key."""
        try:
            with self._environment.reader() as reader:
                yield reader.get
        except lmdb.Error as error:
            raise self.typed(error) from error

    def draw(self, pages: Mapping[int, Sequence[Piece]], view: memoryview, *, keep: bool) -> None:
        """Put the bytes of cells into pages, in memory.

        Args:
            pages: what goes into which page; all its cells there are assigned.
            view: where the bytes are.
            keep: that will change before the next flush.
        """
        contents, whole = self._contents, self._contents.layout.value_bytes
        images, holds_others = contents.images, contents.cells.holds_others
        with self.reading() as get:
            for page, pieces in pages.items():
                begin, start, stop = pieces[0]
                if stop - start == whole:
                    images[page] = bytes(view[start:stop]) if keep else view[start:stop]
                    continue
                image = images.get(page)
                if not holds_others(page, len(pieces)):
                    image = bytearray(whole)
                elif not isinstance(image, bytearray):
                    image = bytearray(image or get(page_key(page)) or whole)
                for begin, start, stop in pieces:
                    image[begin : begin + stop - start] = view[start:stop]
                images[page] = image

    def flush(self) -> None:
        """Write the pages that were drawn on, in transactions of bounded size.

        Where file or disk are full, pages that hold nothing are given up first.

        Raises:
            StoreFull: that did not help; what was not written is still in memory.
        """
        self._drop_unused()
        images, layout = self._contents.images, self._contents.layout
        while group := list(islice(images.items(), layout.transaction_pages)):
            try:
                self._write(group)
            except (lmdb.MapFullError, StoreFull):
                self._write_slowly(group)
            for page, _ in group:
                images.pop(page, None)

    def shed(self) -> None:
        """Give pages that hold nothing back to LMDB.

        A page that a transaction frees can be used again by the next but one.
        """
        self.tick()
        is_open = self._contents.cells.is_open
        unused = (page for page in self._numbers() if not is_open(page))
        while group := list(islice(unused, self._contents.layout.transaction_pages)):
            with self._writing() as writer:
                for page in group:
                    writer.delete(page_key(page))
        self.tick()
        self.tick()

    def tick(self) -> None:
        """A transaction that only counts as one, and says whose file it is."""
        self._environment.claim()
        with self._writing() as writer:
            writer.put(_IDENTITY_KEY, self._identity)

    def identity(self) -> bytes | None:
        """Whose file it is; None when nothing says so."""
        with self.reading() as get:
            found = get(_IDENTITY_KEY)
            return None if found is None else bytes(found)

    def mark(self) -> bytes:
        """What no other state of this file has, nor any of another file."""
        with self.reading() as get:
            return bytes(get(_NAME_KEY) or b"") + self.last_transaction.to_bytes(8, "big")

    def rename(self) -> None:
        """Give the file another name, so that it differs from all states of before.

        LMDB numbers the transactions of a compacted file anew.
        """
        with self._writing() as writer:
            writer.put(_NAME_KEY, os.urandom(8))

    def typed(self, error: lmdb.Error) -> StorageError:
        """What went wrong."""
        if isinstance(error, _DAMAGE):
            return CorruptCache(f"{self.path}: {error}")
        if str(error).endswith(_DISK_FULL):
            return StoreFull(f"the disk of {self.path} took no more: {error}")
        return StorageError(f"{self.path}: {error}")

    def full(self) -> StoreFull:
        """The error of a file that is full."""
        return StoreFull(f"the cache file in {self.path} is full: give it a larger map")

    def _numbers(self) -> list[int]:
        """The numbers of all pages in the file."""
        with self._environment.reader() as reader:
            keys = map(bytes, reader.cursor().iternext(values=False))
            return [int.from_bytes(key, "big") for key in keys if len(key) == _KEY_BYTES]

    def _drop_unused(self) -> None:
        images, is_open = self._contents.images, self._contents.cells.is_open
        for page in [page for page in images if not is_open(page)]:
            del images[page]

    def _write_slowly(self, group: Sequence[tuple[int, Any]]) -> None:
        """Give up what nobody needs, then go page by page: each makes room for the next but one."""
        images = self._contents.images
        try:
            self.shed()
            for page, image in group:
                self._write([(page, image)])
                del images[page]
        except (lmdb.MapFullError, StoreFull) as error:
            # A page that is written anew needs a second one until then.
            need_bytes = 2 * len(images) * self._contents.layout.page_bytes
            message = str(error) if isinstance(error, StoreFull) else str(self.full())
            raise StoreFull(message, need_bytes) from error

    def _write(self, group: Sequence[tuple[int, Any]]) -> None:
        with self._writing() as writer:
            for page, image in group:
                writer.put(page_key(page), image)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[lmdb.Transaction]:
        self._check_values()
        try:
            with self._environment.handle.begin(write=True, buffers=True) as writer:
                yield writer
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            raise self.typed(error) from error

    def _check_values(self) -> None:
        """Once before the first write: LMDB trusts the header of a page that it frees."""
        environment = self._environment
        if not environment.values_checked:
            data, page_bytes = self.path / DATA_FILE, environment.page_bytes
            runs = check(data, page_bytes, 2 * max(environment.map_bytes, environment.file_bytes))
            check_values(data, page_bytes, runs)
            environment.values_checked = True
