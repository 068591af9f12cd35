"""Replays: policies on a trace, each at some capacities, beside the bound that none can beat."""

from experiments.replays.capacity import Capacity, capacities_of
from experiments.replays.contenders import Contender, contenders_of
from experiments.replays.curves import write as write_curves
from experiments.replays.rows import rows
from experiments.replays.sources import file_of, find_trace
from experiments.replays.table import facts, print_table

__all__ = [
    "Capacity",
    "Contender",
    "capacities_of",
    "contenders_of",
    "facts",
    "file_of",
    "find_trace",
    "print_table",
    "rows",
    "write_curves",
]
