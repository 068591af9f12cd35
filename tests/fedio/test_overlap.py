"""The queue of reading ahead: by hand, by its bounds, and against a simulation of its parts."""

from __future__ import annotations

import tracemalloc
from collections import deque
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.overlap import finish_alike_s, finish_s

# Whole seconds, so that sums in any order are exactly equal.
SECONDS = st.integers(0, 9)
STEPS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=9)
DEPTHS, READERS = st.integers(1, 6), st.integers(1, 4)


def finish(steps: list[tuple[int, int, int]], depth: float, readers: float) -> float:
    columns = np.array(steps, dtype=np.float64).T
    storage_s, decode_s, compute_s = (column[None] for column in columns)
    found = finish_s(storage_s, decode_s, compute_s, np.array([depth]), np.array([readers]))
    return float(found.item())


def simulated(steps: list[tuple[int, int, int]], depth: int, readers: int) -> float:
    """The same by discrete events: readers, one storage, places and a trainer, each at its turn."""
    events: list[tuple[float, int, str]] = []
    places, idle, waiting, ready = depth, readers, deque[int](), set[int]()
    taken = trained = 0
    is_reading = is_training = False
    now_s = 0.0
    while trained < len(steps):
        while taken < len(steps) and places and idle:
            waiting.append(taken)
            taken, places, idle = taken + 1, places - 1, idle - 1
        if waiting and not is_reading:
            is_reading, batch = True, waiting.popleft()
            heappush(events, (now_s + steps[batch][0], batch, "read"))
        if trained in ready and not is_training:
            is_training = True
            heappush(events, (now_s + steps[trained][2], trained, "trained"))
        now_s, batch, what = heappop(events)
        if what == "read":
            is_reading = False
            heappush(events, (now_s + steps[batch][1], batch, "decoded"))
        elif what == "decoded":
            ready.add(batch)
            idle += 1
        else:
            is_training, trained, places = False, trained + 1, places + 1
    return now_s


THREE = [(2, 1, 4), (2, 1, 1), (2, 1, 1)]


@pytest.mark.parametrize(
    ("depth", "readers", "end_s"),
    [
        (1, 1, 15),  # 7 + 4 + 4
        (2, 1, 11),  # batch 0 trains from 3 to 7, when 2 is begun: read at 9, ready at 10
        (2, 2, 11),  # the same: it is the place that 2 waits for
        (3, 1, 10),  # 1 is ready at 6, 2 at 9; 1 trains from 7 to 8, 2 from 9
        (3, 2, 9),  # 1 is read from 2 to 4, 2 to 6 and is ready at 7; they train from 7 to 9
    ],
)
def test_three_batches_by_hand(depth: int, readers: int, end_s: float) -> None:
    assert finish(THREE, depth, readers) == end_s


def test_readers_beyond_the_first_decode_side_by_side_but_read_in_turns() -> None:
    # Each is read for 1 s and decoded for 5: one reader takes 6 s each, two take 6 s for two.
    steps = [(1, 5, 0)] * 4
    assert [finish(steps, 9, readers) for readers in (1, 2, 3, 4)] == [24, 13, 12, 9]
    assert [finish([(3, 0, 0)] * 4, 9, readers) for readers in (1, 4)] == [12, 12]


def test_rows_have_nothing_to_do_with_each_other() -> None:
    rng = np.random.default_rng(3)
    seconds = rng.integers(0, 9, (3, 50, 6)).astype(np.float64)
    depth, readers = rng.integers(1, 5, (2, 50))
    together = finish_s(*seconds, depth, readers)
    alone = [finish(seconds[:, i].T.tolist(), depth[i], readers[i]) for i in range(50)]
    assert together.tolist() == alone


@given(STEPS, DEPTHS, READERS)
def test_the_recursion_is_what_happens_step_by_step(
    steps: list[tuple[int, int, int]], depth: int, readers: int
) -> None:
    assert finish(steps, depth, readers) == simulated(steps, depth, readers)


@given(STEPS, READERS)
def test_with_one_place_nothing_overlaps(steps: list[tuple[int, int, int]], readers: int) -> None:
    assert finish(steps, 1, readers) == sum(map(sum, steps))


@given(SECONDS, SECONDS, st.integers(1, 20), st.integers(2, 30))
def test_two_constant_rates_run_at_the_slower_one(
    fetch_s: int, compute_s: int, steps: int, depth: int
) -> None:
    end_s = fetch_s + max(fetch_s, compute_s) * (steps - 1) + compute_s
    for split in range(fetch_s + 1):
        each = (split, fetch_s - split, compute_s)
        assert finish([each] * steps, depth, 1) == end_s


@given(STEPS, DEPTHS, READERS)
def test_more_places_and_more_readers_never_end_later(
    steps: list[tuple[int, int, int]], depth: int, readers: int
) -> None:
    end_s = finish(steps, depth, readers)
    assert finish(steps, depth + 1, readers) <= end_s
    assert finish(steps, depth, readers + 1) <= end_s


@given(STEPS, DEPTHS, READERS)
def test_no_part_takes_less_than_its_own_time_and_all_no_more_than_the_sum(
    steps: list[tuple[int, int, int]], depth: int, readers: int
) -> None:
    storage_s, decode_s, compute_s = map(sum, zip(*steps, strict=True))
    end_s = finish(steps, depth, readers)
    assert end_s >= max(storage_s, compute_s, (storage_s + decode_s) / readers)
    assert end_s <= storage_s + decode_s + compute_s


@given(STEPS, DEPTHS, READERS, st.integers(1, 3))
def test_steps_of_nothing_at_the_end_change_nothing(
    steps: list[tuple[int, int, int]], depth: int, readers: int, more: int
) -> None:
    assert finish(steps + [(0, 0, 0)] * more, depth, readers) == finish(steps, depth, readers)


# --- all alike ----------------------------------------------------------------------------------


@given(
    st.tuples(SECONDS, SECONDS, SECONDS),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_steps_that_are_alike_need_no_walk(
    each: tuple[int, int, int], steps: int, depth: int, readers: int
) -> None:
    given_s = [np.array([float(seconds)]) for seconds in each]
    found = finish_alike_s(steps, *given_s, np.array([depth]), np.array([readers]))
    assert found.tolist() == [finish([each] * steps, depth, readers)]


def test_many_alike_at_once_are_as_each_alone() -> None:
    rng = np.random.default_rng(5)
    clients = 3000
    each = rng.integers(0, 9, (3, clients)).astype(np.float64)
    depth, readers = rng.integers(1, 9, (2, clients))
    for steps in (0, 1, 2, 7, 24):
        walked = finish_s(*np.repeat(each[:, :, None], steps, axis=2), depth, readers)
        np.testing.assert_array_equal(finish_alike_s(steps, *each, depth, readers), walked)


def test_a_depth_that_all_have_is_as_one_of_each() -> None:
    rng = np.random.default_rng(6)
    each = rng.integers(0, 9, (3, 500)).astype(np.float64)
    same, varied = np.full(500, 3.0), rng.integers(1, 9, 500).astype(np.float64)
    for depth, readers in ((same, varied), (varied, same), (same, same)):
        walked = finish_s(*np.repeat(each[:, :, None], 7, axis=2), depth, readers)
        np.testing.assert_array_equal(finish_alike_s(7, *each, depth, readers), walked)
    nobody = np.zeros(0)
    assert len(finish_alike_s(7, nobody, nobody, nobody, nobody, nobody)) == 0


def test_what_takes_for_ever_or_nobody_knows_how_long_does_so_at_any_depth() -> None:
    each = np.array([[np.inf, 1, 1, np.nan, 1, 1], [1, np.inf, 1, 1, np.nan, 1], [1] * 6])
    each[2, [2, 5]] = np.inf, np.nan
    for depth, readers in ((1, 1), (4, 1), (5, 3)):
        with np.errstate(invalid="ignore"):
            found = finish_alike_s(8, *each, np.full(6, depth), np.full(6, readers))
        np.testing.assert_array_equal(found, [np.inf, np.inf, np.inf, np.nan, np.nan, np.nan])


# --- what is claimed may be anything --------------------------------------------------------------

ODD = [np.nan, -np.inf, -5.0, 0.0, 0.9, 1.0, 2.9, 7.0, 1e9, 1e300, np.inf]
MEANS = [1, 1, 1, 1, 1, 1, 2, 7, 99, 99, 99]


def test_any_depth_and_any_number_of_readers_means_some_whole_number() -> None:
    each = np.array([[2.0], [3.0], [1.0]]).repeat(len(ODD), axis=1)
    by_step = each[:, :, None].repeat(8, axis=2)
    odd, means, many = np.array(ODD), np.array(MEANS), np.full(len(ODD), 6.0)
    for claimed, meant in (
        ((odd, many), (means, many)),
        ((many, odd), (many, means)),
        ((odd, odd), (means, means)),
    ):
        expected = finish_s(*by_step, *meant)
        np.testing.assert_array_equal(finish_s(*by_step, *claimed), expected)
        np.testing.assert_array_equal(finish_alike_s(8, *each, *claimed), expected)


def test_readers_that_are_claimed_take_no_memory() -> None:
    each, by_step = np.ones((3, 2)), np.ones((3, 2, 8))
    claimed = np.full(2, 3e6)
    tracemalloc.start()
    finish_s(*by_step, claimed, claimed)
    finish_alike_s(8, *each, claimed, claimed)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1e6
