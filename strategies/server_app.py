"""The ServerApp: it puts selector, strategy, clock and run folder together and starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedio.config import Arm, Experiment
from fedio.errors import InputError
from fedio.home import open_home
from fedio.loading import from_run_config
from fedio.plugins import create
from fedio.profiles import fleet_of
from fedio.protocol import ACCURACY, LOSS
from fedio.runs import RunFolder
from strategies.aggregations import aggregation_of
from strategies.scheduled import Devices, Scheduled
from strategies.selector import Selector
from strategies.selectors import SELECTORS


class Score(Protocol):
    """What an evaluation on the central test set found."""

    @property
    def accuracy(self) -> float:
        """Share of samples classified correctly."""

    @property
    def loss(self) -> float:
        """Mean loss."""


class Task(Protocol):
    """What the server needs of the learning task."""

    @property
    def initial_arrays(self) -> ArrayRecord:
        """The global model's first weights."""

    def evaluate(self, arrays: ArrayRecord) -> Score:
        """Evaluate weights on the central test set."""


def build(make_task: Callable[[Experiment], Task]) -> ServerApp:
    """Return the ServerApp for experiments whose learning task `make_task` provides."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment = from_run_config(context.run_config).for_arm()
        task = make_task(experiment)
        with open_home(str(context.run_config["experiment"]), experiment) as folder:
            _play(experiment, folder, task, grid)

    return app


def _play(experiment: Experiment, folder: RunFolder, task: Task, grid: Grid) -> None:
    """Run all rounds of an experiment's arm into its run folder."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        rounds = experiment.rounds
        if server_round % rounds.evaluate_every and server_round != rounds.rounds:
            return None
        score = task.evaluate(arrays)
        return MetricRecord({ACCURACY: score.accuracy, LOSS: score.loss})

    strategy_of(experiment, folder).start(
        grid,
        task.initial_arrays,
        num_rounds=experiment.rounds.rounds,
        timeout=experiment.rounds.reply_timeout_s,
        train_config=ConfigRecord(),
        evaluate_config=ConfigRecord(),
        evaluate_fn=evaluate,
    )


def strategy_of(experiment: Experiment, folder: RunFolder) -> Scheduled:
    """Return the strategy of an experiment's arm.

    Raises:
        InputError: see `selector_of` and `aggregation_of`.
    """
    arm, devices = experiment.chosen, Devices(*fleet_of(experiment))
    return Scheduled(experiment, selector_of(arm), aggregation_of(arm), devices, folder)


def selector_of(arm: Arm) -> Selector:
    """Return the selector of an arm.

    Raises:
        InputError: it is unknown, or clients are to stage and it does not say who trains next.
    """
    selector = create(arm.selector, SELECTORS, Selector)  # type: ignore[type-abstract]
    if arm.staging and not selector.names_next:
        raise InputError(
            f"selector {arm.selector.name!r} does not say who trains next, so nobody can stage for "
            "it; name another, such as uniform, or set staging = false"
        )
    return selector
