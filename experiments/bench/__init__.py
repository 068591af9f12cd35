"""Benchmarks: speeds as ratios to a named reference that is measured in the same run, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from experiments.bench import cache, datapath, engine, policy, select
from experiments.bench.measure import Row

BENCHES: dict[str, Callable[[], Iterable[Row]]] = {
    "engine": engine.rows,
    "cache": cache.rows,
    "policy": policy.rows,
    "select": select.rows,
    "datapath": datapath.rows,
}

__all__ = ["BENCHES", "Row"]
