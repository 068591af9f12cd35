"""The table of a replay, and what must be known to read it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.table import NOTHING, percent, size
from fedio.runs import Row
from storage.trace import Trace


def print_table(console: Console, trace: Trace, rows: Sequence[Row]) -> None:
    """Print the rows, and under them what the figures rest on."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    cells = [_cells(row) for row in rows]
    for title in cells[0]:
        if any(row[title] != NOTHING for row in cells):
            table.add_column(title, justify="left" if title == "policy" else "right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before["policy"] != row["policy"]:
            table.add_section()
        table.add_row(*(_cells(row)[str(column.header)] for column in table.columns))
    console.print(table)
    for line in notes(trace, rows):
        console.print(line, soft_wrap=True)


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
    methods = sorted({row["bound_method"] for row in rows})
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


def _cells(row: Row) -> dict[str, str]:
    samples = f"{row['capacity']:,.4g}"
    return {
        "policy": row["policy"] + (" *" if row["counterfactual"] else ""),
        "capacity": samples if row["setting"].isdecimal() else f"{row['setting']} ({samples})",
        "hits": percent(row["hit_ratio"]),
        "byte hits": percent(row["byte_hit_ratio"]),
        "substituted": percent(row["substituted_ratio"] or None),
        "bound": ("" if row["bound_is_exact"] else "<= ") + percent(row["bound"]),
        "regret": f"{100 * row['regret']:.1f}",
        "written": size(row["written_bytes"]),
    }
