"""Durations: what participations take on a run's clock, and on the virtual one.

The virtual clock goes by the meter's true counts, the devices' true speeds and what was done to
them on purpose; the wall clock by what the devices have measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from fedio.config import Experiment
from fedio.costs import Phases, phases
from fedio.faults import struck
from fedio.profiles import Speeds
from fedio.protocol import Meter, WallSeconds
from strategies.round import work_of


class Spent(NamedTuple):
    """What is known of the work of a participation: its counts, and its time where it has one."""

    meter: Meter
    wall: WallSeconds | None = None


class Durations:
    """Gives participations their seconds, phase by phase.

    Attributes:
        by_wall: whether the run's clock is the devices' own.
    """

    def __init__(self, experiment: Experiment, speeds: Speeds) -> None:
        """Get ready.

        Args:
            experiment: which clock it is, and what goes wrong on purpose.
            speeds: the devices' true figures.
        """
        self.by_wall = experiment.engine.clock == "wall"
        self._experiment = experiment
        self._speeds = speeds

    def on_clock(self, spent: Mapping[int, Spent], server_round: int, model_bytes: float) -> Phases:
        """Return what the work of each client takes on the run's clock, in their order."""
        if not self.by_wall:
            return self.virtual(spent, server_round, model_bytes)
        walls = [one.wall for one in spent.values()]
        return Phases(
            **{
                phase.name: np.array([getattr(wall, phase.name) for wall in walls], np.float64)
                for phase in fields(Phases)
            }
        )

    def virtual(self, spent: Mapping[int, Spent], server_round: int, model_bytes: float) -> Phases:
        """Return what the work of each client takes by the cost model, in their order."""
        clients = np.array(list(spent), dtype=np.int64)
        work = work_of([one.meter for one in spent.values()], model_bytes)
        hits = [struck(self._experiment, client, server_round) for client in spent]
        slowdown = np.array([hit.storage_slowdown for hit in hits], np.float64)
        took = phases(work, self._speeds.take(clients).with_storage_slowed(slowdown))
        stop_s = np.array([hit.stop_s for hit in hits], np.float64)
        return replace(took, stall_s=took.stall_s + stop_s)
