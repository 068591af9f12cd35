from __future__ import annotations

import numpy as np
import pytest

from storage import Layout, usable_bytes
from storage.layout import CELLS_PER_PAGE, TREE_BYTES_PER_PAGE, rests

LAYOUTS = [Layout.for_budget(1 << 20), Layout.for_budget(16 << 20)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_charge_never_falls_and_covers_the_payload(layout: Layout) -> None:
    sizes = np.arange(0, 4 * layout.value_bytes)
    charged = layout.cost(sizes)
    assert (np.diff(charged) >= 0).all()
    assert (charged > sizes).all()
    assert charged[:3000].tolist() == [layout.cost_of(size) for size in range(3000)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_cells_of_a_rest_hold_it_and_are_charged_as_shares_of_a_page(layout: Layout) -> None:
    table = rests(layout.value_bytes)
    page = layout.page_bytes + TREE_BYTES_PER_PAGE
    for rest in range(layout.value_bytes + 1):
        cells = [m for m in (table.first[rest], table.second[rest]) if m]
        assert sum(layout.value_bytes // m for m in cells) >= rest
        assert all(m in CELLS_PER_PAGE for m in cells)
        assert table.charge_bytes[rest] == sum(-(-page // m) for m in cells)


@pytest.mark.parametrize(
    ("size", "share"),
    [(785, 0.95), (2044, 0.99), (3072, 0.93), (3073, 0.93), (4096, 0.97), (150_000, 0.99)],
)
def test_awkward_sizes_waste_little_of_a_large_page(size: int, share: float) -> None:
    assert size / LAYOUTS[1].cost_of(size) > share


def test_a_sample_of_three_kilobytes_lies_in_one_cell() -> None:
    table = rests(LAYOUTS[1].value_bytes)
    assert (table.first[3072], table.second[3072]) == (5, 0)


@pytest.mark.parametrize("budget", [0, 1, 5, 4096, 100_000, 1 << 20, (1 << 20) + 1, 1 << 34])
def test_the_usable_part_is_within_the_budget_and_never_falls(budget: int) -> None:
    assert 0 <= usable_bytes(budget) <= budget
    assert usable_bytes(budget + 1) >= usable_bytes(budget)
    assert usable_bytes(budget) >= budget * 0.8 - 1


@pytest.mark.parametrize("budget", [1 << 20, 3_000_001, 8 << 20, 16 << 20, 1 << 30])
def test_residents_never_need_more_pages_than_there_are(budget: int) -> None:
    layout = Layout.for_budget(budget)
    page = layout.page_bytes + TREE_BYTES_PER_PAGE
    most = usable_bytes(budget) // page + len(CELLS_PER_PAGE)
    assert most <= layout.payload_pages
    others = layout.reserved_pages - len(CELLS_PER_PAGE) - 2
    assert layout.payload_pages * page + others * layout.page_bytes <= layout.map_bytes <= budget


def test_a_map_is_the_budget_in_whole_pages_but_not_tiny() -> None:
    assert Layout.for_budget(0) == Layout(4096, 1 << 20)
    assert Layout.for_budget((1 << 24) + 20_000) == Layout(16384, (1 << 24) + 16384)


@pytest.mark.parametrize("sizes", [[], [784] * 10, [784] * 5000, [784] * 50_000, [3_000_000] * 7])
def test_a_map_for_payloads_has_room_for_all_of_them(sizes: list[int]) -> None:
    payload_bytes = np.array(sizes, np.int64)
    layout = Layout.for_payloads(payload_bytes)
    charged = int(layout.cost(payload_bytes).sum())
    page = layout.page_bytes + TREE_BYTES_PER_PAGE
    assert -(-charged // page) + len(CELLS_PER_PAGE) <= layout.payload_pages
    assert layout.map_bytes % layout.page_bytes == 0
