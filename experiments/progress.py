"""Progress of runs, read from their folders: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

from fedio.runs import ROUNDS_FILE

REFRESH_S = 0.25
PLAIN_LINE_S = 10.0


@contextmanager
def watch(folders: Mapping[str, Path], rounds: int, console: Console) -> Iterator[None]:
    """Show how far runs are while the block runs.

    Args:
        folders: what to call each run -> its folder.
        rounds: how many rounds each has.
        console: where to show it; not a terminal gets a line now and then.
    """
    show = _bars if console.is_terminal else _lines
    done = threading.Event()
    thread = threading.Thread(target=show, args=(dict(folders), rounds, console, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _bars(
    folders: Mapping[str, Path], rounds: int, console: Console, done: threading.Event
) -> None:
    """Draw a bar for all rounds, and one for each run under way."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        total = bars.add_task("all rounds", total=rounds * len(folders))
        tasks: dict[str, TaskID] = {}
        while True:
            ended = done.wait(REFRESH_S)
            counts = {name: rounds_done(folder) for name, folder in folders.items()}
            bars.update(total, completed=sum(counts.values()))
            for name, count in counts.items():
                if count and name not in tasks:
                    tasks[name] = bars.add_task(name, total=rounds)
                if name in tasks:
                    bars.update(tasks[name], completed=count, visible=count < rounds)
            if ended:
                return


def _lines(
    folders: Mapping[str, Path], rounds: int, console: Console, done: threading.Event
) -> None:
    """Print a line at intervals, and one for each run that ends."""
    began = spoken = time.monotonic()
    unfinished = set(folders)
    total = rounds * len(folders)
    while True:
        ended = done.wait(REFRESH_S)
        counts = {name: rounds_done(folder) for name, folder in folders.items()}
        now, completed = time.monotonic(), sum(counts.values())
        for name in sorted(name for name in unfinished if counts[name] >= rounds):
            unfinished.discard(name)
            console.print(f"{name}: {rounds} rounds done", highlight=False)
        if now - spoken >= PLAIN_LINE_S and completed < total:
            spoken = now
            left_s = (now - began) / completed * (total - completed) if completed else 0.0
            estimate = f", about {left_s:.0f} s left" if completed else ""
            console.print(f"{completed} of {total} rounds{estimate}", highlight=False)
        if ended:
            return


def rounds_done(folder: Path) -> int:
    """Return how many rounds the run in `folder` has written, the initial one not counted."""
    try:
        return max((folder / ROUNDS_FILE).read_bytes().count(b"\n") - 1, 0)
    except OSError:
        return 0
