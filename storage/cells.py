"""Which cells of which pages are free: taken where most are, so that few pages are written."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from storage.layout import CELLS_PER_PAGE

NOBODY = 0xFFFFFFFF
"""The sample number that owns a free cell."""

SLOT_BITS = 8
SLOT_MASK = (1 << SLOT_BITS) - 1


class PagesExhausted(Exception):  # noqa: N818 - reads as what happened
    """No free cell of the class is left, and no page to cut into cells."""


class Cells:
    """Assigns cells to samples; a cell is one number, its page times 256 plus its slot there.

    A page belongs to a class while any of its cells is taken. Cells are taken from the page with
    the most free ones, until it is full: samples that came together lie together, and as they tend
    to leave together, one written page serves many.
    """

    def __init__(self, most_pages: int) -> None:
        self.most_pages = most_pages
        self._next_page = 0
        self._spare_pages: list[int] = []
        self._owners: dict[int, array[int]] = {}
        self._holes = {cells: _Holes(cells) for cells in CELLS_PER_PAGE}

    def adopt(self, page: int, cells_per_page: int, owners: Iterable[tuple[int, int]]) -> None:
        """Take over a page with the (slot, sample) pairs that own its cells."""
        taken = array("I", [NOBODY]) * cells_per_page
        for slot, sample in owners:
            taken[slot] = sample
        self._owners[page] = taken
        free = [slot for slot, sample in enumerate(taken) if sample == NOBODY]
        if free:
            self._holes[cells_per_page].add(page, free)

    def adopted(self, in_file: Sequence[int]) -> None:
        """All pages have been adopted; of those in the file, the others are used first."""
        free = [page for page in in_file if page not in self._owners]
        self._spare_pages = sorted(free, reverse=True)
        self._next_page = max((*in_file, *self._owners), default=-1) + 1

    def take(self, cells_per_page: int, samples: Sequence[int]) -> list[int]:
        """Assign a cell of this class to each sample.

        Raises:
            PagesExhausted: there are not so many; nothing has changed then.
        """
        if cells_per_page == 1:
            return self._take_pages(samples)
        holes = self._holes[cells_per_page]
        cells: list[int] = []
        while len(cells) < len(samples):
            page = holes.emptiest()
            if page is None:
                page = self._open(cells_per_page)
            if page is None:
                for cell in cells:
                    self.release(cell)
                raise PagesExhausted
            free = holes.remove(page)
            owners = self._owners[page]
            for sample in samples[len(cells) : len(cells) + len(free)]:
                slot = free.pop()
                owners[slot] = sample
                cells.append((page << SLOT_BITS) | slot)
            if free:
                holes.add(page, free)
        return cells

    def release(self, cell: int) -> None:
        """Give a cell up."""
        page, slot = cell >> SLOT_BITS, cell & SLOT_MASK
        owners = self._owners[page]
        owners[slot] = NOBODY
        size = len(owners)
        if size == 1 or self._holes[size].grow(page, slot):
            self.close(page)

    def is_open(self, page: int) -> bool:
        """Whether any cell of a page is taken."""
        return page in self._owners

    def holds_others(self, page: int, cells: int) -> bool:
        """Whether more than so many of the page's cells are taken."""
        owners = self._owners[page]
        return len(owners) - self._holes[len(owners)].count_of(page) > cells

    def evacuate(self) -> tuple[int, list[tuple[int, int, int]]] | None:
        """Move the samples of a page to free cells elsewhere, where little has to move for it.

        Returns:
            The page, and for each sample (sample, its old cell, its new cell); `close` the page
            when they have moved. None when there are too few free cells for that.
        """
        choices = [holes for holes in self._holes.values() if holes.total >= holes.cells_per_page]
        if not choices:
            return None
        holes = min(choices, key=lambda h: 1 - h.most() / h.cells_per_page)
        page = holes.emptiest()
        if page is None:
            return None
        holes.remove(page)
        owners = self._owners[page]
        slots = [slot for slot, sample in enumerate(owners) if sample != NOBODY]
        samples = [owners[slot] for slot in slots]
        new = self.take(len(owners), samples)
        old = [(page << SLOT_BITS) | slot for slot in slots]
        return page, list(zip(samples, old, new, strict=True))

    def close(self, page: int) -> None:
        """Make a page without samples free for any class."""
        del self._owners[page]
        self._spare_pages.append(page)

    def restore(self, page: int) -> None:
        """The samples of a page that was to be evacuated stay where they are."""
        owners = self._owners[page]
        free = [slot for slot, sample in enumerate(owners) if sample == NOBODY]
        if free:
            self._holes[len(owners)].add(page, free)

    def _take_pages(self, samples: Sequence[int]) -> list[int]:
        spare = self._spare_pages
        if len(self._owners) + len(samples) > self.most_pages:
            raise PagesExhausted
        reused = min(len(samples), len(spare))
        pages = spare[len(spare) - reused :]
        pages.reverse()  # the lowest first
        del spare[len(spare) - reused :]
        first, self._next_page = self._next_page, self._next_page + len(samples) - reused
        pages += range(first, self._next_page)
        for page, sample in zip(pages, samples, strict=True):
            self._owners[page] = array("I", (sample,))
        return [page << SLOT_BITS for page in pages]

    def _open(self, cells_per_page: int) -> int | None:
        if len(self._owners) >= self.most_pages:
            return None
        if self._spare_pages:
            page = self._spare_pages.pop()
        else:
            page = self._next_page
            self._next_page += 1
        self._owners[page] = array("I", [NOBODY]) * cells_per_page
        self._holes[cells_per_page].add(page, list(range(cells_per_page - 1, -1, -1)))
        return page


class _Holes:
    """The free slots of the pages of one class, pages sorted by how many they have."""

    def __init__(self, cells_per_page: int) -> None:
        self.cells_per_page = cells_per_page
        self.total = 0
        self._slots: dict[int, list[int]] = {}
        self._pages: list[dict[int, None]] = [{} for _ in range(cells_per_page + 1)]
        self._top = 0

    def add(self, page: int, slots: list[int]) -> None:
        """Take in a page with free slots."""
        count = len(slots)
        self._slots[page] = slots
        self._pages[count][page] = None
        self.total += count
        self._top = max(self._top, count)

    def remove(self, page: int) -> list[int]:
        """Take a page out; returns its free slots."""
        slots = self._slots.pop(page)
        del self._pages[len(slots)][page]
        self.total -= len(slots)
        return slots

    def grow(self, page: int, slot: int) -> bool:
        """A slot of a page is free now; returns True, with the page taken out, when all are."""
        slots = self._slots.get(page)
        if slots is None:
            slots = self._slots[page] = []
        else:
            del self._pages[len(slots)][page]
        slots.append(slot)
        count = len(slots)
        if count == self.cells_per_page:
            del self._slots[page]
            self.total -= count - 1
            return True
        self._pages[count][page] = None
        self.total += 1
        self._top = max(self._top, count)
        return False

    def count_of(self, page: int) -> int:
        """How many slots of a page are free."""
        return len(self._slots.get(page, ()))

    def most(self) -> int:
        """How many free slots the emptiest page has."""
        while self._top and not self._pages[self._top]:
            self._top -= 1
        return self._top

    def emptiest(self) -> int | None:
        """The page with the most free slots, that which changed last among equals."""
        most = self.most()
        return next(reversed(self._pages[most])) if most else None
