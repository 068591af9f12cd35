"""How a sample lies in a cache file, and what it is charged for that.

Every value in the file has at most 4,080 bytes, so that it takes exactly one page of LMDB (a page
of 4,096 bytes has a header of 16): no run of pages ever has to be found, and the file cannot
fragment. A payload is cut into whole pages and a rest. The rest lies in a *cell*: a page of class m
is cut into m equal cells, and m is the largest class whose cells hold the rest. Pages of one class
are interchangeable, so the store keeps ceil(cells / m) of them and no more.

The charge follows: a share of 1/m of a page for the cell, plus the whole pages. It depends on the
size alone, is the same for every store, and never falls as the size grows.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

PAGE_BYTES = 4096
VALUE_BYTES = 4080
"""The largest value that lies in one page."""

PAGE_CHARGE_BYTES = PAGE_BYTES + 64
"""A page and its entry in the tree: 26 bytes, in tree pages that random keys leave half full."""

CELL_HEADER_BYTES = 12
CELLS_PER_PAGE = (64, 48, 32, 24, 16, 12, 10, 8, 6, 5, 4, 3, 2, 1)
CELL_PAYLOAD_BYTES = tuple(VALUE_BYTES // m - CELL_HEADER_BYTES for m in CELLS_PER_PAGE)
LARGEST_REST_BYTES = CELL_PAYLOAD_BYTES[-1]

SMALLEST_MAP_BYTES = 1 << 20
"""Budgets below this are charged alike, but their file may be larger than the budget."""

ROOMY_MAP_BYTES = 16 << 20
"""The smallest file for declared sizes: a batch of 32 samples and their victims fit one write."""

RESERVED_PAGES = 24
"""Two meta pages, a partly filled page of each class, and the tree of free pages."""

_CELL_PAYLOADS = np.array(CELL_PAYLOAD_BYTES, np.int64)
_CELL_CHARGES = np.array([-(-PAGE_CHARGE_BYTES // m) for m in CELLS_PER_PAGE], np.int64)


def cost(size_bytes: np.ndarray) -> np.ndarray:
    """The bytes of budget that samples of `size_bytes` (int64[k]) are charged, int64[k]."""
    size_bytes = np.asarray(size_bytes, np.int64)
    pages = np.maximum(0, -((LARGEST_REST_BYTES - size_bytes) // VALUE_BYTES))
    rest = np.maximum(0, size_bytes - pages * VALUE_BYTES)
    charged: np.ndarray = (
        pages * PAGE_CHARGE_BYTES + _CELL_CHARGES[np.searchsorted(_CELL_PAYLOADS, rest)]
    )
    return charged


def whole_pages(length_bytes: int) -> int:
    """How many whole pages a payload takes before its rest."""
    return max(0, -((LARGEST_REST_BYTES - length_bytes) // VALUE_BYTES))


def cells_per_page(rest_bytes: int) -> int:
    """The class of page whose cells hold a rest of this length."""
    return CELLS_PER_PAGE[bisect_left(CELL_PAYLOAD_BYTES, rest_bytes)]


def usable_bytes(budget_bytes: int) -> int:
    """What is left of a budget for samples, after the fixed overhead of the file.

    The overhead is `RESERVED_PAGES` and a sixteenth for pages that a running transaction may not
    reuse yet, but never more than a sixth, so that tiny budgets are worth something.
    """
    overhead = RESERVED_PAGES * PAGE_BYTES + budget_bytes // 16
    return budget_bytes - min(overhead, -(-budget_bytes // 6))


def map_bytes_for_budget(budget_bytes: int) -> int:
    """The size of the file whose samples are charged their real bytes: the budget itself."""
    return max(SMALLEST_MAP_BYTES, budget_bytes // PAGE_BYTES * PAGE_BYTES)


def map_bytes_for_payloads(payload_bytes: np.ndarray) -> int:
    """The size of a file that can hold all of these payloads (int64[n]) at once.

    It is no budget, and only pages in use take space, so there is room for large transactions.
    """
    total = int(cost(payload_bytes).sum())
    generous = total + total // 8 + 2 * RESERVED_PAGES * PAGE_BYTES
    return map_bytes_for_budget(max(generous, ROOMY_MAP_BYTES))
