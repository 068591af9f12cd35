"""Decoding and training that slow each other down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.contention import Contended, contended
from fedio.overlap import finish_s

SECONDS = st.integers(0, 9)
STEPS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=9)
DEPTHS = st.integers(1, 6)


def walk(steps: list[tuple[int, int, int]], depth: int, slowdown: float) -> Contended:
    columns = np.array(steps, dtype=np.float64).T
    each = (column[None] for column in columns)
    return contended(*each, np.array([depth]), np.array([slowdown]))


@given(STEPS, DEPTHS)
def test_without_a_slowdown_it_is_the_queue(steps: list[tuple[int, int, int]], depth: int) -> None:
    found = walk(steps, depth, 1.0)
    storage_s, decode_s, compute_s = (c[None].astype(float) for c in np.array(steps).T)
    queue_s = finish_s(storage_s, decode_s, compute_s, np.array([depth]), np.array([1]))
    assert found.finished_s == queue_s
    assert found.decode_s == decode_s.sum()
    assert found.compute_s == compute_s.sum()


@given(STEPS, DEPTHS, st.sampled_from([1.25, 1.5, 2.0, 4.0]))
def test_what_overlaps_takes_longer_and_the_rest_does_not(
    steps: list[tuple[int, int, int]], depth: int, slowdown: float
) -> None:
    plain, found = walk(steps, depth, 1.0), walk(steps, depth, slowdown)
    decode_s, compute_s = float(plain.decode_s[0]), float(plain.compute_s[0])
    # Both lose the same: while both go on, each does 1 / slowdown of what it would do.
    lost_s = float(found.decode_s[0]) - decode_s
    assert float(found.compute_s[0]) - compute_s == pytest.approx(lost_s)
    assert -1e-9 <= lost_s <= (slowdown - 1) * min(decode_s, compute_s) + 1e-9
    in_turns_s = float(np.array(steps).sum())
    assert float(plain.finished_s[0]) <= float(found.finished_s[0]) + 1e-9
    if slowdown <= 2:  # reading ahead is worth it as long as it is no more than twice
        assert float(found.finished_s[0]) <= in_turns_s + 1e-9
    if depth == 1:
        assert lost_s == 0
        assert found.finished_s == in_turns_s


def test_by_hand() -> None:
    # Decoding 2 s and training 2 s overlap but for the first batch and the last: 1.5 times as long.
    found = walk([(0, 2, 2)] * 3, 2, 1.5)
    assert found.finished_s == pytest.approx(2 + 3 + 3 + 2)
    assert found.decode_s == found.compute_s == pytest.approx(2 + 3 + 3)


def test_participations_do_not_depend_on_one_another() -> None:
    rng = np.random.default_rng(0)
    storage_s, decode_s, compute_s = rng.exponential(size=(3, 40, 6))
    depth, slowdown = rng.integers(1, 5, 40), 1 + rng.exponential(size=40)
    together = contended(storage_s, decode_s, compute_s, depth, slowdown)
    for i in range(40):
        one = slice(i, i + 1)
        alone = contended(storage_s[one], decode_s[one], compute_s[one], depth[one], slowdown[one])
        for many, single in zip(together, alone, strict=True):
            assert many[i] == single[0]
