"""Where the trace of a replay comes from: a file, a run folder, or a synthetic pattern."""

from __future__ import annotations

import ast
import errno
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedio.errors import InputError
from fedio.runs import TRACE_FILE
from storage.errors import TraceError
from storage.synthetic import SYNTHETIC, Layout
from storage.trace import Trace
from storage.trace_file import read_trace

_CALL = re.compile(r"\s*([^()\s]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def find_trace(name: str, seed: int) -> Trace:
    """Return the trace that a name stands for.

    Args:
        name: a path, or a pattern with or without arguments, as in "zipf(samples=500)".
        seed: of what a pattern draws.

    Raises:
        InputError: there is none, it cannot be read, or it has no requests.
    """
    path = file_of(name)
    if path is None:
        pattern, arguments = named_call(name)
        if pattern not in SYNTHETIC:
            known = ", ".join(SYNTHETIC)
            raise InputError(f"no trace {name}: give a file, a run folder, or one of {known}")
        own = list(inspect.signature(SYNTHETIC[pattern]).parameters)[1:-1]
        takes = [*own, *Layout.__annotations__]
        if unknown := arguments.keys() - set(takes):
            raise InputError(f"{pattern} takes {', '.join(takes)}, and not {min(unknown)}")
        try:
            return SYNTHETIC[pattern](np.random.default_rng(seed), **arguments)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"trace {name}: {error}") from error
        except MemoryError as error:
            raise InputError(f"trace {name}: it is too large for the memory here") from error
    try:
        trace = read_trace(path)
    except TraceError as error:
        raise InputError(str(error)) from error
    if not any(len(stream.requests) for stream in trace.streams):
        raise InputError(f"{name} has no requests")
    return trace


def named_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of "name(key=value, ...)"; a value without quotes may be a word.

    Raises:
        InputError: it is not of that form.
    """
    form = _CALL.fullmatch(text)
    if form is None:
        raise InputError(f"cannot read {text!r}: write it as name(key=value, ...)")
    name, inside = form.groups()
    arguments: dict[str, Any] = {}
    for part in split(inside or ""):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise InputError(f"cannot read {part.strip()!r} in {text!r}: write key=value")
        if key in arguments:
            raise InputError(f"{text!r} gives {key} twice")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
        except (TypeError, MemoryError, RecursionError) as error:
            raise InputError(f"cannot read the value of {key} in {text!r}") from error
    return name, arguments


def file_of(name: str) -> Path | None:
    """Return the file of a trace, or None if there is nothing of that name.

    Raises:
        InputError: it is a folder without a trace, or cannot be looked at.
    """
    path = Path(name)
    try:
        if not path.exists():
            return None
        if path.is_dir():
            path /= TRACE_FILE
            if not path.exists():
                raise InputError(f"{name} has no {TRACE_FILE}: make the run with --record-trace")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None  # a long pattern
        raise InputError(f"cannot read {name}: {error.strerror}") from error
    return path


def split(text: str) -> list[str]:
    """Return the parts between commas that are not in brackets, without empty ones."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
