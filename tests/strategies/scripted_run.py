"""Runs of the strategy over scripted clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord

from fedio.config import Experiment
from fedio.protocol import ACCURACY, LOSS
from fedio.runs import Run, RunFolder, read_run
from strategies.aggregations import aggregation_of
from strategies.scheduled import Devices, Scheduled
from strategies.server_app import selector_of
from tests.strategies.scripted_grid import Script, ScriptedGrid, Stages, speeds

FIVE_S = (1.0, 2.0, 3.0, 4.0, 10.0)
WORK = {"trained_samples": 10}


def initial() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros((2, 3), np.float32))})


def trains(client: int, server_round: int) -> dict[str, Any]:
    """Return a model that tells who trained, and ten samples of work."""
    del server_round
    return {"meter": WORK, "arrays": {"w": np.full((2, 3), client + 1, np.float32)}}


def play(  # noqa: PLR0917 - what differs from test to test
    path: Path,
    script: Script = trains,
    rounds: int = 3,
    seconds: tuple[float, ...] = FIVE_S,
    stages: Stages | None = None,
    resume: bool = False,
    cache: dict[str, Any] | None = None,
    arm: dict[str, Any] | None = None,
    availability: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    faults: dict[str, Any] | None = None,
    **section: Any,
) -> tuple[Run, ScriptedGrid, ArrayRecord]:
    """Run `rounds` rounds over scripted clients and return what was written and the last model.

    The arm stages where `stages` says what clients do when asked to; a run that was interrupted
    goes on with `resume`.
    """
    values = {"rounds": rounds, "cohort": 3, "roster_timeout_s": 1.0, "reply_timeout_s": 1.0}
    experiment = Experiment.model_validate(
        {
            "name": "scripted",
            "data": {"clients": len(seconds)},
            "rounds": values | section,
            "training": {"local_steps": 2, "batch_size": 5},
            "cache": cache or {},
            "availability": availability or {},
            "engine": engine or {},
            "faults": faults or {},
            "arms": {"arm": {"staging": stages is not None} | (arm or {})},
        }
    ).for_arm()
    folder = RunFolder(path)
    if not (resume and folder.is_begun):
        folder = RunFolder.create(path, experiment)
    clients = len(seconds)
    devices = Devices(["scripted"] * clients, speeds(clients, seconds))
    aggregation, selector = aggregation_of(experiment.chosen), selector_of(experiment.chosen)
    strategy = Scheduled(experiment, selector, aggregation, devices, folder)
    grid = ScriptedGrid(devices.speeds, script)
    if stages is not None:
        grid.stages = stages

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({ACCURACY: server_round / 10, LOSS: float(arrays["w"].numpy().mean())})

    result = strategy.start(
        grid,
        initial(),
        num_rounds=rounds,
        timeout=experiment.rounds.reply_timeout_s,
        evaluate_fn=evaluate,
    )
    return read_run(path), grid, result.arrays
