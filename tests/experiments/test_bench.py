"""Benchmarks: the arithmetic of rows, by hand; what they measure is not a test's business."""

from __future__ import annotations

import pytest

from experiments.bench import BENCHES
from experiments.bench.measure import REPETITIONS, Row, in_turns


def test_actions_run_in_turns_and_the_first_turn_does_not_count() -> None:
    calls: list[str] = []
    seconds = in_turns(lambda: calls.append("a"), lambda: calls.append("b"))
    assert calls == ["a", "b"] * (REPETITIONS + 1)
    assert [len(one) for one in seconds] == [REPETITIONS, REPETITIONS]


def test_the_ratio_is_the_median_of_paired_ratios() -> None:
    row = Row.of_seconds(
        ("engine.x", "other"), [1.0, 2.0, 4.0], [3.0, 2.0, 8.0], 10, {"model": "mlp"}
    )
    assert row.ratio == 2.0
    assert row.value == pytest.approx(200.0)
    assert row.to_dict() == {
        "name": "engine.x",
        "value": pytest.approx(200.0),
        "unit": "ms/client-round",
        "reference": "other",
        "ratio": 2.0,
        "setting": {"model": "mlp"},
    }


def test_the_table_of_benchmarks() -> None:
    assert list(BENCHES) == ["engine", "cache", "policy", "select", "datapath"]


@pytest.mark.slow
def test_the_engine_benchmark_gives_every_row_with_a_ratio() -> None:
    rows = BENCHES["engine"]()
    assert {(row.name, row.reference) for row in rows} == {
        ("engine.overhead", "flower-ray"),
        ("engine.training", "flower-ray"),
        ("engine.training", "pytorch-loop"),
    }
    assert all(row.ratio > 0 for row in rows)
