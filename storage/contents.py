"""Where every sample lies in a cache file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from storage.cells import SLOT_BITS, SLOT_MASK, Cells
from storage.errors import CorruptCache
from storage.layout import CELLS_PER_PAGE, Layout, cut

NOWHERE = 0xFFFFFFFF
"""The place of a sample that is not there."""

_KEY = np.dtype(">u4")
_pack_key = struct.Struct(">I").pack
_HEAD = struct.Struct(">QIIII")


class Route(NamedTuple):
    """The pages of one payload.

    Attributes:
        keys: of all, in the order of its bytes.
        parts: what is taken of the last ones; the others are whole.
    """

    keys: list[bytes]
    parts: list[slice]


class Contents:
    """The cells of each sample, in the order of its bytes.

    Attributes:
        pages: of the first cell of each sample, as its key: big-endian uint32[as many as are
            known], `NOWHERE` if there is none.
        begins: where that cell begins in its page, uint16[as many as are known].
        more: the further cells of samples that have several.
        widths: the bytes of a cell in each page, uint16[pages seen].
        images: pages that are newer than the file.
        in_file: gives the numbers of all pages in the file, used or not.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.pages = np.empty(0, _KEY)
        self.begins = np.empty(0, np.uint16)
        self.more: dict[int, list[int]] = {}
        self.widths = np.empty(0, np.uint16)
        self.images: dict[int, bytes | bytearray | memoryview] = {}
        self.in_file: Callable[[], list[int]] = list
        self._routes: dict[int, Route] = {}
        self._cells: Cells | None = None

    @property
    def cells(self) -> Cells:
        """The free cells, found out when they are first asked for: reading needs them not."""
        if self._cells is None:
            self._cells = self._survey()
        return self._cells

    def relayout(self, layout: Layout) -> None:
        """The file may have more pages now, or fewer than it could; they are as large as before."""
        self.layout = layout
        if self._cells is not None:
            self._cells.most_pages = layout.payload_pages

    def become(self, other: Contents) -> None:
        """Be what another one is, for all who know this one."""
        self.__dict__.update(other.__dict__ | {"in_file": self.in_file})

    def present(self) -> np.ndarray:
        """The samples that are there, ascending, int64[k]."""
        return np.flatnonzero(self.pages != NOWHERE)

    def places(self, sample: int) -> list[int]:
        """The cells of a sample; none when it is not there."""
        page = self.pages.item(sample) if sample < len(self.pages) else NOWHERE
        if page == NOWHERE:
            return []
        slot = self.begins.item(sample) // self.widths.item(page)
        return [(page << SLOT_BITS) | slot, *self.more.get(sample, ())]

    def route(self, sample: int, length: int) -> Route:
        """How to read a payload of this length; that of several cells is found once."""
        route = self._routes.get(sample)
        if route is None:
            keys, parts = [], []
            for cell in self.places(sample):
                page, begin, width = self.spot(cell)
                count = min(width, length)
                keys.append(_pack_key(page))
                if width < self.layout.value_bytes or count < width:
                    parts.append(slice(begin, begin + count))
                length -= count
            route = Route(keys, parts)
            if len(keys) > 1:
                self._routes[sample] = route
        return route

    def forget(self, samples: Sequence[int]) -> None:
        """Give up the cells of samples, unknown ones ignored; the file is not touched."""
        if not samples:
            return
        release, pages = self.cells.release, self.pages
        if len(samples) > 1:
            samples = list(dict.fromkeys(samples))
        if max(samples) >= len(pages):
            samples = [sample for sample in samples if sample < len(pages)]
        for head in self._heads(samples):
            if head != NOWHERE:
                release(head)
        pages[samples] = NOWHERE
        if self.more:
            for sample in samples:
                self._routes.pop(sample, None)
                for cell in self.more.pop(sample, ()):
                    release(cell)

    def assign(self, samples: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """Find cells for payloads of these lengths; `settle` makes them the samples'.

        Returns:
            The cells of each, in the order of its bytes.

        Raises:
            PagesExhausted: there are not enough; nothing has changed then.
        """
        value_bytes = self.layout.value_bytes
        pages, first, second = cut(lengths[0], value_bytes)
        if not (pages or second) and lengths.count(lengths[0]) == len(lengths):
            cells = self.cells.take(first, samples)
            self._note_widths(cells, first)
            return [(cell,) for cell in cells]
        cuts = [cut(length, value_bytes) for length in lengths]
        owners: dict[int, list[int]] = {}
        for sample, (pages, first, second) in zip(samples, cuts, strict=True):
            if pages:
                owners.setdefault(1, []).extend([sample] * pages)
            owners.setdefault(first, []).append(sample)
            if second:
                owners.setdefault(second, []).append(sample)
        taken: dict[int, list[int]] = {}
        try:
            for cells_per_page, of_class in owners.items():
                taken[cells_per_page] = self.cells.take(cells_per_page, of_class)
        except BaseException:
            for cells in taken.values():
                self.give_back(cells)
            raise
        for cells_per_page, cells in taken.items():
            self._note_widths(cells, cells_per_page)
        of = {cells_per_page: iter(cells) for cells_per_page, cells in taken.items()}
        return [
            tuple(next(of[m]) for m in (*[1] * pages, first, second) if m)
            for pages, first, second in cuts
        ]

    def give_back(self, cells: Iterable[int]) -> None:
        """Release cells that were assigned and not settled."""
        for cell in cells:
            self.cells.release(cell)

    def settle(self, samples: Sequence[int], places: Sequence[tuple[int, ...]]) -> None:
        """Cells that were assigned hold the payloads now."""
        known, highest = len(self.pages), max(samples, default=-1)
        if highest >= known:
            pages, begins = self.pages, self.begins
            self.pages = np.full(highest + 1 + highest // 8, NOWHERE, _KEY)
            self.begins = np.zeros(len(self.pages), np.uint16)
            self.pages[:known], self.begins[:known] = pages, begins
        if len(samples) == 1:
            sample, [cells] = samples[0], places
            self.pages[sample], self.begins[sample], _ = self.spot(cells[0])
        else:
            heads = np.array([cells[0] for cells in places], np.uint32)
            of_samples, of_pages = np.array(samples), heads >> SLOT_BITS
            self.pages[of_samples] = of_pages
            self.begins[of_samples] = (heads & SLOT_MASK) * self.widths[of_pages]
        for sample, cells in zip(samples, places, strict=True):
            if len(cells) > 1:
                self.more[sample] = list(cells[1:])

    def move(self, sample: int, old: int, new: int) -> None:
        """The bytes of one cell lie in another now."""
        self._routes.pop(sample, None)
        if self.places(sample)[0] == old:
            page, begin, _ = self.spot(new)
            self.pages[sample], self.begins[sample] = page, begin
        else:
            further = self.more[sample]
            further[further.index(old)] = new

    def spot(self, cell: int) -> tuple[int, int, int]:
        """The page of a cell, where it begins there, and its bytes."""
        page = cell >> SLOT_BITS
        width = self.widths.item(page)
        return page, (cell & SLOT_MASK) * width, width

    def encode(self) -> bytes:
        """All places as bytes."""
        samples = self.present()
        further = [[sample, len(cells), *cells] for sample, cells in self.more.items()]
        arrays = (
            samples.astype("<u4"),
            np.array(self._heads(samples), "<u4"),
            np.array([number for entry in further for number in entry], "<u4"),
            self.widths.astype("<u2"),
        )
        layout = self.layout
        head = _HEAD.pack(layout.page_bytes, *(len(array) for array in arrays))
        return head + b"".join(array.tobytes() for array in arrays)

    @classmethod
    def decode(cls, data: bytes | memoryview, layout: Layout) -> Contents:
        """Take places back from `encode`.

        Raises:
            CorruptCache: they are those of a file with pages of another size, or damaged.
        """
        try:
            page_bytes, count, heads, further, pages = _HEAD.unpack_from(data)
            if page_bytes != layout.page_bytes:
                raise CorruptCache(f"it was saved with pages of {page_bytes} bytes")
            contents = cls(layout)
            numbers = np.frombuffer(data, "<u4", count + heads + further, _HEAD.size)
            samples = numbers[:count]
            contents.widths = np.frombuffer(data, "<u2", pages, _HEAD.size + numbers.nbytes).astype(
                np.uint16
            )
            if not np.isin(
                contents.widths, [0, *(layout.value_bytes // m for m in CELLS_PER_PAGE)]
            ).all():
                raise ValueError("a cell has no size of ours")
            contents.pages = np.full(int(samples.max()) + 1 if count else 0, NOWHERE, _KEY)
            contents.begins = np.zeros(len(contents.pages), np.uint16)
            cells = numbers[count : count + heads]
            contents.pages[samples] = cells >> SLOT_BITS
            contents.begins[samples] = (cells & SLOT_MASK) * contents.widths[cells >> SLOT_BITS]
            entries = numbers[count + heads :].tolist()
        except (struct.error, ValueError, IndexError) as error:
            raise CorruptCache(f"the saved places are damaged: {error}") from error
        at = 0
        while at < len(entries):
            sample, length = entries[at : at + 2]
            contents.more[sample] = entries[at + 2 : at + 2 + length]
            at += 2 + length
        return contents

    def _heads(self, samples: np.ndarray | Sequence[int]) -> list[int]:
        """The first cell of each sample; `NOWHERE` if none."""
        if len(samples) == 1:
            return self.places(int(samples[0]))[:1] or [NOWHERE]
        pages = self.pages[samples].astype(np.uint32)
        there = pages != NOWHERE
        heads = np.full(len(pages), NOWHERE, np.uint32)
        pages = pages[there]
        slots = self.begins[samples][there] // self.widths[pages]
        heads[there] = (pages << SLOT_BITS) | slots
        cells: list[int] = heads.tolist()
        return cells

    def _note_widths(self, cells: Sequence[int], cells_per_page: int) -> None:
        highest = max(cells) >> SLOT_BITS
        if highest >= len(self.widths):
            grown = np.zeros(highest + 1 + highest // 8, np.uint16)
            grown[: len(self.widths)] = self.widths
            self.widths = grown
        width = self.layout.value_bytes // cells_per_page
        for page in {cell >> SLOT_BITS for cell in cells}:
            self.widths[page] = width

    def _survey(self) -> Cells:
        """Who owns which cell, from the places of all samples."""
        cells = Cells(self.layout.payload_pages)
        samples = self.present()
        further = [(cell, sample) for sample, more in self.more.items() for cell in more]
        owned = np.array(further, np.int64).reshape(-1, 2)
        places = np.concatenate([np.array(self._heads(samples), np.int64), owned[:, 0]])
        owners = np.concatenate([samples, owned[:, 1]])
        order = np.argsort(places)
        places, owners = places[order], owners[order]
        pages, first = np.unique(places >> SLOT_BITS, return_index=True)
        classes = {self.layout.value_bytes // m: m for m in CELLS_PER_PAGE}
        slots, samples_of = (places & SLOT_MASK).tolist(), owners.tolist()
        bounds = [*first.tolist(), len(places)]
        for page, (begin, end) in zip(pages.tolist(), pairwise(bounds), strict=True):
            pairs = zip(slots[begin:end], samples_of[begin:end], strict=True)
            cells.adopt(page, classes[self.widths.item(page)], pairs)
        cells.adopted(self.in_file())
        return cells
