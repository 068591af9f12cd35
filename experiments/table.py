"""The tables of a comparison as they print on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.columns import COLUMNS, Column, tables
from experiments.notes import notes
from experiments.side_tables import TextTable, side_tables
from experiments.units import NOTHING, number, percent, seconds, size
from fedio.runs import Row

__all__ = [
    "COLUMNS", "NOTHING", "label", "notes", "number", "percent", "print_table", "seconds", "size",
]  # fmt: skip


def label(arm: Row) -> str:
    """Return an arm's name, with its kind unless it is a plain arm."""
    return str(arm["name"]) if arm["kind"] == "arm" else f"{arm['name']} ({arm['kind']})"


def print_table(console: Console, comparison: Row) -> None:
    """Print the figures of all arms, what the columns mean and what was compared.

    Narrow tables rather than one wide: each fits a terminal of 80 columns.
    """
    shown = tables(comparison["arms"])
    for title, columns in shown.items():
        console.print(_table(title, columns, comparison["arms"]))
        console.print()
    for side in side_tables(comparison):
        console.print(_side_table(side))
        for line in side.notes:
            console.print(Text(line, style="dim"))
        console.print()
    for line in notes(comparison):
        console.print(Text(line))
    console.print()
    legend = Table.grid(padding=(0, 2))
    for column in (column for columns in shown.values() for column in columns):
        legend.add_row(Text(column.title, style="bold"), Text(column.legend, style="dim"))
    console.print(legend)


def _side_table(side: TextTable) -> Table:
    table = _empty(side.title)
    first, *others = side.headings
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    for cells in side.rows:
        table.add_row(*map(Text, cells))
    return table


def _table(title: str, columns: Sequence[Column], arms: Sequence[Row]) -> Table:
    table = _empty(title)
    table.add_column("arm", overflow="fold")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    kinds = [arm["kind"] for arm in arms]
    for position, arm in enumerate(arms):
        table.add_row(Text(label(arm)), *(Text(column.show(arm)) for column in columns))
        if kinds[position : position + 2] != kinds[position : position + 1] * 2:
            table.add_section()
    return table


def _empty(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
