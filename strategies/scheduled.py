"""The Flower strategy: rounds on a clock around a selector and an aggregation strategy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedio.arrays import unpack
from fedio.config import Experiment
from fedio.costs import io_to_compute
from fedio.profiles import Speeds
from fedio.protocol import ACCURACY, ARRAYS, CONFIG, LOCAL_STEPS, LOSS
from fedio.runs import CLOCK_KEYS, RunFolder, hash_arrays
from strategies.aggregations import restore, state_of
from strategies.buffered import FedBuff
from strategies.buffered_rounds import BufferedRounds
from strategies.capacity import fits, say_who_does_not_fit
from strategies.checkpoint import Memory, Part, Progress
from strategies.chooser import Chooser
from strategies.cohort_grid import CohortGrid, messages_in_order
from strategies.contact import Contact
from strategies.durations import Durations
from strategies.ending import Ending
from strategies.fleet import Fleet
from strategies.ledger import Ledger, RoundRecord
from strategies.presence import presence_of
from strategies.replies import RejectedReplyError, check_evaluation
from strategies.selector import Cohort, Selector
from strategies.shared import Shared, size_bytes
from strategies.staging import Stager
from strategies.timeline import Timeline
from strategies.transport import last_line
from strategies.trouble import Trouble
from strategies.waiting_rounds import WaitingRounds

logger = logging.getLogger(__name__)

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Ask = Callable[[Iterable[Message]], list[Message]]

FLOWER_START_S = 60.0
"""By the wall clock a round's deadline is of the devices' time; Flower, which starts a process for
each message, gets so many seconds more."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What the clock knows of the devices: the profile each is of, and its true figures."""

    names: list[str]
    speeds: Speeds


class Scheduled(Strategy):
    """Composes a selector with any Flower strategy, which aggregates what counts.

    In each round the selector chooses the cohort from claims and observed durations. All replies
    are validated; the meter's true counts and the devices' true speeds give each its duration on
    the virtual clock, or the device has measured it; the first K to arrive count. Those that are
    late stay busy until their own end, and what they claim becomes known only then. After each
    round all that the next ones depend on is kept in the run folder, and a run that finds it there
    goes on from it.
    """

    def __init__(
        self,
        experiment: Experiment,
        selector: Selector,
        aggregation: Strategy,
        devices: Devices,
        folder: RunFolder,
    ) -> None:
        """Put a strategy together.

        Args:
            experiment: the experiment, of one arm.
            selector: who trains.
            aggregation: a Flower strategy that samples all nodes it sees (fraction 1).
            devices: what the clock needs to know.
            folder: where the run is written down.
        """
        self._experiment = experiment
        self._aggregation = aggregation
        self._speeds = devices.speeds
        durations = Durations(experiment, devices.speeds)
        self._ledger = Ledger(folder, experiment, devices.names, durations)
        self._trouble = Trouble(experiment.rounds.empty_rounds)
        self._ending = Ending(experiment.rounds)
        self._fleet = Fleet.unknown(experiment.data.clients)
        speeds, presence = devices.speeds, presence_of(experiment)
        self._timeline = Timeline(self._fleet, durations, presence, experiment.rounds.late)
        stages = experiment.chosen.staging
        self._stager = Stager(experiment, speeds, presence) if stages else None
        self._chooser = Chooser(experiment, selector, self._fleet)
        shared = Shared(self._fleet, self._timeline, self._chooser, self._trouble)
        self._waiting = WaitingRounds(experiment, shared, aggregation, self._stager)
        self._buffered: BufferedRounds | None = None
        if isinstance(aggregation, FedBuff):
            self._buffered = BufferedRounds(experiment, shared, aggregation.buffer)
        self._memory = Memory(folder, experiment.digest, self._parts())
        self._contact: Contact | None = None
        self._replied_s: dict[int, float] = {}
        self._closed: RoundRecord | None = None

    def _parts(self) -> dict[str, Part]:
        """Return all that changes from round to round."""
        aggregation = self._aggregation
        parts = {
            "fleet": Part(self._fleet.arrays, self._fleet.restore),
            "timeline": Part(self._timeline.state, self._timeline.restore),
            "selector": Part(self._chooser.state, self._chooser.restore),
            "aggregation": Part(partial(state_of, aggregation), partial(restore, aggregation)),
            "ledger": Part(self._ledger.state, self._ledger.restore),
            "trouble": Part(self._trouble.state, self._trouble.restore),
            "ending": Part(self._ending.state, self._ending.restore),
        }
        if self._stager is not None:
            parts["stager"] = Part(self._stager.state, self._stager.restore)
        if self._buffered is not None:
            parts["buffered"] = Part(self._buffered.state, self._buffered.restore)
        return parts

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
            num_rounds: rounds to run, unless the run is over before.
            timeout: wall-clock seconds to wait for a round's replies; None: until all are there.
            train_config: sent to the clients with each round's model.
            evaluate_config: sent to the clients with the last model, for their held-out samples.
            evaluate_fn: central evaluation, (round, model) -> accuracy and loss, or None.

        Raises:
            RunError: the roster stays incomplete, or too many rounds in a row bring nothing.
        """
        began_s = time.monotonic()
        self.summary()
        contact = self._gather(grid, initial_arrays)
        result, progress = Result(), self._memory.recall()
        if progress is None:
            progress = Progress(0, initial_arrays, 0.0)
            self._ledger.initial(*self._evaluate(0, initial_arrays, evaluate_fn, result))
        arrays, done = progress.model, progress.server_round
        while done < num_rounds and not self._ending.is_over:
            server_round = done + 1
            config = ConfigRecord() if train_config is None else train_config
            self._look_around(contact)
            limit_s = self._limit_s(server_round, timeout)

            def ask(messages: Iterable[Message], limit_s: float | None = limit_s) -> list[Message]:
                return self._ask(contact, list(messages), limit_s)

            play = self._play if self._buffered is None else self._play_buffered
            new_arrays, metrics = play(server_round, arrays, config, ask)
            if new_arrays is not None:
                arrays = new_arrays
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            accuracy, loss = self._evaluate(server_round, arrays, evaluate_fn, result)
            self._ending.note(self._timeline.now_s, accuracy)
            if server_round < num_rounds and not self._ending.is_over:
                self._stage(contact, timeout)
            self._close(accuracy, loss)
            done = server_round
            if self._experiment.engine.checkpoints:
                took_s = progress.wall_s + time.monotonic() - began_s
                self._memory.keep(Progress(done, arrays, took_s))
        self._trouble.finish()
        result.arrays = arrays
        config = ConfigRecord() if evaluate_config is None else evaluate_config
        messages = self.configure_evaluate(done, arrays, config, grid)
        found = self.aggregate_evaluate(done, contact.exchange(list(messages), timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[done] = found
        self._finish(arrays, done, progress.wall_s + time.monotonic() - began_s)
        return result

    def _gather(self, grid: Grid, arrays: ArrayRecord) -> Contact:
        """Wait for all clients, and write into the table what they say of themselves."""
        self._contact = contact = Contact(grid, self._experiment)
        self._fleet.registered(contact.profiles)
        batch_size = self._experiment.training.batch_size
        self._fleet.fits[:] = fits(self._fleet, size_bytes(arrays), batch_size)
        say_who_does_not_fit(self._fleet)
        return contact

    def _look_around(self, contact: Contact) -> None:
        """Write into the table who can be asked now, and what those say who have come back."""
        self._fleet.reachable[:], returned = contact.reachable()
        if returned:
            self._fleet.registered(returned)
        self._replied_s = {}

    def _limit_s(self, server_round: int, timeout_s: float | None) -> float | None:
        """Return for how many wall-clock seconds to wait for a round's replies, if for so many."""
        deadline_s = self._experiment.rounds.deadline_of(server_round)
        if timeout_s is not None or deadline_s is None or not self._timeline.by_wall:
            return timeout_s
        return deadline_s + FLOWER_START_S

    def _ask(
        self, contact: Contact, messages: list[Message], limit_s: float | None
    ) -> list[Message]:
        """Have clients train, and return the replies, noting how long each took to come."""
        replies = contact.exchange(messages, limit_s)
        for client in contact.by_client(replies):
            self._replied_s[client] = contact.took_s(client)
        return replies

    @property
    def _clients(self) -> Contact:
        """The clients, once they are there."""
        if self._contact is None:
            raise RuntimeError("start comes before anything is sent")
        return self._contact

    def _play(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, ask: Ask
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Play a round that waits for its cohort."""
        replies = ask(self.configure_train(server_round, arrays, config, CohortGrid([])))
        return self.aggregate_train(server_round, replies)

    def _play_buffered(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, ask: Ask
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Play a round of clients that are always at work."""
        if self._buffered is None:
            raise RuntimeError("the aggregation is not a buffered one")

        def ask_cohort(cohort: Cohort) -> dict[int, Message]:
            messages = self._messages(server_round, arrays, config, cohort)
            return self._clients.by_client(ask(messages))

        new_arrays, self._closed = self._buffered.play(server_round, arrays, ask_cohort)
        return new_arrays, None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the cohort and return a message for each of its clients, by partition."""
        del grid  # nodes come from the roster
        cohort = self._waiting.open(server_round, arrays)
        return self._messages(server_round, arrays, config, cohort)

    def _messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, cohort: Cohort
    ) -> list[Message]:
        """Return a message for each client of a cohort, by partition."""
        nodes = self._clients.nodes(cohort.clients)
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
        del server_round  # the one that was configured
        arrays, metrics, self._closed = self._waiting.close(self._clients.by_client(replies))
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for every client, by partition: evaluation is free on the clock.

        Who still owes an answer is left out: it would not hear of it.
        """
        del grid
        everyone = range(self._experiment.data.clients)
        nodes = self._clients.nodes(c for c in everyone if not self._clients.owes(c))
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
            client = self._clients.client_of(reply)
            if reply.has_error():
                logger.warning(
                    "client %d did not evaluate: %s", client, last_line(reply.error.reason)
                )
                continue
            try:
                samples, accuracy = check_evaluation(reply)
            except RejectedReplyError as error:
                logger.warning("client %d did not evaluate: %s", client, error)
                continue
            self._held_out_samples[client] = samples
            if samples:
                self._held_out_accuracy[client] = accuracy
                evaluated.append(reply)
        return self._aggregation.aggregate_evaluate(server_round, evaluated)

    def _stage(self, contact: Contact, timeout_s: float | None) -> None:
        """Have the clients named for the next round stage in what this one left them of time."""
        if self._stager is not None and self._closed is not None:
            ended_s = self._fleet.busy_until_s
            staged = self._stager.stage(contact, self._closed, ended_s, timeout_s)
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
        self._ledger.record(done, accuracy, loss, self._replied_s)
        logger.info("round %d ends at %.0f s", done.server_round, done.outcome.end_s)
        self._trouble.check(done.server_round, done.outcome)

    def _finish(self, arrays: ArrayRecord, rounds: int, wall_s: float) -> None:
        """Write the summary: the run is complete."""
        fleet, training = self._fleet, self._experiment.training
        summary = {
            "schema": 1,
            "name": self._experiment.name,
            "arm": self._experiment.arm,
            "seed": self._experiment.seed,
            "clock": self._experiment.engine.clock,
            "rounds": rounds,
            CLOCK_KEYS[self._experiment.engine.clock]: self._timeline.now_s,
            "wall_s": wall_s,
            "model_hash": hash_arrays({name: unpack(array) for name, array in arrays.items()}),
            "io_to_compute": io_to_compute(
                training.local_steps, training.batch_size, fleet.mean_samples(), self._speeds
            ),
            "holdout": {"accuracy": self._held_out_accuracy, "samples": self._held_out_samples},
        }
        self._ledger.finish(summary)
