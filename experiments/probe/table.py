"""A probe's figures on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from experiments.probe.fitting import Fit
from experiments.probe.profile import TRAINING
from experiments.probe.rows import Row
from experiments.probe.run import Probed
from experiments.table import NOTHING, percent
from experiments.table import size as shown


def print_probe(console: Console, probed: Probed) -> None:
    """Print what was measured, the lines through it, and the notes."""
    console.print(_rows(probed.rows))
    console.print()
    console.print(_fits(probed.fits))
    for note in probed.notes:
        console.print(note, soft_wrap=True)


def _rows(rows: list[Row]) -> Table:
    table = _table("measured", "size", "median", "p10", "p90", "rate", "count")
    for row in rows:
        low_s, high_s = row.spread
        rate = NOTHING if row.size_bytes is None else f"{shown(row.size_bytes / row.seconds)}/s"
        size = f"batch {row.batch:.0f}" if row.batch else shown(row.size_bytes)
        times = map(duration, (row.seconds, low_s, high_s))
        table.add_row(row.name, size, *times, rate, str(row.count))
    return table


def _fits(fits: Mapping[str, Fit]) -> Table:
    table = _table("line through the medians", "latency", "and then", "off by")
    for name, line in fits.items():
        trained = name.startswith(TRAINING)
        then = f"{duration(line.unit_s)}/sample" if trained else f"{shown(line.bytes_per_s)}/s"
        table.add_row(name, duration(line.latency_s), then, percent(line.residual))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for title in others:
        table.add_column(title, justify="right")
    return table


def duration(value_s: float) -> str:
    """Return seconds as us, ms or s."""
    if value_s < 0.9995e-3:
        return f"{value_s * 1e6:.3g} us"
    return f"{value_s * 1e3:.3g} ms" if value_s < 0.9995 else f"{value_s:.3g} s"
