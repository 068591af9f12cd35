"""What rounds of any kind are played with."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ArrayRecord

from strategies.chooser import Chooser
from strategies.fleet import Fleet
from strategies.timeline import Timeline
from strategies.trouble import Trouble


@dataclass(frozen=True, slots=True)
class Shared:
    """The fleet table, the clock, who chooses, what went wrong."""

    fleet: Fleet
    timeline: Timeline
    chooser: Chooser
    trouble: Trouble


def size_bytes(arrays: ArrayRecord) -> float:
    """Return what a client downloads, and uploads."""
    return float(sum(len(array.data) for array in arrays.values()))
