"""Payloads in an LMDB file: a transactional table of pages, and in memory who lies where.

The states that are saved beside the file say which sample lies in which cells, and what its bytes
add up to. So removing a sample touches no page, whatever lies in a cell is proved by its checksum
when it is read, and a crash between two saves costs no more than the samples whose cells were used
again meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import lmdb
import numpy as np

from storage import environment as environments
from storage.cells import SLOT_BITS, SLOT_MASK, PagesExhausted
from storage.checksum import digest, seed_of
from storage.contents import Contents
from storage.errors import CorruptCache, NotAllowed, StoreFull
from storage.index_file import IndexFile
from storage.layout import Layout
from storage.lmdb_file import layout_of
from storage.lmdb_handle import DATA_FILE
from storage.page_file import Get, PageFile, Piece, page_key
from storage.store import Saved, Store

INDEX_FILE = "index"

_VERSION = b"\x02"
_STATE = struct.Struct(">16sQ")


class LmdbStore(Store):
    """Keeps payloads in `path`/data.mdb, laid out as `storage.layout` says, and states beside.

    Read transactions never outlive a call, and payloads are copied. The same folder opened twice
    is one file with two handles.

    Raises (on opening):
        NotAllowed: the folder cannot hold a cache, or holds somebody else's LMDB file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Layout,
        identity: bytes = b"",
        *,
        durable: bool = True,
        read_only: bool = False,
    ) -> None:
        """Open the store in a folder, or make it.

        Args:
            path: the folder.
            layout: of a file that is made; one that is there keeps its pages until it is `fit`.
            identity: names what the samples are; a folder filled from other ones is emptied.
            durable: saving waits for the disk, so that it survives the loss of the machine, as long
                as nothing is changed after it. Without it, what was saved survives the end of the
                process, by SIGKILL too.
            read_only: nothing is written; the folder may be one that cannot be.
        """
        self.wanted = layout
        self.layout = layout_of(Path(path) / DATA_FILE) or layout
        self.writable = not read_only
        self._durable = durable
        self._environment, self.rebuilt_reason = environments.acquire(
            path, layout.map_bytes, self.layout.page_bytes, read_only=read_only
        )
        self.lock = self._environment.lock
        self._index_file = IndexFile(self._environment.path / INDEX_FILE)
        self._identity = _VERSION + hashlib.sha256(identity).digest()
        self.seed = seed_of(self._identity)
        self._closed = False
        try:
            with self.lock:
                self._take_up()
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

    def get(
        self, samples: np.ndarray, lengths: np.ndarray, checksums: np.ndarray, buffer: np.ndarray
    ) -> np.ndarray:
        """Copy payloads back to back; see `Store.get`."""
        self._check_open()
        contents, ids = self._contents, samples.tolist()
        several = contents.images or (contents.more and any(map(contents.more.__contains__, ids)))
        if not several:
            try:
                found = self._get_cells(samples, lengths, buffer)
            except (IndexError, TypeError, ValueError):
                found = []  # Not all of them are there.
            if found == checksums.tolist():
                return np.ones(len(ids), dtype=bool)
        return self._get_pieces(ids, lengths.tolist(), checksums.tolist(), buffer)

    def get_one(self, sample: int, length: int, checksum: int) -> bytes | None:
        """The payload of one sample."""
        self._check_open()
        contents = self._contents
        try:
            page, begin = contents.pages.item(sample), contents.begins.item(sample)
            several, image = sample in contents.more, contents.images.get(page)
            if image is not None and not several:
                payload = bytes(image[begin : begin + length])
            else:
                with self._environment.reader() as reader:
                    get: Get = reader.get
                    if several:
                        payload = b"".join(self._pieces(get, sample, length))
                    else:
                        payload = bytes(get(page_key(page))[begin : begin + length])
        except (IndexError, TypeError):
            return None
        except lmdb.Error as error:
            raise self._file.typed(error) from error
        return payload if digest(payload, self.seed + sample) == checksum else None

    def remove(self, samples: Sequence[int]) -> None:
        """Forget samples; the file is not touched."""
        self._contents.forget(samples)

    def put(
        self,
        samples: Sequence[int],
        buffer: np.ndarray,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """Keep payloads; see `Store.put`."""
        if not samples:
            return
        contents = self._contents
        places = self._assign(samples, lengths)
        alone = len(samples) == 1
        pages: dict[int, list[Piece]] = {}
        page, width = -1, 0
        for cells, start, length in zip(places, starts, lengths, strict=True):
            at, end = start, start + length
            for cell in cells:
                if cell >> SLOT_BITS != page:
                    page = cell >> SLOT_BITS
                    width = contents.widths.item(page)
                    pieces = pages.setdefault(page, [])
                stop = min(at + width, end)
                pieces.append(((cell & SLOT_MASK) * width, at, stop))
                at = stop
        try:
            self._file.draw(pages, buffer.data, keep=alone)
            if not alone or len(contents.images) >= self.layout.transaction_pages:
                self._file.flush()
        except BaseException:
            for cells in places:
                contents.give_back(cells)
            for page in pages:
                if not contents.cells.is_open(page):
                    contents.images.pop(page, None)
            raise
        contents.settle(samples, places)

    def present(self) -> np.ndarray:
        """The samples that are there."""
        return self._contents.present()

    def clear(self) -> None:
        """Replace the file by an empty one and drop the saved states."""
        self._check_open()
        self._empty()
        self._index_file.remove()

    def save(self, index: bytes) -> None:
        """Bring the data to the disk, then the state.

        After a crash in between, the data are newer than the state: the cache looks at all
        payloads when it opens. The other order could promise payloads that never arrived.
        """
        self._check_open()
        self._file.flush()
        try:
            if self._durable:
                self._environment.handle.sync(True)
            places = self._contents.encode()
            state = _STATE.pack(self._file.mark(), len(places)) + places + index
            self._index_file.append(state, durable=self._durable)
        except (OSError, lmdb.Error) as error:
            raise StoreFull(f"cannot save the index in {self.path}: {error}") from error

    def saved(self) -> list[Saved]:
        """The states in the index file."""
        found = []
        for record in self._index_file.states():
            if len(record) < _STATE.size:
                raise CorruptCache(f"{self.path / INDEX_FILE} is damaged")
            mark, places = _STATE.unpack_from(record)
            found.append(Saved(record[_STATE.size + places :], mark, record))
        return found

    def adopt(self, saved: Saved) -> bool:
        """Take over where the samples lay, and drop the states saved later."""
        places = _STATE.unpack_from(saved.record)[1]
        contents = Contents.decode(saved.record[_STATE.size : _STATE.size + places], self.layout)
        records = self._index_file.states()
        if records[0] != saved.record:
            self.claim()
            newer = sum(1 for _ in takewhile(saved.record.__ne__, records))
            self._index_file.keep(records[newer:])
        self._contents.become(contents)
        return saved.mark == self._file.mark()

    def fit(self, samples: np.ndarray, lengths: np.ndarray, checksums: np.ndarray) -> bool:
        """Make the file one of the layout that is wanted; see `Store.fit`."""
        layout, before = self.wanted, self.layout
        if layout.page_bytes == before.page_bytes:
            self.layout = layout
            self._contents.relayout(layout)
            # Also a file that is just not too large has no room left to be written.
            room_bytes = layout.map_bytes - layout.reserved_pages * layout.page_bytes
            shrinks = layout.map_bytes < before.map_bytes
            moves = shrinks and self._environment.file_bytes > room_bytes
            if moves:
                self.compact()
            if moves or self._environment.map_bytes != layout.map_bytes:
                self._environment.resize(layout.map_bytes)
            return moves
        # Only where a budget crosses the border between small and large pages, so it is small.
        buffer = np.empty(int(lengths.sum()), np.uint8)
        found = self.get(samples, lengths, checksums, buffer)
        samples, lengths = samples[found], lengths[found]
        self.layout = layout
        # The saved states stay: they tell whoever comes after a crash that there was something.
        self._empty()
        starts = np.cumsum(lengths) - lengths
        self.put(samples.tolist(), buffer, starts.tolist(), lengths.tolist())
        return True

    def compact(self) -> int:
        """Give the space of the file back that no sample needs; see `Store.compact`."""
        before_bytes = self._environment.file_bytes
        self.claim()
        while self._empty_a_page():
            pass
        self._file.flush()
        self._file.shed()
        self._file.rename()
        self._environment.compact()
        return before_bytes - self._environment.file_bytes

    def version(self) -> object:
        """The last transaction, and what the index file is."""
        self._check_open()
        return self._file.last_transaction, self._index_file.version()

    def claim(self) -> bool:
        """Keep other processes from changing the folder; see `Store.claim`."""
        self._check_open()
        environment = self._environment
        known = environment.claimed
        environment.claim()
        if environment.contents is not self._contents:
            environment.release_claim()
            raise _changed_elsewhere(self.path)
        return not known

    def release_claim(self) -> None:
        """Let other processes change the folder."""
        self._environment.release_claim()

    def share(self) -> Self:
        """Another handle, which has to be closed on its own."""
        self._check_open()
        environments.retain(self._environment)
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def close(self) -> None:
        """Give up this handle; the file is closed with the last one."""
        if not self._closed:
            self._closed = True
            environments.release(self._environment)

    def _take_up(self) -> None:
        """Know what this process knows of the file, and make sure that it is ours."""
        environment = self._environment
        environment.refresh()
        known = environment.contents
        self._contents = known if isinstance(known, Contents) else Contents(self.layout)
        self._file = PageFile(environment, self._contents, self._identity)
        try:
            self._check_identity()
        except CorruptCache as error:
            if not self.writable:
                raise
            self.rebuilt_reason = str(error)
            self.clear()
        environment.contents = self._contents

    def _empty(self) -> None:
        self._environment.recreate(self.layout.map_bytes, self.layout.page_bytes)
        self._contents.become(Contents(self.layout))
        self._environment.contents = self._contents
        self._file.tick()
        self._file.rename()

    def _check_open(self) -> None:
        if self._closed:
            raise NotAllowed(f"the cache in {self._environment.path} is closed: open it again")

    def _get_cells(self, samples: np.ndarray, lengths: np.ndarray, buffer: np.ndarray) -> list[int]:
        """Copy payloads of one cell each; returns their checksums.

        Raises:
            IndexError, TypeError, ValueError: not all of them are there.
        """
        contents, seed = self._contents, self.seed
        keys = contents.pages[samples].view("V4").tolist()
        begins = contents.begins[samples]
        ends = (begins + lengths).tolist()
        seeds = (samples + seed).tolist()
        view = buffer.data
        at = 0
        try:
            with self._environment.reader() as reader:
                get: Get = reader.get
                pages = zip(map(get, keys), begins.tolist(), ends, strict=True)
                payloads = [page[begin:end] for page, begin, end in pages]
                for payload, end in zip(payloads, lengths.cumsum().tolist(), strict=True):
                    view[at:end] = payload
                    at = end
                return list(map(digest, payloads, seeds))
        except lmdb.Error as error:
            raise self._file.typed(error) from error

    def _get_pieces(
        self, ids: list[int], lengths: list[int], checksums: list[int], buffer: np.ndarray
    ) -> np.ndarray:
        """Copy payloads of any number of cells, leaving the bad ones out."""
        seed, view = self.seed, buffer.data
        found = np.zeros(len(ids), dtype=bool)
        at = 0
        with self._file.reading() as get:
            for row, (sample, length) in enumerate(zip(ids, lengths, strict=True)):
                end = at
                try:
                    for piece in self._pieces(get, sample, length):
                        begin, end = end, end + len(piece)
                        view[begin:end] = piece
                except (TypeError, ValueError):
                    continue
                if end == at + length and digest(view[at:end], seed + sample) == checksums[row]:
                    found[row] = True
                    at = end
        return found

    def _pieces(self, get: Get, sample: int, length: int) -> list[Any]:
        """The bytes of each cell of a payload of this length.

        Raises:
            TypeError: a page is not there.
        """
        route, images = self._contents.route(sample, length), self._contents.images
        if images:
            numbers = (int.from_bytes(key, "big") for key in route.keys)
            pages = [images.get(n) or get(k) for n, k in zip(numbers, route.keys, strict=True)]
        else:
            pages = list(map(get, route.keys))
        for row, part in enumerate(route.parts, len(pages) - len(route.parts)):
            pages[row] = pages[row][part]
        return pages

    def _assign(self, samples: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """Find cells, and make pages free while there are too few."""
        while True:
            try:
                return self._contents.assign(samples, lengths)
            except PagesExhausted:
                if not self._empty_a_page():
                    raise self._file.full() from None

    def _empty_a_page(self) -> bool:
        """Move the samples of one page into free cells elsewhere; False when that cannot be."""
        contents = self._contents
        leaving = contents.cells.evacuate()
        if leaving is None:
            return False
        page, moves = leaving
        try:
            image = contents.images.get(page)
            if image is None:
                with self._file.reading() as get:
                    image = bytes(get(page_key(page)) or self.layout.value_bytes)
            pages: dict[int, list[Piece]] = {}
            for _, old, new in moves:
                _, start, width = contents.spot(old)
                target, begin, _ = contents.spot(new)
                pages.setdefault(target, []).append((begin, start, start + width))
            self._file.draw(pages, memoryview(image), keep=True)
        except BaseException:
            contents.give_back([new for _, _, new in moves])
            contents.cells.restore(page)
            raise
        for sample, old, new in moves:
            contents.move(sample, old, new)
        contents.cells.close(page)
        if len(contents.images) >= self.layout.transaction_pages:
            self._file.flush()
        return True

    def _check_identity(self) -> None:
        identity = self._file.identity()
        if identity is None and not self._environment.handle.stat()["entries"]:
            if not self.writable:
                raise NotAllowed(f"there is no cache in {self.path}")
            self._file.tick()
            self._file.rename()
        elif identity is None and (self.path / INDEX_FILE).exists():
            raise CorruptCache(f"{self.path} has lost its first entry")
        elif identity is None:
            raise NotAllowed(f"{self.path} holds another program's LMDB file: name another folder")
        elif identity != self._identity:
            if self._environment.references > 1:
                raise NotAllowed(f"the cache in {self.path} is open for other data: close it first")
            if not self.writable:
                raise NotAllowed(f"the cache in {self.path} was filled from other data")
            raise CorruptCache(f"{self.path} was filled from other data")


def _changed_elsewhere(path: Path) -> NotAllowed:
    """The error of a cache that another process has changed since it was opened or saved here."""
    return NotAllowed(f"another process has changed the cache in {path}: open it again")
