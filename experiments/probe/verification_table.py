"""A verification on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.table import percent


def print_verification(console: Console, found: dict[str, Any]) -> None:
    """Print a row for each case, way of reading and phase."""
    table = Table(box=None, pad_edge=False)
    for title in ("origin", "participations read", "phase"):
        table.add_column(title)
    for title in ("took", "predicted", "error", "95 %", "spread", "95 %"):
        table.add_column(title, justify="right")
    for row in found["rows"]:
        shares = (row["share"], row["predicted_share"], row["error_median"], row["error_p95"])
        spread = row["spread_median"], row["spread_p95"]
        where = row["case"], row["arm"] or "all", row["phase"]
        table.add_row(*where, *map(percent, shares + spread), end_section=row["phase"] == "total")
    console.print(table)
    console.print(
        "All are shares of the participation's total: the mean that a phase took and was predicted "
        "to take, the error of the prediction (median and 95th percentile), and the difference of "
        "two runs of the same work. Reading is busy while training goes on, so shares may add up "
        "to more than all.",
        soft_wrap=True,
    )
    console.print(
        f"Decoding and training take {found['slowdown']:.2f} times as long while both go on."
    )
    if not found["direct_io"]:
        console.print("This file system has no O_DIRECT: files may have come from memory.")
