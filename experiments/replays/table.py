"""The table of a replay, and what must be known to read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.table import NOTHING, percent, size
from fedio.runs import Row
from storage.trace import Trace

_SEP = "; "


def print_table(console: Console, trace: Trace, rows: Sequence[Row]) -> None:
    """Print the rows by capacity, each below its bound, and then what the figures rest on."""
    caveats = list(dict.fromkeys(caveat for row in rows for caveat in row["caveats"]))
    lines: list[dict[str, str]] = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        group = [row for row in rows if row["setting"] == setting]
        lines += [_bound_cells(group[0]), *(_cells(row, caveats) for row in group)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    titles = [title for title in lines[-1] if {line.get(title) for line in lines} - {NOTHING, None}]
    for title in titles:
        justify: Literal["left", "right"] = "left" if title in {"capacity", "policy"} else "right"
        table.add_column(title, justify=justify, no_wrap=title != "policy", overflow="fold")
    for line in lines:
        if line.get("capacity"):
            table.add_section()
        table.add_row(*(Text(line.get(title, "")) for title in titles))
    console.print(table)
    for note in notes(trace, rows, caveats):
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


def notes(trace: Trace, rows: Sequence[Row], caveats: Sequence[str]) -> list[str]:
    """Return the lines under the table; caveats are numbered from 1."""
    about = facts(trace)
    methods = sorted({method for row in rows for method in row["bound_method"].split("; ")})
    caches = f"{about['caches']:,} caches" if about["caches"] > 1 else "one cache"
    bound = "Hits are demand hits over requests; no cache can have more than the bound"
    return [
        f"{trace.name}: {about['requests']:,} requests to {caches}, {about['samples']:,} samples.",
        f"{bound} ({_SEP.join(methods)}).",
        "Regret is the distance to it, in points; written is what came into the cache.",
        *(f"[{number}] {caveat}" for number, caveat in enumerate(caveats, 1)),
    ]


def _bound_cells(row: Row) -> dict[str, str]:
    samples = f"{row['capacity']:,.4g}"
    setting = row["setting"]
    return {
        "capacity": samples if setting.isdecimal() else f"{setting} ({samples})",
        "policy": "(bound)",
        "hits": ("" if row["bound_is_exact"] else "<= ") + percent(row["bound"]),
    }


def _cells(row: Row, caveats: Sequence[str]) -> dict[str, str]:
    marks = ",".join(str(caveats.index(caveat) + 1) for caveat in row["caveats"])
    recorded = " (recorded)" if row["recorded"] else ""
    return {
        "capacity": "",
        "policy": row["policy"] + recorded + (f" [{marks}]" if marks else ""),
        "hits": percent(row["hit_ratio"]),
        "byte hits": percent(row["byte_hit_ratio"]),
        "stood in": percent(row["substituted_ratio"] or None),
        "regret": f"{100 * row['regret']:.1f}",
        "written": size(row["written_bytes"]),
    }
