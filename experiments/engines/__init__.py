"""The engines, by name: ways to run one experiment into its run folder."""

from __future__ import annotations

from collections.abc import Callable

from experiments.engines import emulate, flower, inline
from fedio.config import Experiment
from fedio.runs import RunFolder

ENGINES: dict[str, Callable[[Experiment, RunFolder], None]] = {
    "inline": inline.run,
    "flower": flower.run,
    "emulate": emulate.run,
}
