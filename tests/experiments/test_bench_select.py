"""The selection benchmark: what it does is checked at a tiny scale; its times are nobody's test."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from experiments.bench import BENCHES, measure, select
from strategies.selectors import SELECTORS, share

TINY = select.Scale(clients=(60, 200), count=10, warm_rounds=2, turn_clients=120)


def test_every_selector_is_measured_at_every_size_in_time_and_memory() -> None:
    with patch.object(measure, "REPETITIONS", 1), patch.object(share, "TREES", 2):
        rows = list(select.rows(TINY))
    assert BENCHES["select"] is select.rows
    names = [f"{kind}select.{name}" for name in SELECTORS for kind in ("", "memory.")]
    assert [row.name for row in rows] == names * 2
    assert {row.reference for row in rows} == {"argsort"}
    assert all(row.ratio > 0 and row.value > 0 for row in rows)
    times = [row for row in rows if row.unit == "ms/selection"]
    sizes = [60] * len(SELECTORS) + [200] * len(SELECTORS)
    assert [row.setting for row in times] == [{"clients": n, "count": 10} for n in sizes]


def test_a_small_table_is_chosen_from_more_often_in_a_turn() -> None:
    calls = []
    select._often(lambda: calls.append(1), 3)()
    assert len(calls) == 3


def test_the_table_is_as_it_says() -> None:
    fleet = select.drawn_fleet(20_000, np.random.default_rng(0))
    known = fleet.samples > 0
    assert known.mean() == pytest.approx(0.98, abs=0.01)
    assert fleet.tried[known].mean() == pytest.approx(0.9, abs=0.01)
    assert np.array_equal(fleet.tried, np.isfinite(fleet.duration_s))
    assert (fleet.resident_samples[known] == 0).mean() == pytest.approx(0.25, abs=0.02)
    assert fleet.resident_share.max() <= 0.5
    assert fleet.feasible(9000.0).mean() == pytest.approx(0.98 * 0.95 * 0.95, abs=0.01)
    assert len(np.unique(fleet.speeds.memory_bytes)) > 1


def test_selectors_are_measured_after_rounds_that_were_answered() -> None:
    rng = np.random.default_rng(1)
    fleet = select.drawn_fleet(300, rng)
    before = fleet.times_trained.sum()
    oort = {"oort": SELECTORS["oort"]()}
    states = select._warm(oort, fleet, TINY, rng)
    assert fleet.times_trained.sum() == before + 2 * TINY.count
    assert states["oort"]["round"] == select._ROUND + 1
    assert len(states["oort"]["exploited_utility"])


def test_memory_is_what_is_allocated_on_top() -> None:
    assert select._peak_mb(lambda: np.zeros(10**6)) == pytest.approx(8.0, rel=0.01)
