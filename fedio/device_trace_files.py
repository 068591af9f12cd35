"""The files of device traces: FedScale's pickles, the same as JSON, and CSV."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedio.errors import InputError
from fedio.restricted_pickle import load_plain

# FedScale's two files have 26 and 39 MB.
MOST_BYTES = 2**28

_FORMS = {".pkl": "pickle", ".pickle": "pickle", ".json": "JSON", ".csv": "CSV"}
_PERIOD = re.compile(r"#\s*period_s\s*=(.*)")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Records:
    """What a file says of each client, and where it does.

    Attributes:
        path: the file.
        size_bytes: its size, which is more than the numbers that it holds.
        entries: client -> key -> value, in FedScale's structure. Of a CSV, every value is a list.
        lines: of a CSV, client -> the line of each of its rows.
        period_s: of a CSV, what a line such as `# period_s = 3600` says.
    """

    path: Path
    size_bytes: int
    entries: dict[Any, Any]
    lines: dict[str, list[int]] = field(default_factory=dict)
    period_s: float | None = None

    def error(self, client: object, reason: str, row: int = 0) -> InputError:
        """Return the error that a client's entry, or that row of it, is wrong."""
        if self.lines:
            return InputError(f"{self.path}, line {self.lines[str(client)][row]}: {reason}")
        return InputError(f"{self.path}, client {shown(client)}: {reason}")


def shown(value: object) -> str:
    """Return a value as it stands in an error; of lists and tables only what they are."""
    if isinstance(value, int | float | str):
        return repr(value)[:_SHOWN]
    return f"a {type(value).__name__}"


def read_records(file: str, columns: Mapping[str, str]) -> Records:
    """Read a trace in the form that the name's end says, or else its first byte.

    Args:
        file: a path; `~` is the home folder, and a relative one starts at the current folder.
        columns: of a CSV, besides `client`: the name of a column -> its key in `entries`.

    Raises:
        InputError: it cannot be read, is too large, or is not of that form.
    """
    path = Path(os.path.expanduser(file))  # noqa: PTH111 - takes an unknown user as is
    try:
        with path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read the trace {path}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: it is larger than {MOST_BYTES >> 20} MiB; take fewer clients")
    form = _FORMS.get(path.suffix.lower()) or _form_of(data)
    try:
        if form == "CSV":
            return _read_csv(path, data, columns)
        entries = load_plain(data) if form == "pickle" else _parse_json(data)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no trace ({form}): {error}") from error
    if not isinstance(entries, dict):
        raise InputError(f"{path}: needs client -> entry at the top, got {shown(entries)}")
    return _some(Records(path, len(data), entries))


def _form_of(data: bytes) -> str:
    """Tell the form by the first byte: pickles begin with their protocol, a mark or a dict."""
    first = data.lstrip()[:1]
    if first in {b"\x80", b"(", b"}"}:
        return "pickle"
    return "JSON" if first in {b"{", b"["} else "CSV"


def _some(records: Records) -> Records:
    """Return records of which there are some."""
    if not records.entries:
        raise InputError(f"{records.path}: the trace is empty")
    return records


def _parse_json(data: bytes) -> object:
    """Parse JSON in which no key is there twice; all numbers become floats."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            (most_often, _), *_ = Counter(key for key, _ in pairs).most_common(1)
            raise ValueError(f"{shown(most_often)} is there twice")
        return table

    return json.loads(data, object_pairs_hook=unique, parse_int=float)


def _read_csv(path: Path, data: bytes, columns: Mapping[str, str]) -> Records:
    """Read a header and a row for each line; empty lines and those from `#` on are passed over."""
    names: list[str] = []
    records = Records(path, len(data), {})
    period_s = None
    for line, text in enumerate(data.decode("utf-8-sig").split("\n"), 1):
        cells = [cell.strip() for cell in text.split(",")]
        if declared := _PERIOD.fullmatch(text.strip()):
            period_s = _number(path, line, "period_s", declared[1].strip())
        elif text.startswith("#") or not any(cells):
            continue
        elif not names:
            names = _header(path, line, cells, columns)
        elif len(cells) == len(names):
            _add(records, line, dict(zip(names, cells, strict=True)), columns)
        else:
            raise InputError(f"{path}, line {line}: needs {len(names)} cells: {text[:_SHOWN]!r}")
    return _some(replace(records, period_s=period_s))


def _header(path: Path, line: int, names: list[str], columns: Mapping[str, str]) -> list[str]:
    """Return the names of the columns, which must be there, once each, and no others."""
    if sorted(names) != sorted(["client", *columns]):
        needed, got = ",".join(["client", *columns]), ",".join(names)[:_SHOWN]
        raise InputError(f"{path}, line {line}: the header must be {needed}; got {got}")
    return names


def _add(records: Records, line: int, cells: dict[str, str], columns: Mapping[str, str]) -> None:
    """Add a row of a CSV to the entry of its client."""
    client = cells["client"]
    entry = records.entries.setdefault(client, {key: [] for key in columns.values()})
    for name, key in columns.items():
        entry[key].append(_number(records.path, line, name, cells[name]))
    records.lines.setdefault(client, []).append(line)


def _number(path: Path, line: int, name: str, text: str) -> float:
    """Return the number in a cell."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{path}, line {line}: {name} is no number: {text[:_SHOWN]!r}") from None
