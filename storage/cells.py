"""Where the rests of samples lie: pages cut into equal cells, as few pages as possible."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

EMPTY = 0xFFFFFFFF
"""The sample number of a free cell."""

PAGE_KEY = 1
_CELLS = 64


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its key in the store, and the sample in each of its cells."""

    key: bytes
    occupants: list[int]


def page_key(cells: int, number: int) -> bytes:
    """The key of page `number`, which is cut into `cells` cells."""
    return bytes((PAGE_KEY, cells)) + number.to_bytes(4, "big")


class Cells:
    """Assigns cells to samples and says what to move so that no page is held in vain.

    A cell is named by one number, its page times 64 plus its place there (`spot`). After
    `compact` every class has fewer free cells than one page has: ceil(cells / m) pages are held.
    """

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.pages: dict[int, Page] = {}
        self._free: dict[int, set[int]] = {}
        self._next_page = 0
        self._spare_pages: list[int] = []

    def adopt(self, number: int, occupants: list[int]) -> None:
        """Take over a page as it was found, free cells marked `EMPTY`."""
        self.pages[number] = Page(page_key(len(occupants), number), occupants)
        free = self._free.setdefault(len(occupants), set())
        for place, sample in enumerate(occupants):
            if sample == EMPTY:
                free.add(number * _CELLS + place)
            else:
                self.places[sample] = number * _CELLS + place
        self._next_page = max(self._next_page, number + 1)

    def adopted(self) -> None:
        """All pages have been adopted: the numbers between them are free."""
        self._spare_pages = [n for n in range(self._next_page) if n not in self.pages]

    def free(self, sample: int) -> int:
        """Give up the cell of a sample; returns the cell."""
        cell = self.places.pop(sample)
        number, place = self.spot(cell)
        occupants = self.pages[number].occupants
        occupants[place] = EMPTY
        self._free[len(occupants)].add(cell)
        return cell

    def take(self, sample: int, cells: int) -> int:
        """Find a cell for a sample in a page of `cells` cells, a new page if need be."""
        free = self._free.setdefault(cells, set())
        if not free:
            number = self._spare_pages.pop() if self._spare_pages else self._next_page
            self._next_page = max(self._next_page, number + 1)
            self.pages[number] = Page(page_key(cells, number), [EMPTY] * cells)
            free.update(range(number * _CELLS, number * _CELLS + cells))
        cell = free.pop()
        self._settle(sample, cell)
        return cell

    def compact(self) -> tuple[list[tuple[int, int]], dict[int, Page]]:
        """Empty the pages that are not needed.

        Returns:
            The moves (from cell, to cell) in order, and the pages that are gone, by number.
        """
        moves: list[tuple[int, int]] = []
        gone: dict[int, Page] = {}
        for cells, free in self._free.items():
            while len(free) >= cells:
                emptiest = Counter(cell // _CELLS for cell in free).most_common(1)[0][0]
                page = self.pages.pop(emptiest)
                free.difference_update(range(emptiest * _CELLS, emptiest * _CELLS + cells))
                for place, sample in enumerate(page.occupants):
                    if sample != EMPTY:
                        target = free.pop()
                        self._settle(sample, target)
                        moves.append((emptiest * _CELLS + place, target))
                self._spare_pages.append(emptiest)
                gone[emptiest] = page
        return moves, gone

    def cell(self, number: int, place: int) -> int:
        """The cell at a place of a page."""
        return number * _CELLS + place

    def spot(self, cell: int) -> tuple[int, int]:
        """The page of a cell and its place there."""
        return divmod(cell, _CELLS)

    def _settle(self, sample: int, cell: int) -> None:
        number, place = self.spot(cell)
        self.pages[number].occupants[place] = sample
        self.places[sample] = cell
