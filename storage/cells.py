"""Where the rests of samples lie: pages cut into equal cells, as few pages as possible."""

from __future__ import annotations

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
    `compact` at most one page of each class has free cells: ceil(cells / m) pages are held, and
    a removal has touched two pages at most.
    """

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.pages: dict[int, Page] = {}
        # Class -> page -> its free places, for pages that have any.
        self._free: dict[int, dict[int, list[int]]] = {}
        self._next_page = 0
        self._spare_pages: list[int] = []

    def adopt(self, number: int, occupants: list[int]) -> None:
        """Take over a page as it was found, free cells marked `EMPTY`."""
        self.pages[number] = Page(page_key(len(occupants), number), occupants)
        for place, sample in enumerate(occupants):
            if sample == EMPTY:
                self._release(number, place)
            else:
                self.places[sample] = self.cell(number, place)
        self._next_page = max(self._next_page, number + 1)

    def adopted(self) -> None:
        """All pages have been adopted: the numbers between them are free."""
        self._spare_pages = [n for n in range(self._next_page) if n not in self.pages]

    def free(self, sample: int) -> int:
        """Give up the cell of a sample; returns the cell."""
        cell = self.places.pop(sample)
        self._release(*self.spot(cell))
        return cell

    def take(self, sample: int, cells: int) -> int:
        """Find a cell for a sample in a page of `cells` cells, a new page if need be."""
        free = self._free.setdefault(cells, {})
        if not free:
            number = self._spare_pages.pop() if self._spare_pages else self._next_page
            self._next_page = max(self._next_page, number + 1)
            self.pages[number] = Page(page_key(cells, number), [EMPTY] * cells)
            free[number] = list(range(cells))
        # The page that got room last: a transaction that removes and puts touches it once.
        return self._settle(sample, next(reversed(free)))

    def compact(self) -> tuple[list[tuple[int, int]], dict[int, Page]]:
        """Fill the free cells of each class from its emptiest page, and drop empty pages.

        Returns:
            The moves (from cell, to cell) in order, and the pages that are gone, by number.
        """
        moves: list[tuple[int, int]] = []
        gone: dict[int, Page] = {}
        for cells, free in self._free.items():
            while free:
                emptiest = max(free, key=lambda number: len(free[number]))
                if len(free[emptiest]) == cells:
                    del free[emptiest]
                    gone[emptiest] = self.pages.pop(emptiest)
                    self._spare_pages.append(emptiest)
                elif len(free) > 1:
                    target = next(number for number in free if number != emptiest)
                    sample = next(s for s in self.pages[emptiest].occupants if s != EMPTY)
                    source = self.free(sample)
                    moves.append((source, self._settle(sample, target)))
                else:
                    break
        return moves, gone

    def cell(self, number: int, place: int) -> int:
        """The cell at a place of a page."""
        return number * _CELLS + place

    def spot(self, cell: int) -> tuple[int, int]:
        """The page of a cell and its place there."""
        return divmod(cell, _CELLS)

    def _release(self, number: int, place: int) -> None:
        occupants = self.pages[number].occupants
        occupants[place] = EMPTY
        self._free.setdefault(len(occupants), {}).setdefault(number, []).append(place)

    def _settle(self, sample: int, number: int) -> int:
        """Put a sample into a page that has room."""
        occupants = self.pages[number].occupants
        free = self._free[len(occupants)]
        place = free[number].pop()
        if not free[number]:
            del free[number]
        occupants[place] = sample
        cell = self.cell(number, place)
        self.places[sample] = cell
        return cell
