"""Writing where the user said: folders that are ours, files that are never half there, JSON."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedio.errors import InputError

LOCK_FILE = ".lock"


def make_folder(path: Path) -> None:
    """Make a folder, and its parents, to write to.

    Raises:
        InputError: it is a file, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise InputError(f"{path} is a file; name a folder with --out") from error
    except OSError as error:
        raise unwritable(path, error.strerror) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise unwritable(path, "permission denied")


@contextmanager
def reserved(path: Path) -> Iterator[int]:
    """Make a folder and keep other processes of fedio from writing to it within the block.

    Whoever inherits the descriptor that the block is given keeps them from it as well, as long as
    it lives.

    Raises:
        InputError: it cannot be written, or another process is writing to it.
    """
    make_folder(path)
    try:
        lock = (path / LOCK_FILE).open("w")
    except OSError as error:
        raise unwritable(path, error.strerror) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another fedio is writing to {path}; wait for it or name another --out"
            ) from error
        yield lock.fileno()


def is_empty(path: Path) -> bool:
    """Return whether a folder holds nothing but a lock."""
    return all(entry.name == LOCK_FILE for entry in path.iterdir())


def dumps(value: object, indent: int | None = None) -> str:
    """Return `value` as JSON, with NumPy's numbers and arrays as plain ones and NaN as null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that no reader ever sees half of it."""
    with replacing(path) as temporary:
        temporary.write_text(text)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a file beside `path` that takes its place in one step, unless the block fails.

    A link stays a link: what it leads to is replaced.
    """
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def unwritable(path: Path, why: str | None) -> InputError:
    """Return the error for a place that cannot be written to."""
    return InputError(f"cannot write to {path}: {why}; name another folder with --out")


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
