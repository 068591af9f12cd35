"""The virtual clock and the order of events on it."""

from __future__ import annotations

import numpy as np
import pytest

from fedio.clock import VirtualClock, arrival_order


def test_time_only_moves_forward() -> None:
    clock = VirtualClock()
    clock.advance_to(2.5)
    clock.advance_to(2.5)
    assert clock.now_s == 2.5
    for bad in (2.4, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cannot move"):
            clock.advance_to(bad)
    assert clock.now_s == 2.5


def test_equal_arrivals_go_by_client() -> None:
    arrivals = np.array([3.0, 1.0, 3.0, 1.0])
    assert arrival_order(arrivals, np.array([9, 8, 2, 7])).tolist() == [3, 1, 2, 0]
