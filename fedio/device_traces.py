"""Traces of devices: how fast they compute and communicate, and when they are there.

The structure is FedScale's (benchmark/dataset/data/device_info); `docs/device-traces.md` has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from typing import TypeGuard

import numpy as np

from fedio.availability import Availability
from fedio.device_trace_files import Records, read_records, shown
from fedio.errors import InputError

LEAST_PERIOD_S = 1.0
MOST_S = 1e9

CAPACITY_COLUMNS = {"computation_ms": "computation", "communication_kbit_s": "communication"}
STAY_COLUMNS = {"start_s": "active", "end_s": "inactive"}


@dataclass(frozen=True, slots=True)
class Capacity:
    """What devices can do, an entry for each: float64 [devices].

    `inference_ms` is the time of one inference on one sample, `bytes_per_s` the rate of the
    network, down and up alike.
    """

    inference_ms: np.ndarray
    bytes_per_s: np.ndarray


def read_capacity(file: str) -> Capacity:
    """Read a capacity trace: milliseconds per sample, and kbit/s.

    Raises:
        InputError: what is wrong, and where.
    """
    records = read_records(file, CAPACITY_COLUMNS)
    rows = [_capacity_of(records, client) for client in records.entries]
    inference_ms, kbit_per_s = np.array(rows, np.float64).T
    return Capacity(inference_ms, kbit_per_s * 1000 / 8)


def read_availability(file: str) -> Availability:
    """Read an availability trace: a client for each entry, in the file's order.

    Raises:
        InputError: what is wrong, and where.
    """
    records = read_records(file, STAY_COLUMNS)
    counts, limit = [], records.size_bytes
    for client in records.entries:
        counts.append(len(_list(records, client, "active")))
        if counts[-1] != len(_list(records, client, "inactive")):
            raise records.error(client, "active and inactive are not as many")
        if (limit := limit - counts[-1]) < 0:  # one list, referred to again and again
            raise records.error(client, "the file holds more times than it has bytes")
    device = np.repeat(np.arange(len(counts)), counts)
    period_s = np.array([_period_s(records, client) for client in records.entries])
    starts_s, ends_s = _times(records, "active", device), _times(records, "inactive", device)
    _check_stays(records, device, np.stack([starts_s, ends_s, period_s[device]]))
    return Availability.of(device, starts_s, ends_s, period_s)


def rows_of(rows: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a row of a trace for each client, int64 [clients].

    No row is drawn twice as long as there are others; with fewer rows than clients each one is
    used as often, or once more.
    """
    return np.resize(rng.permutation(rows), clients)


def _capacity_of(records: Records, client: object) -> list[float]:
    """Return the numbers of a client: finite and above 0, as a device that never ends is none."""
    numbers = []
    for column, key in CAPACITY_COLUMNS.items():
        name = column if records.lines else key
        value = _entry(records, client).get(key)
        if records.lines and isinstance(value, list):
            if len(value) > 1:
                raise records.error(client, f"client {shown(client)} is there twice", row=1)
            (value,) = value
        if not _is_number(value) or not 0 < value < math.inf:
            raise records.error(client, f"{name} must be a number above 0, got {shown(value)}")
        numbers.append(float(value))
    return numbers


def _period_s(records: Records, client: object) -> float:
    """Return after how long a client's stays repeat."""
    name = "a line `# period_s = ...`" if records.lines else "finish_time"
    value = records.period_s if records.lines else _entry(records, client).get("finish_time")
    if not _is_number(value) or not LEAST_PERIOD_S <= value <= MOST_S:
        reason = f"needs {name} of 1 to 1e9 seconds, got {shown(value)}"
        if records.lines:
            raise InputError(f"{records.path}, line 1: {reason}")
        raise records.error(client, reason)
    return float(value)


def _times(records: Records, key: str, device: np.ndarray) -> np.ndarray:
    """Return the times of all clients under a key, in order, all of them numbers."""
    values = list(chain.from_iterable(entry[key] for entry in records.entries.values()))
    if not set(map(type, values)) <= {int, float}:
        bad = next(i for i, value in enumerate(values) if not _is_number(value))
        raise _at(records, device, bad, f"{key} must hold numbers, got {shown(values[bad])}")
    return np.array(values, np.float64)


def _check_stays(records: Records, device: np.ndarray, stays: np.ndarray) -> None:
    """Check the starts, ends and periods [3, m] of the stays of devices."""
    starts_s, ends_s, periods_s = stays
    same = np.diff(device, prepend=-1) == 0
    left_s = np.append(0.0, ends_s)[:-1]
    wrong = {
        "times are seconds from 0 on; the stay is {} to {}": ~(stays[:2] >= 0).all(axis=0),
        "the stay begins at {} s and ends before that, at {} s": ends_s < starts_s,
        "the stay of {} to {} s begins before the last one": same
        & (np.diff(starts_s, prepend=0.0) < 0),
        "the stay of {} to {} s overlaps with the last one": same & (starts_s < left_s),
        "the stay of {} to {} s ends after the period, {} s": ends_s > periods_s,
    }
    for reason, where in wrong.items():
        if where.any():
            bad = int(np.argmax(where))
            raise _at(records, device, bad, reason.format(*(f"{x:.15g}" for x in stays[:, bad])))
    if not (ends_s > starts_s).any():
        raise InputError(f"{records.path}: nobody is ever there")


def _at(records: Records, device: np.ndarray, stay: int, reason: str) -> InputError:
    """Return the error that a stay is wrong."""
    row = stay - int(np.searchsorted(device, device[stay]))
    client = list(records.entries)[device[stay]]
    return records.error(client, reason if records.lines else f"stay {row + 1}: {reason}", row)


def _entry(records: Records, client: object) -> dict[object, object]:
    entry = records.entries[client]
    if not isinstance(entry, dict):
        raise records.error(client, f"needs a table, got {shown(entry)}")
    return entry


def _list(records: Records, client: object, key: str) -> list[object]:
    value = _entry(records, client).get(key)
    if not isinstance(value, list):
        raise records.error(client, f"needs a list {key}, got {shown(value)}")
    return value


def _is_number(value: object) -> TypeGuard[int | float]:
    return type(value) in {int, float}
