"""The Flower strategy: rounds on a virtual clock around a selector and an aggregation strategy."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedio.arrays import unpack
from fedio.config import Experiment
from fedio.costs import io_to_compute
from fedio.profiles import Speeds
from fedio.protocol import ACCURACY, ARRAYS, CONFIG, LOCAL_STEPS, LOSS, METRICS, NUM_EXAMPLES
from fedio.runs import hash_arrays
from fedio.seeds import Purpose, rng
from strategies.cohort_grid import messages_in_order
from strategies.fleet import Fleet
from strategies.ledger import Ledger, RoundRecord
from strategies.roster import Roster, gather
from strategies.round import sort_replies
from strategies.selector import Cohort, Selector, View
from strategies.selectors.claims import predicted_phases
from strategies.staging import Stager
from strategies.timeline import Timeline
from strategies.transport import exchange, last_line
from strategies.trouble import Trouble

logger = logging.getLogger(__name__)

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True, slots=True)
class _Open:
    """A round that is under way: what the selector saw and chose, and the model that was sent."""

    view: View
    cohort: Cohort
    arrays: ArrayRecord
    predicted_s: np.ndarray


class Scheduled(Strategy):
    """Composes a selector with any Flower strategy, which aggregates what counts.

    In each round the selector chooses the cohort from claims and observed durations. All replies
    are validated; the meter's true counts and the devices' true speeds give each its duration on
    the virtual clock; the first K to arrive count. Those that are late stay busy until their own
    end, and what they claim becomes known only then.
    """

    def __init__(
        self,
        experiment: Experiment,
        selector: Selector,
        aggregation: Strategy,
        speeds: Speeds,
        ledger: Ledger,
    ) -> None:
        """Put a strategy together.

        Args:
            experiment: the experiment, of one arm.
            selector: who trains.
            aggregation: a Flower strategy that samples all nodes it sees (fraction 1).
            speeds: the devices' true figures, for the clock only.
            ledger: where the run is written down.
        """
        self._experiment = experiment
        self._selector = selector
        self._aggregation = aggregation
        self._speeds = speeds
        self._ledger = ledger
        self._trouble = Trouble(experiment.rounds.empty_rounds)
        self._fleet = Fleet.unknown(experiment.data.clients)
        self._timeline = Timeline(self._fleet, speeds)
        self._stager = Stager(experiment, speeds) if experiment.chosen.staging else None
        self._state = selector.initial_state(experiment.data.clients)
        self._roster = Roster({}, {})
        self._asked: dict[str, int] = {}
        self._open: _Open | None = None
        self._closed: RoundRecord | None = None

    def summary(self) -> None:
        """Log what runs."""
        chosen = self._experiment.chosen
        logger.info(
            "selector %s, policy %s, sampler %s, aggregation %s",
            chosen.selector.name,
            chosen.policy.name,
            chosen.sampler.name,
            type(self._aggregation).__name__,
        )

    def start(  # noqa: PLR0913, PLR0917 - the signature is Flower's
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run all rounds and write the run folder.

        Args:
            grid: Flower's grid.
            initial_arrays: the first global model.
            num_rounds: rounds to run.
            timeout: wall-clock seconds to wait for a round's replies; None: until all are there.
            train_config: sent to the clients with each round's model.
            evaluate_config: sent to the clients with the last model, for their held-out samples.
            evaluate_fn: central evaluation, (round, model) -> accuracy and loss, or None.

        Raises:
            RunError: the roster stays incomplete, or too many rounds in a row bring nothing.
        """
        began = time.monotonic()
        self.summary()
        result, arrays = Result(), initial_arrays
        self._roster = gather(
            grid, self._experiment.data.clients, self._experiment.rounds.roster_timeout_s
        )
        self._fleet.registered(list(self._roster.profiles.values()))
        self._ledger.initial(*self._evaluate(0, arrays, evaluate_fn, result))
        for server_round in range(1, num_rounds + 1):
            config = ConfigRecord() if train_config is None else train_config
            messages = self.configure_train(server_round, arrays, config, grid)
            replies = self._exchange(grid, list(messages), timeout)
            new_arrays, metrics = self.aggregate_train(server_round, replies)
            if new_arrays is not None:
                arrays = new_arrays
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            if server_round < num_rounds:
                self._stage(grid, timeout)
            accuracy, loss = self._evaluate(server_round, arrays, evaluate_fn, result)
            self._close(accuracy, loss)
        self._trouble.finish()
        result.arrays = arrays
        config = ConfigRecord() if evaluate_config is None else evaluate_config
        messages = self.configure_evaluate(num_rounds, arrays, config, grid)
        found = self.aggregate_evaluate(num_rounds, self._exchange(grid, list(messages), timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[num_rounds] = found
        self._finish(arrays, num_rounds, time.monotonic() - began)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the cohort and return a message for each of its clients, by partition."""
        del grid  # nodes come from the roster
        self._timeline.wait_for_somebody()
        view = self._view(server_round, arrays)
        selection = rng(self._experiment.seed, Purpose.SELECTION, server_round=server_round)
        cohort, self._state = self._selector.select(view, self._state, selection)
        self._fleet.selected(cohort.clients, server_round)
        predicted_s = predicted_phases(view, cohort.clients).total_s
        self._open = _Open(view, cohort, arrays, predicted_s)
        nodes = [self._roster.nodes[int(client)] for client in cohort.clients]
        messages = messages_in_order(
            lambda visible: self._aggregation.configure_train(
                server_round, arrays, config, visible
            ),
            nodes,
        )
        for message, steps in zip(messages, cohort.local_steps, strict=True):
            own = ConfigRecord({**message.content.config_records[CONFIG], LOCAL_STEPS: int(steps)})
            message.content = RecordDict({ARRAYS: message.content[ARRAYS], CONFIG: own})
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the replies, end the round on the clock, and aggregate those that count."""
        if self._open is None:
            raise RuntimeError("configure_train comes before aggregate_train")
        opened, self._open = self._open, None
        shapes = {name: tuple(array.shape) for name, array in opened.arrays.items()}
        by_client = {self._asked[reply.metadata.reply_to_message_id]: reply for reply in replies}
        cohort = opened.cohort
        reports, problems = sort_replies(by_client, cohort.clients.tolist(), server_round, shapes)
        self._trouble.note(server_round, problems)
        start_s, rounds = self._timeline.now_s, self._experiment.rounds
        unusable = {c: problem.meter for c, problem in problems.items() if problem.meter}
        actual, arrivals_s, outcome = self._timeline.play(
            reports,
            unusable,
            opened.view.model_bytes,
            rounds.cohort,
            rounds.deadline_of(server_round),
        )
        if self._stager is not None:
            meters = {report.client: report.meter for report in reports} | unusable
            self._stager.trained(meters, self._fleet.busy_until_s)
        self._fleet.failed(list(problems))
        self._fleet.trained(outcome.counted)
        self._closed = RoundRecord(
            server_round=server_round,
            start_s=start_s,
            wanted=rounds.cohort,
            cohort=cohort,
            predicted_s=opened.predicted_s,
            reports=reports,
            actual=actual,
            arrivals_s=arrivals_s,
            outcome=outcome,
            problems=problems,
            staged=None if self._stager is None else [],
        )
        counted = set(outcome.counted.tolist())
        return self._aggregation.aggregate_train(
            server_round, [report.message for report in reports if report.client in counted]
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for every client, by partition: evaluation is free on the clock."""
        del grid
        nodes = [self._roster.nodes[client] for client in sorted(self._roster.nodes)]
        return messages_in_order(
            lambda visible: self._aggregation.configure_evaluate(
                server_round, arrays, config, visible
            ),
            nodes,
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Keep each client's accuracy on its held-out samples, and return the average."""
        clients = self._experiment.data.clients
        self._held_out_accuracy = np.full(clients, np.nan)
        self._held_out_samples = np.zeros(clients, dtype=np.int64)
        evaluated = []
        for reply in replies:
            client = self._asked[reply.metadata.reply_to_message_id]
            if reply.has_error():
                logger.warning(
                    "client %d did not evaluate: %s", client, last_line(reply.error.reason)
                )
                continue
            metrics = reply.content.metric_records[METRICS]
            self._held_out_samples[client] = metrics[NUM_EXAMPLES]
            if metrics[NUM_EXAMPLES]:
                self._held_out_accuracy[client] = metrics[ACCURACY]
                evaluated.append(reply)
        return self._aggregation.aggregate_evaluate(server_round, evaluated)

    def _exchange(
        self, grid: Grid, messages: list[Message], timeout_s: float | None
    ) -> list[Message]:
        """Send messages and return the replies, remembering which client each is from."""
        client_of = {node: client for client, node in self._roster.nodes.items()}
        replies = []
        self._asked = {}
        for message, reply in zip(messages, exchange(grid, messages, timeout_s), strict=True):
            if reply is not None:
                client = client_of[message.metadata.dst_node_id]
                self._asked[reply.metadata.reply_to_message_id] = client
                replies.append(reply)
        return replies

    def _view(self, server_round: int, arrays: ArrayRecord) -> View:
        rounds, training = self._experiment.rounds, self._experiment.training
        return View(
            fleet=self._fleet.read_only(),
            round=server_round,
            now_s=self._timeline.now_s,
            feasible=self._fleet.feasible(self._timeline.now_s),
            wanted=rounds.cohort,
            # 10 * 1.1 is a little more than 11 in floating point; it means 11.
            count=math.ceil(rounds.cohort * rounds.over_commitment - 1e-9),
            local_steps=training.local_steps,
            batch_size=training.batch_size,
            model_bytes=float(sum(len(array.data) for array in arrays.values())),
            staging=self._experiment.chosen.staging,
            sampler=self._experiment.chosen.sampler.name,
        )

    def _stage(self, grid: Grid, timeout_s: float | None) -> None:
        """Have the clients named for the next round stage in what this one left them of time."""
        if self._stager is not None and self._closed is not None:
            staged = self._stager.stage(
                grid, self._roster.nodes, self._closed, self._fleet.busy_until_s, timeout_s
            )
            self._closed = replace(self._closed, staged=staged)

    def _evaluate(
        self, server_round: int, arrays: ArrayRecord, evaluate_fn: Evaluate | None, result: Result
    ) -> tuple[float | None, float | None]:
        """Return central accuracy and loss, or nothing in a round without evaluation."""
        metrics = None if evaluate_fn is None else evaluate_fn(server_round, arrays)
        if metrics is None:
            return None, None
        result.evaluate_metrics_serverapp[server_round] = metrics
        return float(metrics[ACCURACY]), float(metrics[LOSS])  # type: ignore[arg-type]

    def _close(self, accuracy: float | None, loss: float | None) -> None:
        """Write a round down, and see whether there is any point in going on."""
        if self._closed is None:
            raise RuntimeError("aggregate_train comes before a round is closed")
        done, self._closed = self._closed, None
        self._ledger.record(done, accuracy, loss)
        logger.info("round %d ends at %.0f virtual s", done.server_round, done.outcome.end_s)
        self._trouble.check(len(done.outcome.counted))

    def _finish(self, arrays: ArrayRecord, rounds: int, wall_s: float) -> None:
        """Write the summary: the run is complete."""
        fleet, training = self._fleet, self._experiment.training
        summary = {
            "schema": 1,
            "name": self._experiment.name,
            "arm": self._experiment.arm,
            "seed": self._experiment.seed,
            "clock": "virtual",
            "rounds": rounds,
            "virtual_s": self._timeline.now_s,
            "wall_s": wall_s,
            "model_hash": hash_arrays({name: unpack(array) for name, array in arrays.items()}),
            "io_to_compute": io_to_compute(
                training.local_steps, training.batch_size, fleet.mean_samples(), self._speeds
            ),
            "holdout": {"accuracy": self._held_out_accuracy, "samples": self._held_out_samples},
        }
        self._ledger.finish(summary)
