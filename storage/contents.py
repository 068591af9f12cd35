"""What lies in a cache file: reading it, changing it, and checking it."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence

import lmdb

from storage.cells import EMPTY, PAGE_KEY, Cells, Page
from storage.errors import CorruptCache
from storage.layout import (
    CELL_HEADER_BYTES,
    CELLS_PER_PAGE,
    LARGEST_REST_BYTES,
    VALUE_BYTES,
    cells_per_page,
    whole_pages,
)

# Keys: the identity of the store; PAGE_KEY, cells, number for a page of cells; WHOLE_KEY, sample,
# number for a whole page of one sample.
IDENTITY_KEY = b"\x00"
WHOLE_KEY = 2
_WHOLE = struct.Struct(">BII")

# A cell: sample, length of the whole payload, checksum, and then the rest of the payload. The
# checksum covers identity, sample, length and payload, so that bytes of another sample, client or
# data set never pass.
_HEADER = struct.Struct(">III")
_COVERED = struct.Struct(">II")
_FREE_HEADER = _HEADER.pack(EMPTY, 0, 0)
_FREE_PAGES = {m: (_FREE_HEADER.ljust(VALUE_BYTES // m, b"\0") * m).ljust(VALUE_BYTES, b"\0")
               for m in CELLS_PER_PAGE}  # fmt: skip


class Contents:
    """The places of all samples in one file; a failed change leaves it wrong, to be loaded anew.

    Attributes:
        lengths: the payload length of each sample that is there, in bytes.
        pages: how many pages hold payloads.
        needs_repair: `load` found remains of samples that are not whole.
    """

    def __init__(self, seed: int) -> None:
        self.lengths: dict[int, int] = {}
        self._seed = seed
        self._cells = Cells()
        self._whole_pages = 0
        self._stray_cells: list[int] = []
        self._stray_keys: list[bytes] = []

    @property
    def pages(self) -> int:
        """How many pages hold payloads."""
        return self._whole_pages + len(self._cells.pages)

    @property
    def needs_repair(self) -> bool:
        """Whether there are remains to be cleared away with `repair`."""
        return bool(self._stray_cells or self._stray_keys)

    def copy(self, reader: lmdb.Transaction, sample: int, view: memoryview) -> bool:
        """Copy a payload of exactly len(view) bytes; False when it is not there or not right."""
        cell = self._cells.places.get(sample)
        if cell is None:
            return False
        number, place = self._cells.spot(cell)
        page = self._cells.pages[number]
        value = reader.get(page.key)
        if value is None or len(value) != VALUE_BYTES:
            return False
        offset = place * (VALUE_BYTES // len(page.occupants))
        checksum: int
        found, length, checksum = _HEADER.unpack_from(value, offset)
        if found != sample or length != len(view):
            return False
        whole = 0
        if length > LARGEST_REST_BYTES:
            whole = whole_pages(length)
            if not _copy_whole_pages(reader, sample, whole, view):
                return False
        rest = length - whole * VALUE_BYTES
        if rest > 0:
            begin = offset + CELL_HEADER_BYTES
            view[whole * VALUE_BYTES :] = value[begin : begin + rest]
        return self._checksum(sample, view) == checksum

    def change(
        self,
        writer: lmdb.Transaction,
        removed: Sequence[int],
        puts: Sequence[tuple[int, memoryview]],
    ) -> None:
        """Remove samples, unknown ones ignored, then put others."""
        pages = _PageImages(writer, self._cells)
        for sample in removed:
            self._remove(writer, pages, sample)
        for sample, payload in puts:
            self._remove(writer, pages, sample)
            self._put(writer, pages, sample, payload)
        pages.write()

    def load(self, reader: lmdb.Transaction) -> None:
        """Find out what is there; takes one look at every page of cells.

        Raises:
            CorruptCache: the file holds something that no cache wrote.
        """
        whole: dict[int, list[int]] = {}
        for found, value in reader.cursor():
            key = bytes(found)
            if key[:1] == bytes([WHOLE_KEY]) and len(key) == _WHOLE.size:
                _, sample, part = _WHOLE.unpack(key)
                whole.setdefault(sample, []).append(part)
            elif key[:1] == bytes([PAGE_KEY]) and len(key) == 6 and key[1] in CELLS_PER_PAGE:
                self._adopt(key, bytes(value))
            elif key != IDENTITY_KEY:
                raise CorruptCache("the cache file holds an unknown entry")
        self._cells.adopted()
        for sample in [
            s for s, n in self.lengths.items() if whole_pages(n) != len(whole.get(s, ()))
        ]:
            self._stray_cells.append(self._cells.free(sample))
            del self.lengths[sample]
        for sample, parts in whole.items():
            if sample in self.lengths:
                self._whole_pages += len(parts)
            else:
                self._stray_keys += [_WHOLE.pack(WHOLE_KEY, sample, part) for part in parts]

    def repair(self, writer: lmdb.Transaction) -> None:
        """Clear the remains away that `load` found."""
        for key in self._stray_keys:
            writer.delete(key)
        pages = _PageImages(writer, self._cells)
        for cell in self._stray_cells:
            pages.blank(cell)
        pages.write()
        self._stray_cells, self._stray_keys = [], []

    def _adopt(self, key: bytes, value: bytes) -> None:
        cells, number = key[1], int.from_bytes(key[2:], "big")
        if len(value) != VALUE_BYTES or number in self._cells.pages:
            raise CorruptCache("the cache file holds a broken page")
        width = VALUE_BYTES // cells
        headers = [_HEADER.unpack_from(value, place * width) for place in range(cells)]
        count = Counter(sample for sample, _, _ in headers)
        occupants = [EMPTY] * cells
        strays = []
        for place, (sample, length, _) in enumerate(headers):
            rest = max(0, length - whole_pages(length) * VALUE_BYTES)
            if sample == EMPTY:
                continue
            if count[sample] > 1 or sample in self.lengths or cells_per_page(rest) != cells:
                strays.append(place)
            else:
                occupants[place] = sample
                self.lengths[sample] = length
        self._cells.adopt(number, occupants)
        self._stray_cells += [self._cells.cell(number, place) for place in strays]

    def _remove(self, writer: lmdb.Transaction, pages: _PageImages, sample: int) -> None:
        length = self.lengths.pop(sample, None)
        if length is None:
            return
        pages.blank(self._cells.free(sample))
        whole = whole_pages(length)
        self._whole_pages -= whole
        for part in range(whole):
            writer.delete(_WHOLE.pack(WHOLE_KEY, sample, part))

    def _put(
        self, writer: lmdb.Transaction, pages: _PageImages, sample: int, payload: memoryview
    ) -> None:
        length = len(payload)
        whole = whole_pages(length)
        for part in range(whole):
            begin = part * VALUE_BYTES
            writer.put(_WHOLE.pack(WHOLE_KEY, sample, part), payload[begin : begin + VALUE_BYTES])
        rest = payload[whole * VALUE_BYTES :]
        slot = pages.slot(self._cells.take(sample, cells_per_page(len(rest))))
        _HEADER.pack_into(slot, 0, sample, length, self._checksum(sample, payload))
        slot[CELL_HEADER_BYTES : CELL_HEADER_BYTES + len(rest)] = rest
        self.lengths[sample] = length
        self._whole_pages += whole

    def _checksum(self, sample: int, payload: memoryview) -> int:
        return zlib.crc32(payload, zlib.crc32(_COVERED.pack(sample, len(payload)), self._seed))


class _PageImages:
    """The pages of cells that one transaction changes, written once each at its end."""

    def __init__(self, writer: lmdb.Transaction, cells: Cells) -> None:
        self._writer = writer
        self._cells = cells
        self._images: dict[int, bytearray] = {}
        self._gone: dict[int, Page] = {}

    def slot(self, cell: int) -> memoryview:
        """The bytes of a cell, to be read or overwritten."""
        number, place = self._cells.spot(cell)
        page = self._cells.pages.get(number) or self._gone[number]
        image = self._images.get(number)
        if image is None:
            stored = self._writer.get(page.key)
            image = bytearray(stored or _FREE_PAGES[len(page.occupants)])
            self._images[number] = image
        width = VALUE_BYTES // len(page.occupants)
        return memoryview(image)[place * width : (place + 1) * width]

    def blank(self, cell: int) -> None:
        """Mark a cell as free."""
        self.slot(cell)[:CELL_HEADER_BYTES] = _FREE_HEADER

    def write(self) -> None:
        """Move what has to move and write all changed pages."""
        moves, self._gone = self._cells.compact()
        for source, target in moves:
            self.slot(target)[:] = self.slot(source)
            self.blank(source)
        for page in self._gone.values():
            self._writer.delete(page.key)
        for number, image in self._images.items():
            if number not in self._gone:
                self._writer.put(self._cells.pages[number].key, image)


def _copy_whole_pages(reader: lmdb.Transaction, sample: int, count: int, view: memoryview) -> bool:
    for part in range(count):
        value = reader.get(_WHOLE.pack(WHOLE_KEY, sample, part))
        target = view[part * VALUE_BYTES : (part + 1) * VALUE_BYTES]
        if value is None or len(value) != len(target):
            return False
        target[:] = value
    return True
