"""How samples lie in a cache file, and what they are charged for that.

The file is a table of pages. A page of class m is cut into m equal cells; a payload is cut into
whole pages (class 1) and a rest, which lies in the smallest cell that holds it, or in two smaller
cells where that saves a sixteenth. Every value in the file is one page long, so that no run of
pages ever has to be found and the file cannot fragment. Cells of one class are interchangeable.

The charge follows: 1/m of a page for each cell. It depends on size and page alone, is the same for
every store, and never falls as the size grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple, Self

import numpy as np

CELLS_PER_PAGE = (192, 96, 64, 48, 32, 24, 20, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1)
"""The classes of pages, smallest cells first."""

SMALL_PAGE_BYTES, LARGE_PAGE_BYTES = 4096, 16384
LARGE_FROM_BYTES = 8 << 20
"""From this budget on pages are large: cells fit better, and a page is what flash programs."""

SMALLEST_MAP_BYTES = 1 << 20
"""Budgets below this are charged alike, but their file may be larger than the budget."""

ROOMY_MAP_BYTES = 16 << 20
"""The smallest file for declared sizes: it is no budget, and only pages in use take space."""

PAGE_HEADER_BYTES = 16
TREE_BYTES_PER_PAGE = 64
"""An entry for a page takes 20 bytes of a tree page, which random keys leave half full."""

# The two meta pages and the top of both trees.
_FIXED_PAGES = 2 + 2 * 4
_ROUNDING_PAGES = 2
_LARGEST_TRANSACTION_PAGES = 64


class Rests(NamedTuple):
    """What becomes of a rest of 0..value_bytes bytes; all arrays are indexed by its length.

    Attributes:
        first: the class of the cell that it begins in.
        second: the class of the cell that it ends in, 0 when it lies in one.
        charge_bytes: int64, what both are charged.
    """

    first: np.ndarray
    second: np.ndarray
    charge_bytes: np.ndarray


@dataclass(frozen=True, slots=True)
class Layout:
    """The geometry of one cache file.

    Attributes:
        page_bytes: of every page.
        map_bytes: the largest size of the file.
    """

    page_bytes: int
    map_bytes: int

    @classmethod
    def for_budget(cls, budget_bytes: int) -> Self:
        """Return the layout of a file whose samples are charged their real bytes."""
        large = budget_bytes >= LARGE_FROM_BYTES
        page_bytes = LARGE_PAGE_BYTES if large else SMALL_PAGE_BYTES
        return cls(page_bytes, max(SMALLEST_MAP_BYTES, budget_bytes // page_bytes * page_bytes))

    @classmethod
    def for_payloads(cls, payload_bytes: np.ndarray) -> Self:
        """Return the layout of a file that can hold all of these payloads (int64[n]) at once."""
        page_bytes = cls.for_budget(int(payload_bytes.sum())).page_bytes
        total = int(cls(page_bytes, ROOMY_MAP_BYTES).cost(payload_bytes).sum())
        generous = total + total // 8 + 2 * cls(page_bytes, total).reserved_pages * page_bytes
        map_bytes = max(generous, ROOMY_MAP_BYTES)
        return cls(page_bytes, -(-map_bytes // page_bytes) * page_bytes)

    @property
    def value_bytes(self) -> int:
        """The bytes of payload in a page."""
        return self.page_bytes - PAGE_HEADER_BYTES

    @property
    def transaction_pages(self) -> int:
        """How many pages of payload one transaction may write."""
        pages = self.map_bytes // self.page_bytes
        return min(max(4, pages // 64), _LARGEST_TRANSACTION_PAGES)

    @property
    def reserved_pages(self) -> int:
        """Pages that residents cannot be charged for.

        Meta pages, the top of the trees, one partly filled page of each class, and what two
        transactions write: a page that one frees can be used again by the next but one. Each
        writes its payload pages and as many tree pages at most.
        """
        in_flight = 2 * (self.transaction_pages + min(self.transaction_pages, _tree_pages(self)))
        return _FIXED_PAGES + _ROUNDING_PAGES + len(CELLS_PER_PAGE) + in_flight

    @property
    def payload_pages(self) -> int:
        """How many pages of payload the file may hold; the charge keeps the need below that."""
        charge = self.page_bytes + TREE_BYTES_PER_PAGE
        fixed = self.reserved_pages - _ROUNDING_PAGES - len(CELLS_PER_PAGE)
        return (self.map_bytes - fixed * self.page_bytes) // charge

    def cost(self, size_bytes: np.ndarray) -> np.ndarray:
        """The bytes of budget that samples of `size_bytes` (int64[k]) are charged, int64[k]."""
        value_bytes = self.value_bytes
        size_bytes = np.asarray(size_bytes, np.int64)
        pages = np.maximum(0, (size_bytes - 1) // value_bytes)
        charged: np.ndarray = (
            pages * (self.page_bytes + TREE_BYTES_PER_PAGE)
            + rests(value_bytes).charge_bytes[size_bytes - pages * value_bytes]
        )
        return charged

    def cost_of(self, size_bytes: int) -> int:
        """The charge of one sample."""
        return _cost_of(size_bytes, self.page_bytes)


class Cut(NamedTuple):
    """What a payload is cut into: whole pages, and the classes of one or two cells.

    Attributes:
        pages: how many whole pages come first.
        first: the class of the cell after them.
        second: that of the last cell; 0 when there is none.
    """

    pages: int
    first: int
    second: int


@lru_cache(maxsize=4096)
def cut(length_bytes: int, value_bytes: int) -> Cut:
    """What a payload of this length is cut into, where pages hold `value_bytes`."""
    table = rests(value_bytes)
    pages = max(0, (length_bytes - 1) // value_bytes)
    rest = length_bytes - pages * value_bytes
    return Cut(pages, table.first.item(rest), table.second.item(rest))


@lru_cache(maxsize=4096)
def _cost_of(size_bytes: int, page_bytes: int) -> int:
    value_bytes = page_bytes - PAGE_HEADER_BYTES
    pages = max(0, (size_bytes - 1) // value_bytes)
    rest: int = rests(value_bytes).charge_bytes.item(size_bytes - pages * value_bytes)
    return pages * (page_bytes + TREE_BYTES_PER_PAGE) + rest


def usable_bytes(budget_bytes: int) -> int:
    """What is left of a budget for samples, after the fixed overhead of the file.

    The overhead is never more than a fifth, so that tiny budgets are worth something.
    """
    layout = Layout.for_budget(budget_bytes)
    return budget_bytes - min(layout.reserved_pages * layout.page_bytes, -(-budget_bytes // 5))


@cache
def rests(value_bytes: int) -> Rests:
    """The table of rests for pages that hold `value_bytes`."""
    classes = np.array(CELLS_PER_PAGE)
    cell_bytes = value_bytes // classes
    page_bytes = value_bytes + PAGE_HEADER_BYTES + TREE_BYTES_PER_PAGE
    charge_bytes = -(-page_bytes // classes)
    length = np.arange(value_bytes + 1)
    one = np.searchsorted(cell_bytes, length)
    filled = np.maximum(0, one - 1)
    other = np.searchsorted(cell_bytes, np.maximum(0, length - cell_bytes[filled]))
    two_charge_bytes = charge_bytes[filled] + charge_bytes[other]
    split = (one > 0) & (two_charge_bytes * 16 <= charge_bytes[one] * 15)
    return Rests(
        first=classes[np.where(split, filled, one)],
        second=np.where(split, classes[other], 0),
        charge_bytes=np.where(split, two_charge_bytes, charge_bytes[one]),
    )


def _tree_pages(layout: Layout) -> int:
    """How many pages the entries of all pages take."""
    return layout.map_bytes // layout.page_bytes * TREE_BYTES_PER_PAGE // layout.page_bytes + 1
