"""The table of a replay, and what must be known to read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.table import NOTHING, percent, size
from fedio.runs import Row
from storage.trace import Trace


def print_table(console: Console, trace: Trace, rows: Sequence[Row]) -> None:
    """Print the rows by capacity, each below its bound, and then what the figures rest on."""
    lines: list[dict[str, str]] = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        group = [row for row in rows if row["setting"] == setting]
        lines += [_bound_cells(group[0]), *map(_cells, group)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    titles = [title for title in lines[-1] if {line.get(title) for line in lines} - {NOTHING, None}]
    for title in titles:
        justify: Literal["left", "right"] = "left" if title in {"capacity", "policy"} else "right"
        table.add_column(title, justify=justify, no_wrap=title != "policy", overflow="fold")
    for line in lines:
        if line.get("capacity"):
            table.add_section()
        table.add_row(*(line.get(title, "") for title in titles))
    console.print(table)
    for note in notes(trace, rows):
        console.print(note, soft_wrap=True)


def facts(trace: Trace) -> Row:
    """Return what a trace is, as plain data."""
    return {
        "name": trace.name,
        "caches": len(trace.streams),
        "requests": sum(len(stream.requests) for stream in trace.streams),
        "samples": sum(stream.samples for stream in trace.streams),
        "policy": trace.policy,
        "depends": trace.depends,
    }


def notes(trace: Trace, rows: Sequence[Row]) -> list[str]:
    """Return the lines under the table."""
    about = facts(trace)
    methods = sorted({method for row in rows for method in row["bound_method"].split("; ")})
    caches = f"{about['caches']:,} caches" if about["caches"] > 1 else "one cache"
    asked = (
        f"{trace.name}: {about['requests']:,} requests to {caches}, {about['samples']:,} samples."
    )
    hits = (
        "Hits are demand hits over requests; no cache can have more than the bound "
        f"({'; '.join(methods)}). Regret is the distance to it, in points."
    )
    if not any(row["counterfactual"] for row in rows):
        return [asked, hits]
    label = (
        f"* counterfactual: {trace.depends}. Under this policy or capacity other samples would "
        "have been requested; these figures are of a run that could not have happened."
    )
    return [asked, hits, label]


def _bound_cells(row: Row) -> dict[str, str]:
    samples = f"{row['capacity']:,.4g}"
    setting = row["setting"]
    return {
        "capacity": samples if setting.isdecimal() else f"{setting} ({samples})",
        "policy": "(bound)",
        "hits": ("" if row["bound_is_exact"] else "<= ") + percent(row["bound"]),
    }


def _cells(row: Row) -> dict[str, str]:
    return {
        "capacity": "",
        "policy": row["policy"] + (" *" if row["counterfactual"] else ""),
        "hits": percent(row["hit_ratio"]),
        "byte hits": percent(row["byte_hit_ratio"]),
        "stood in": percent(row["substituted_ratio"] or None),
        "regret": f"{100 * row['regret']:.1f}",
        "written": size(row["written_bytes"]),
    }
