"""The terminal and the files that a user names: where commands say and write things."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedio.errors import InputError, RunError
from fedio.output import dumps, write_text
from fedio.runs import CONFIG_FILE, FILES, TELEMETRY_FILE, TRACE_FILE, Row

out_console = Console(highlight=False, markup=False)
progress_console = Console(stderr=True, highlight=False, markup=False)


def say(text: str) -> None:
    """Say something about what is going on."""
    progress_console.print(text, soft_wrap=True)


def print_names(table: Mapping[str, object] | list[str]) -> None:
    """Print the names in a table, each with the first line of what it says of itself."""
    rows = table.items() if isinstance(table, Mapping) else [(name, "") for name in table]
    print_rows((name, (getattr(thing, "__doc__", "") or "").split("\n")[0]) for name, thing in rows)


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print names, and a line for each."""
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(name, text)
    out_console.print(grid)


def print_facts(facts: Row, indent: str = "") -> None:
    """Print nested facts, a line each."""
    for key, value in facts.items():
        label = f"{indent}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            out_console.print(f"{label}:")
            print_facts(dict(value), indent + "  ")
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            out_console.print(f"{label}: {shown}", markup=False)


def check_file(path: Path | None) -> None:
    """Find out before the work that its figures could not be written."""
    if path is None:
        return
    try:
        file = path.resolve()
        if file.is_dir() or not file.parent.is_dir():
            raise InputError(f"cannot write {path}: it needs a file name in a folder that exists")
        if file.exists() and not file.is_file():
            raise InputError(f"cannot write {path}: it is no plain file, and would be replaced")
        if (
            file.name in {*FILES, TRACE_FILE, TELEMETRY_FILE}
            and (file.parent / CONFIG_FILE).exists()
        ):
            raise InputError(f"{path} is a file of a run; name another file")
        # With a name as long as the one that the figures are written under.
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}."):
            pass
    except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {path}: {why}") from error


def write_json(path: Path | None, value: Row) -> None:
    """Write figures where the user wants them, if anywhere."""
    if path is not None:
        write_file(path, dumps(value, indent=2) + "\n")


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named.

    Raises:
        RunError: it cannot be written.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
