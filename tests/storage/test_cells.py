from __future__ import annotations

import numpy as np
import pytest

from storage.cells import SLOT_BITS, SLOT_MASK, Cells, PagesExhausted

CLASSES = [192, 20, 5, 2, 1]


def page_of(cell: int) -> int:
    return cell >> SLOT_BITS


def test_no_cell_is_ever_anybody_elses_through_random_changes() -> None:
    rng = np.random.default_rng(0)
    cells = Cells(40)
    held: dict[int, tuple[int, int]] = {}
    exhausted = 0
    for _ in range(3000):
        leaving = rng.choice(list(held), min(len(held), 3), replace=False) if held else []
        for sample in leaving:
            cells.release(held.pop(int(sample))[1])
        cells_per_page = int(rng.choice(CLASSES))
        coming = [s for s in rng.integers(0, 500, 6).tolist() if s not in held]
        coming = list(dict.fromkeys(coming))
        try:
            taken = cells.take(cells_per_page, coming)
        except PagesExhausted:
            exhausted += 1
            taken = []
        held |= {s: (cells_per_page, c) for s, c in zip(coming, taken, strict=False)}
        assert len({cell for _, cell in held.values()}) == len(held)
        classes: dict[int, int] = {}
        for cells_per_page, cell in held.values():
            assert classes.setdefault(page_of(cell), cells_per_page) == cells_per_page
            assert (cell & SLOT_MASK) < cells_per_page
            assert page_of(cell) < 40
    assert exhausted


def test_cells_are_taken_from_the_page_that_has_most() -> None:
    cells = Cells(10)
    taken = cells.take(5, list(range(15)))
    for cell in (taken[0], taken[6], taken[7], taken[11]):
        cells.release(cell)
    again = cells.take(5, [20, 21, 22])
    assert [page_of(cell) for cell in again[:2]] == [page_of(taken[6])] * 2
    assert page_of(again[2]) in {page_of(taken[0]), page_of(taken[11])}


def test_a_page_without_samples_serves_another_class() -> None:
    cells = Cells(1)
    taken = cells.take(2, [1, 2])
    with pytest.raises(PagesExhausted):
        cells.take(5, [3])
    for cell in taken:
        cells.release(cell)
    assert not cells.is_open(0)
    assert len(cells.take(5, [3, 4, 5, 6, 7])) == 5


def test_exhaustion_changes_nothing() -> None:
    cells = Cells(2)
    cells.take(5, [1, 2])
    with pytest.raises(PagesExhausted):
        cells.take(5, list(range(10, 20)))
    assert len(cells.take(5, list(range(10, 18)))) == 8


def test_evacuating_a_page_makes_it_free_with_few_moves() -> None:
    cells = Cells(4)
    taken = cells.take(5, list(range(20)))
    kept = {sample: taken[sample] for sample in range(20)}
    for sample in (0, 1, 2, 5, 10, 15):
        cells.release(kept.pop(sample))
    with pytest.raises(PagesExhausted):
        cells.take(1, [99])
    leaving = cells.evacuate()
    assert leaving is not None
    page, moves = leaving
    assert page == page_of(taken[0])
    assert sorted(sample for sample, _, _ in moves) == [3, 4]
    assert all(kept[sample] == old and page_of(new) != page for sample, old, new in moves)
    cells.close(page)
    assert page_of(cells.take(1, [99])[0]) == page
    assert cells.evacuate() is None


def test_a_page_that_could_not_be_evacuated_is_as_before() -> None:
    cells = Cells(4)
    taken = cells.take(5, list(range(10)))
    for cell in (taken[0], taken[1], taken[5], taken[6], taken[7]):
        cells.release(cell)
    leaving = cells.evacuate()
    assert leaving is not None
    page, moves = leaving
    for _, _, new in moves:
        cells.release(new)
    cells.restore(page)
    again = cells.evacuate()
    assert again is not None
    assert again[0] == page
    assert {old for _, old, _ in again[1]} == {old for _, old, _ in moves}


def test_pages_are_taken_over_as_they_were() -> None:
    cells = Cells(6)
    cells.adopt(3, 5, [(0, 7), (4, 9)])
    cells.adopt(1, 2, [(0, 8), (1, 10)])
    cells.adopted([0, 1, 3, 5])
    assert cells.holds_others(3, 1)
    assert not cells.holds_others(3, 2)
    assert {c & SLOT_MASK for c in cells.take(5, [20, 21, 22])} == {1, 2, 3}
    assert [page_of(c) for c in cells.take(1, [30, 31, 32, 33])] == [0, 5, 6, 7]
