"""When the devices of a run are there, and what becomes of work that they leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedio.availability import Availability
from fedio.availability_kinds import availability_of, forecasts
from fedio.config import Experiment


@dataclass(frozen=True, slots=True)
class Presence:
    """When the devices are there.

    Attributes:
        availability: their stays.
        on_leave: whether work is aborted when they leave, or goes on at the next stay.
        forecast: the share of a window to come that each expects to be there for, at a time.
    """

    availability: Availability
    on_leave: Literal["abort", "resume"]
    forecast: Callable[[float], np.ndarray]


def presence_of(experiment: Experiment) -> Presence | None:
    """Return the presence of an experiment's devices; None: they are always there.

    Raises:
        InputError: its trace cannot be read.
    """
    availability = availability_of(experiment)
    if availability is None:
        return None
    return Presence(
        availability,
        experiment.availability.on_leave,
        lambda now_s: forecasts(availability, now_s, experiment),
    )
