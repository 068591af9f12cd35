"""Benchmarks: speeds as ratios to a named reference that is measured in the same run, in turns."""

from __future__ import annotations

from collections.abc import Callable

from experiments.bench import engine
from experiments.bench.measure import Row

BENCHES: dict[str, Callable[[], list[Row]]] = {"engine": engine.rows}

__all__ = ["BENCHES", "Row"]
