"""The fast share: who is fast, and what happens where too few of it are idle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from strategies.selector import View
from strategies.selectors import FastShare
from tests.strategies.selector_table import select

ViewOf = Callable[..., View]
SLOWER_FIRST = {"compute_s": np.arange(8.0, 0.0, -1.0)}


def test_only_the_fast_are_drawn_each_as_likely(view_of: ViewOf) -> None:
    view = view_of(8, 2, **SLOWER_FIRST)
    chosen = [select(FastShare(), view, seed).clients for seed in range(2_000)]
    shares = np.bincount(np.concatenate(chosen), minlength=8) / len(chosen)
    assert not shares[:4].any()
    np.testing.assert_allclose(shares[4:], 0.5, atol=0.05)


def test_the_share_is_of_those_that_are_known_not_of_those_that_are_idle(view_of: ViewOf) -> None:
    feasible = np.array([True, True, True, False, True, False, False, True])
    cohort = select(FastShare(0.5), view_of(8, 3, feasible=feasible, **SLOWER_FIRST))
    assert cohort.clients.tolist() == [2, 4, 7]
    assert cohort.reasons.why == ["next fastest", "fast", "fast"]


def test_a_share_out_of_bounds_is_refused() -> None:
    for share in (0.0, 1.5, -1.0, float("nan")):
        with pytest.raises(ValueError, match="share"):
            FastShare(share)
