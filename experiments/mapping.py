"""`fedio map`: runs the comparisons of a map and shows a table for each of its axes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments import maps, results
from experiments.columns import TIME_COLUMNS
from experiments.notes import CENSORING, censored
from experiments.running import carry_out, check_clock, experiment_of
from experiments.table import label
from experiments.terminal import check_file, out_console, write_json
from experiments.units import NOTHING, number, ratio
from fedio.errors import InputError
from fedio.home import RUNS_FOLDER
from fedio.runs import Row, read_run

CORNER = "arm\nI/O : compute"
SPEEDUP = next(column for column in TIME_COLUMNS if column.title == "speed-up")
GAP = 2


def run(options: argparse.Namespace) -> None:
    """Run the cells of a map, then show what they say."""
    experiment = experiment_of(options)
    check_clock(experiment, "map")
    out = options.out or Path(RUNS_FOLDER) / f"map-{experiment.name}"
    check_file(options.json)
    if options.json and options.json.resolve() in {
        (out / name).resolve() for name in maps.OWN_FILES
    }:
        raise InputError(f"--json {options.json} is a file of the map itself; name another")
    plan = maps.plan(experiment, out, axes=options.axes, seeds=options.seeds)
    carry_out(plan, options)
    # The experiment as it is said now: the runs are of it, but may have been made when words in it,
    # or the target, were others.
    said_now = {job.folder: job.experiment for job in plan.jobs}
    runs = [replace(read_run(path), experiment=experiment) for path, experiment in said_now.items()]
    figures = maps.map_json(runs)
    print_map(out_console, figures)
    results.write(said_now, out / maps.PAGE_FILE, {}, said_now)
    out_console.print(f"Page with plots: {out / maps.PAGE_FILE}", soft_wrap=True)
    write_json(options.json, figures)


def print_map(console: Console, figures: Row) -> None:
    """Print for each axis how much faster arms are than the reference in each cell."""
    for axis in figures["axes"]:
        console.print(Text(f"{axis['name']}: {axis['title']}", style="bold"))
        console.print(Text(axis["question"], style="dim"))
        for table in _tables(axis["cells"], console.width):
            console.print(table)
            console.print()
    console.print(
        Text(
            f"Speed-up over {figures['reference']} [95% interval]; of {figures['reference']} "
            f"itself the time to target in virtual seconds ({NOTHING}: not in every seed, or no "
            "seed that says something). Below the name of a cell: its I/O : compute.",
            style="dim",
        )
    )
    for line in _censored(figures):
        console.print(Text(line, style="dim"))


def _censored(figures: Row) -> list[str]:
    """Say what becomes of runs that did not reach the target, and in which cells seeds are out."""
    said = {
        f"{axis['name']}/{cell['name']}": censored(cell)
        for axis in figures["axes"]
        for cell in axis["cells"]
    }
    rule = [CENSORING] if any(said.values()) else []
    return rule + [f"{cell}: {line}" for cell, lines in said.items() for line in lines[1:]]


def _tables(cells: list[Row], width: int) -> Iterator[Table]:
    """Yield tables of an axis that are no wider than the terminal: a row for each arm."""
    labels = {arm["name"]: label(arm) for cell in cells for arm in cell["arms"]}
    names = list(labels)
    columns = []
    for cell in cells:
        arms = {arm["name"]: arm for arm in cell["arms"]}
        texts = [_entry(arms.get(name), cell["reference"]) for name in names]
        columns.append([cell["name"], ratio(cell["io_to_compute"]), *texts])
    widest = max(len(text) for column in columns for text in column)
    left = max(map(len, [*labels.values(), *CORNER.splitlines()])) + GAP
    room = (width - left) // (widest + GAP)
    for first in range(0, len(columns), max(room, 1)):
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column(CORNER, overflow="fold")
        shown = columns[first : first + max(room, 1)]
        for name, measured, *_ in shown:
            table.add_column(Text(f"{name}\n{measured}"), justify="right", no_wrap=True)
        for row, name in enumerate(names, start=2):
            table.add_row(Text(labels[name]), *(Text(column[row]) for column in shown))
        yield table


def _entry(arm: Row | None, reference: str) -> str:
    """Return what the table says of an arm in a cell."""
    if arm is None:
        return NOTHING
    if arm["name"] != reference:
        return SPEEDUP.show(arm)
    reached_s = arm["time_to_target_s"]
    return NOTHING if reached_s is None else f"{number(reached_s)} s"
