"""Telemetry: what the processes of a run and their host use, sampled while it goes on."""

from experiments.telemetry.processes import Watched
from experiments.telemetry.rows import read
from experiments.telemetry.sampler import Telemetry
from experiments.telemetry.summary import Summary, lines, summarise

__all__ = ["Summary", "Telemetry", "Watched", "lines", "read", "summarise"]
