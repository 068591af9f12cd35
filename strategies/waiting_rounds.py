"""Rounds that wait for their cohort: choose, let all train, take those that come in time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedio.arrays import unpack
from fedio.config import Experiment
from strategies.aggregations import in_types_of, is_finite, state_of, undo
from strategies.chooser import cohort_predicted_s
from strategies.ledger import RoundRecord
from strategies.normalisation import normalised
from strategies.replies import Report, sort_replies
from strategies.round import Terms
from strategies.selector import Cohort, View
from strategies.shared import Shared, size_bytes
from strategies.staging import Stager

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    """A round that is under way: what the selector saw and chose, and the model that was sent."""

    view: View
    cohort: Cohort
    arrays: ArrayRecord


class WaitingRounds:
    """Plays rounds one after the other: each ends when enough of its cohort have replied."""

    def __init__(
        self,
        experiment: Experiment,
        shared: Shared,
        aggregation: Strategy,
        stager: Stager | None,
    ) -> None:
        """Get ready.

        Args:
            experiment: the experiment, of one arm.
            shared: what rounds are played with.
            aggregation: what becomes of the replies that count.
            stager: is told what training wrote, if the arm stages.
        """
        self._experiment = experiment
        self._shared = shared
        self._aggregation = aggregation
        self._stager = stager
        self._open: _Open | None = None

    def open(self, server_round: int, arrays: ArrayRecord) -> Cohort:
        """Begin a round, and return who is to train.

        Raises:
            NoFeasibleClient: there is nobody, and nobody will come.
        """
        timeline, chooser = self._shared.timeline, self._shared.chooser
        timeline.wait_for_somebody()
        view = chooser.view(server_round, timeline.now_s, size_bytes(arrays))
        self._open = _Open(view, chooser.choose(view), arrays)
        return self._open.cohort

    def close(
        self, replies: Mapping[int, Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None, RoundRecord]:
        """End the round, and return the model after it, its metrics, and what happened.

        Args:
            replies: those that came, by partition.
        """
        if self._open is None:
            raise RuntimeError("a round is opened before it is closed")
        opened, self._open = self._open, None
        timeline, server_round = self._shared.timeline, opened.view.round
        asked = opened.cohort.clients.tolist()
        reports, problems = sort_replies(
            replies, asked, server_round, opened.arrays, by_wall=timeline.by_wall
        )
        self._shared.trouble.note(server_round, problems)
        start_s, rounds = timeline.now_s, self._experiment.rounds
        terms = Terms(rounds.cohort, rounds.minimum, rounds.deadline_of(server_round))
        unusable = {c: problem.spent for c, problem in problems.items() if problem.spent}
        actual, arrivals_s, outcome = timeline.play(
            reports, unusable, opened.view.model_bytes, server_round, terms
        )
        if self._stager is not None:
            spent = {report.client: report.spent for report in reports} | unusable
            meters = {client: one.meter for client, one in spent.items()}
            self._stager.trained(meters, self._shared.fleet.busy_until_s)
        counted = set(outcome.counted.tolist())
        counting = [report for report in reports if report.client in counted]
        arrays, metrics = self._aggregated(counting, opened)
        if arrays is None:
            unused = np.union1d(outcome.counted, outcome.unused)
            outcome = replace(outcome, counted=np.zeros(0, dtype=np.int64), unused=unused)
        self._shared.fleet.failed(list(problems))
        self._shared.fleet.trained(outcome.counted)
        record = RoundRecord(
            server_round=server_round,
            start_s=start_s,
            wanted=rounds.cohort,
            cohort=opened.cohort,
            predicted_s=cohort_predicted_s(opened.view, opened.cohort),
            reports=reports,
            actual=actual,
            arrivals_s=arrivals_s,
            outcome=outcome,
            problems=problems,
            staged=None if self._stager is None else [],
        )
        return arrays, metrics, record

    def _aggregated(
        self, reports: list[Report], opened: _Open
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model that comes of replies, and metrics; none where that is not finite."""
        go_back = undo(self._aggregation)
        with np.errstate(all="ignore"):  # what it comes to is looked at
            arrays, metrics = self._aggregation.aggregate_train(
                opened.view.round, self._normalised(reports, opened)
            )
            if arrays is None:
                return None, metrics
            arrays = in_types_of(opened.arrays, arrays)
        new = {name: unpack(array) for name, array in arrays.items()}
        if is_finite(new) and is_finite(state_of(self._aggregation)):
            return arrays, metrics
        go_back()
        logger.warning(
            "round %d: what comes of its replies is not finite, and left out", opened.view.round
        )
        return None, None

    def _normalised(self, reports: list[Report], opened: _Open) -> list[Message]:
        """Return the replies that count, their updates per step where the arm says so."""
        messages, arm = [report.message for report in reports], self._experiment.chosen
        if arm.normalisation == "none":
            return messages
        steps = np.array([report.meter.steps for report in reports], dtype=np.int64)
        equal = arm.weighting == "equal"
        weights = np.array([1.0 if equal else report.weight for report in reports])
        training = self._experiment.training
        mu = float(getattr(self._aggregation, "proximal_mu", 0.0))
        pull = training.lr_of(opened.view.round) * mu
        return normalised(messages, opened.arrays, steps, weights, training.momentum, pull)
