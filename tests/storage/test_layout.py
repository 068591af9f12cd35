from __future__ import annotations

import numpy as np
import pytest

from storage import cost, usable_bytes
from storage.cells import EMPTY, Cells
from storage.layout import (
    CELL_PAYLOAD_BYTES,
    CELLS_PER_PAGE,
    LARGEST_REST_BYTES,
    PAGE_BYTES,
    PAGE_CHARGE_BYTES,
    VALUE_BYTES,
    cells_per_page,
    map_bytes_for_budget,
    map_bytes_for_payloads,
    whole_pages,
)

SIZES = np.arange(0, 5 * VALUE_BYTES)


def test_the_charge_never_falls_and_covers_the_payload() -> None:
    charged = cost(SIZES)
    assert (np.diff(charged) >= 0).all()
    assert (charged > SIZES).all()


def test_the_charge_is_that_of_the_pages_and_cells_in_use() -> None:
    for size, charged in zip(SIZES.tolist(), cost(SIZES).tolist(), strict=True):
        pages = whole_pages(size)
        rest = max(0, size - pages * VALUE_BYTES)
        cells = cells_per_page(rest)
        assert rest <= LARGEST_REST_BYTES
        assert rest <= CELL_PAYLOAD_BYTES[CELLS_PER_PAGE.index(cells)]
        assert charged == pages * PAGE_CHARGE_BYTES + -(-PAGE_CHARGE_BYTES // cells)


def test_one_raw_image_of_28_by_28_takes_a_fifth_of_a_page() -> None:
    assert cost(np.array([784])).tolist() == [PAGE_CHARGE_BYTES // 5]


@pytest.mark.parametrize("budget", [0, 1, 5, 4096, 100_000, 1 << 20, (1 << 20) + 1, 1 << 34])
def test_the_usable_part_is_within_the_budget_and_never_falls(budget: int) -> None:
    assert 0 <= usable_bytes(budget) <= budget
    assert usable_bytes(budget + 1) >= usable_bytes(budget)
    assert usable_bytes(budget) >= budget * 0.83 - 1


def test_a_map_is_the_budget_in_whole_pages_but_not_tiny() -> None:
    assert map_bytes_for_budget(0) == 1 << 20
    assert map_bytes_for_budget((1 << 24) + 5000) == (1 << 24) + PAGE_BYTES


@pytest.mark.parametrize("sizes", [[], [784] * 10, [784] * 5000, [3_000_000] * 7])
def test_a_map_for_payloads_has_room_for_all_of_them(sizes: list[int]) -> None:
    payload_bytes = np.array(sizes, np.int64)
    assert usable_bytes(map_bytes_for_payloads(payload_bytes)) >= cost(payload_bytes).sum()


def test_cells_hold_as_few_pages_as_possible_through_random_changes() -> None:
    rng = np.random.default_rng(0)
    cells = Cells()
    classes: dict[int, int] = {}
    where: dict[int, tuple[int, int]] = {}
    for _ in range(3000):
        for sample in rng.integers(0, 300, 4).tolist():
            if sample in classes and rng.random() < 0.6:
                cells.free(sample)
                del classes[sample]
            elif sample not in classes:
                classes[sample] = int(rng.choice([64, 5, 2, 1]))
                cells.take(sample, classes[sample])
        cells.compact()
        where = {sample: cells.spot(cell) for sample, cell in cells.places.items()}
        assert where.keys() == classes.keys()
        for sample, (number, place) in where.items():
            assert cells.pages[number].occupants[place] == sample
            assert len(cells.pages[number].occupants) == classes[sample]
        for cells_each in (64, 5, 2, 1):
            pages = [p for p in cells.pages.values() if len(p.occupants) == cells_each]
            count = sum(c == cells_each for c in classes.values())
            assert len(pages) == -(-count // cells_each)
            assert sum(s != EMPTY for p in pages for s in p.occupants) == count
