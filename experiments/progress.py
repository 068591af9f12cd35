"""Progress of runs, read from their folders: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedio.runs import ROUNDS_FILE, SUMMARY_FILE

REFRESH_S = 0.25
PLAIN_LINE_S = 10.0

Counts = dict[str, tuple[int, int]]
"""Of runs by name: the rounds written, and those that there are."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A run to watch: its folder, and the rounds that it has unless it ends before."""

    folder: Path
    most_rounds: int

    def rounds(self) -> tuple[int, int]:
        """Return how many rounds it has written, the initial one not counted, and has in all."""
        complete = (self.folder / SUMMARY_FILE).is_file()
        try:
            lines = (self.folder / ROUNDS_FILE).read_bytes().count(b"\n")
        except OSError:
            lines = 0
        done = max(lines - 1, 0)
        return done, done if complete else self.most_rounds


@contextmanager
def watch(runs: Mapping[str, Watched], console: Console) -> Iterator[None]:
    """Show how far runs are while the block runs.

    Args:
        runs: what to call each run -> the run.
        console: where to show it; not a terminal gets a line now and then.
    """
    show = _bars if console.is_terminal else _lines
    done = threading.Event()
    thread = threading.Thread(target=show, args=(dict(runs), console, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _counted(runs: Mapping[str, Watched], counts: Counts) -> Counts:
    """Return the rounds of all runs; those that are done are not looked at again."""
    return {
        name: before if (before := counts.get(name, (0, 1)))[0] >= before[1] else run.rounds()
        for name, run in runs.items()
    }


def _bars(runs: Mapping[str, Watched], console: Console, done: threading.Event) -> None:
    """Draw a bar for all rounds, and one for each run under way."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        everything = bars.add_task("all rounds", total=None)
        tasks: dict[str, TaskID] = {}
        counts: Counts = {}
        while True:
            ended = done.wait(REFRESH_S)
            counts = _counted(runs, counts)
            completed, total = (sum(part) for part in zip((0, 0), *counts.values(), strict=True))
            bars.update(everything, completed=completed, total=total)
            for name, (count, rounds) in counts.items():
                if count and name not in tasks:
                    tasks[name] = bars.add_task(name, total=rounds)
                if name in tasks:
                    bars.update(tasks[name], completed=count, visible=count < rounds)
            if ended:
                return


def _lines(runs: Mapping[str, Watched], console: Console, done: threading.Event) -> None:
    """Print a line at intervals, and one for each run that ends."""
    began = spoken = time.monotonic()
    unfinished = set(runs)
    counts: Counts = {}
    while True:
        ended = done.wait(REFRESH_S)
        counts = _counted(runs, counts)
        for name in sorted(name for name in unfinished if counts[name][0] >= counts[name][1]):
            unfinished.discard(name)
            console.print(f"{name}: {counts[name][0]} rounds done", highlight=False)
        completed, total = (sum(part) for part in zip((0, 0), *counts.values(), strict=True))
        now = time.monotonic()
        if now - spoken >= PLAIN_LINE_S and completed < total:
            spoken = now
            left_s = (now - began) / completed * (total - completed) if completed else 0.0
            estimate = f", about {left_s:.0f} s left" if completed else ""
            console.print(f"{completed} of {total} rounds{estimate}", highlight=False)
        if ended:
            return
