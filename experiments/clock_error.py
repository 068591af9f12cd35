"""How far the virtual clock is from devices in real time: the same participations on both clocks.

A participation of an emulated run has the seconds that its device measured, and those that the
virtual clock makes of the same counts. The error of a component is their difference as a share of
the measured duration. Left out are those during which the host was too slow for the device that it
stands for, since the host is no device, and those that faults struck, which no clock foresees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedio.runs import Row, Run

KEPT_UP_SHARE = 0.05
"""A host keeps up that is behind by at most this share of a participation's duration."""

COMPONENTS = {
    "compute": ("compute_s",),
    "io": ("origin_s", "cache_s", "decode_s", "write_s"),
    "network": ("download_s", "upload_s"),
    "stall": ("stall_s",),
    "total": ("duration_s",),
}
NAMES = {name: name for name in COMPONENTS} | {"io": "I/O"}


@dataclass(frozen=True, slots=True)
class Timed:
    """A participation on both clocks: measured and virtual seconds by component.

    `state` is `struck` if a fault did, else `behind` if the host could not keep up.
    """

    device: str
    state: Literal["whole", "behind", "struck"]
    measured_s: dict[str, float]
    virtual_s: dict[str, float]


def is_behind(row: Row) -> bool:
    """Whether the host could not keep up with the device it stands for, in a participation."""
    behind_s, duration_s = row.get("behind_s"), row.get("duration_s")
    if behind_s is None or duration_s is None:
        return False
    return bool(behind_s > KEPT_UP_SHARE * duration_s)


def timed(runs: Iterable[Run]) -> Iterator[Timed]:
    """Give the participations that have seconds by both clocks."""
    for row in (row for run in runs for row in run.clients):
        if row.get("duration_s") and row.get("virtual_duration_s") is not None:
            yield Timed(
                device=row["device"],
                state="struck" if row.get("faults") else "behind" if is_behind(row) else "whole",
                measured_s=_components(row, ""),
                virtual_s=_components(row, "virtual_"),
            )


def _components(row: Row, prefix: str) -> dict[str, float]:
    return {name: sum(row[f"{prefix}{key}"] for key in keys) for name, keys in COMPONENTS.items()}


def clock_error(runs: Iterable[Run]) -> Row | None:
    """Return the virtual clock's error over all participations and by device, as JSON holds it.

    `pace` is that of the runs, which is the same in all. Each group has its number of
    `participations`, of those that `cannot_keep_up` and that `faults` struck, and for each
    component, of all others: its `share` of the measured duration on average, the error's `mean`,
    `median` and 95th percentile `p95`, and its `bias`, the mean with its sign: positive where the
    virtual clock says more. None where no run has both clocks.
    """
    runs = list(runs)
    everyone = list(timed(runs))
    if not everyone:
        return None
    devices = sorted({one.device for one in everyone})
    return {
        "kept_up_share": KEPT_UP_SHARE,
        "pace": runs[0].experiment.emulation.pace,
        **_group(everyone),
        "devices": {
            name: _group([one for one in everyone if one.device == name]) for name in devices
        },
    }


def _group(everyone: Sequence[Timed]) -> Row:
    whole = [one for one in everyone if one.state == "whole"]
    return {
        "participations": len(everyone),
        "cannot_keep_up": sum(one.state == "behind" for one in everyone),
        "faults": sum(one.state == "struck" for one in everyone),
        "components": {name: _error(whole, name) for name in COMPONENTS} if whole else None,
    }


def _error(whole: Sequence[Timed], name: str) -> dict[str, float]:
    """Return the error of a component, in shares of the measured durations."""
    durations_s = np.array([one.measured_s["total"] for one in whole])
    measured = np.array([one.measured_s[name] for one in whole]) / durations_s
    virtual = np.array([one.virtual_s[name] for one in whole]) / durations_s
    error = np.abs(virtual - measured)
    return {
        "share": float(measured.mean()),
        "bias": float((virtual - measured).mean()),
        "mean": float(error.mean()),
        "median": float(np.median(error)),
        "p95": float(np.percentile(error, 95)),
    }
