"""A trace from a plain CSV file: a row per request, in order, with a header that names columns."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np

from storage.trace import Stream, Trace

COLUMNS = ("sample", "size_bytes", "client", "participation", "batch")
_MOST_DIGITS = 18  # any such number is an int64

Row = tuple[int, int, int, int, int]  # as COLUMNS


def read_csv(path: Path) -> Trace:
    """Read a trace; the column `sample` has to be there, the others of `COLUMNS` may.

    Samples are any whole numbers from 0 on, and become 0..n-1 of their client by rising number.
    Without sizes each has 1 byte; without clients all rows are of client 0, without participations
    of one, and without batches each row is its own. Participations, which become rounds, never
    fall within a client, nor do batches within a participation.

    Raises:
        ValueError: what is wrong, and in which line.
        OSError: the file cannot be read.
    """
    sizes: dict[tuple[int, int], int] = {}
    rows: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for line, (sample, size_bytes, client, participation, batch) in _rows(path):
        if not size_bytes:
            raise ValueError(f"line {line}: size_bytes is 0")
        if size_bytes != sizes.setdefault((client, sample), size_bytes):
            known = sizes[client, sample]
            raise ValueError(f"line {line}: sample {sample} has {known} bytes, not {size_bytes}")
        if rows[client] and (participation, batch) < rows[client][-1][1:]:
            raise ValueError(f"line {line}: participations and batches of a client never fall")
        rows[client].append((sample, participation, batch))
    if not rows:
        raise ValueError("it has no rows")
    return Trace(path.stem, tuple(_stream(client, rows[client], sizes) for client in sorted(rows)))


def _stream(
    client: int, rows: list[tuple[int, int, int]], sizes: dict[tuple[int, int], int]
) -> Stream:
    """Return one client's stream."""
    samples, participations, batches = np.array(rows, np.int64).T
    numbers, requests = np.unique(samples, return_inverse=True)
    is_next = np.diff(participations, prepend=-1) > 0
    starts = np.flatnonzero(is_next)
    return Stream(
        client=client,
        size_bytes=np.array([sizes[client, number] for number in numbers.tolist()], np.int64),
        requests=requests,
        batch_starts=np.flatnonzero(is_next | (np.diff(batches, prepend=-1) != 0)),
        starts=starts,
        rounds=participations[starts],
    )


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the lines' numbers and values, with defaults for columns that are not there.

    Raises:
        ValueError: what is wrong, and in which line.
    """
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, skipinitialspace=True)
        try:
            names = next(reader, [])
            if "sample" not in names or len(set(names)) < len(names) or set(names) - set(COLUMNS):
                raise ValueError(
                    f"line 1: needs a header with the column sample, and of {', '.join(COLUMNS)} "
                    f"whichever are there; got {','.join(names)[:80]!r}"
                )
            # What follows the cells of a row are the defaults of columns that are not there.
            all_names = [*names, *COLUMNS[1:]]
            pick = itemgetter(*(all_names.index(name) for name in COLUMNS))
            for cells in filter(None, reader):
                line = reader.line_num
                if len(cells) != len(names) or not all(map(_is_number, cells)):
                    raise ValueError(
                        f"line {line}: needs {len(names)} whole numbers from 0 on, "
                        f"got {','.join(cells)[:80]!r}"
                    )
                yield line, pick((*map(int, cells), 1, 0, 1, line))
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error


def _is_number(cell: str) -> bool:
    return cell.isdecimal() and len(cell) <= _MOST_DIGITS
