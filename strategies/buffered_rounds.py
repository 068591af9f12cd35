"""Rounds of buffered asynchronous aggregation: each lasts until the next update of the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord, Message

from fedio.arrays import pack, unpack
from fedio.config import Arm, Experiment
from fedio.costs import Phases
from fedio.errors import InputError
from fedio.protocol import ARRAYS
from strategies.aggregations import is_finite
from strategies.buffered import Arrays, Buffer, Ended, Underway
from strategies.chooser import cohort_predicted_s
from strategies.ledger import RoundRecord
from strategies.replies import Problem, Report, sort_replies
from strategies.round import Outcome
from strategies.selector import Cohort, View
from strategies.shared import Shared, size_bytes
from strategies.starts import Start, combined

logger = logging.getLogger(__name__)

# Sends a round's model to a cohort and returns the replies by partition.
Ask = Callable[[Cohort], Mapping[int, Message]]


@dataclass(frozen=True, slots=True)
class Updated(Outcome):
    """The outcome of a round in which those that count may have started in earlier ones.

    Attributes:
        fates: what becomes of those that started in it with a valid reply. Who has not left is
            `counted`, in this update of the server or a later one; in a run's last round who is
            still at work is `late`.
    """

    fates: Mapping[int, str]

    def of(self, client: int) -> str:
        """Return what becomes of a client that started in the round with a valid reply."""
        return self.fates[client]


class BufferedRounds:
    """Plays rounds in which clients are always at work, as many as a cohort, over-commitment too.

    Each starts from the newest model. When it has ended its slot goes at once to whom the selector
    chooses, but not to who trained in this round already: by round and client a participation is
    known. Deadlines, a least number of replies and what late clients do are for rounds that wait,
    and mean nothing here.

    A round ends with an update of the server, and without one when nobody is at work any more, or
    when as many in a row have brought nothing as are at work at once.
    """

    def __init__(self, experiment: Experiment, shared: Shared, buffer: Buffer) -> None:
        """Start with nobody at work.

        Args:
            experiment: the experiment, of one arm.
            shared: what rounds are played with.
            buffer: makes updates of the server out of those of clients.

        Raises:
            InputError: see `check_buffered`.
        """
        check_buffered(experiment.chosen, buffer, experiment.data.clients)
        self._shared = shared
        self._underway = Underway(buffer)
        self._equal_weights = experiment.chosen.weighting == "equal"
        self._rounds = experiment.rounds.rounds

    def state(self) -> Arrays:
        """Return who is at work, and what will come of it."""
        return self._underway.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there."""
        self._underway.restore(state)

    def play(
        self, server_round: int, arrays: ArrayRecord, ask: Ask
    ) -> tuple[ArrayRecord | None, RoundRecord]:
        """Play a round, and return the updated model, if there is one, and what happened.

        Args:
            server_round: counted from 1.
            arrays: the newest model.
            ask: sends it to a cohort.

        Raises:
            NoFeasibleClient: nobody is at work, and nobody can be.
        """
        timeline, underway = self._shared.timeline, self._underway
        if not underway:
            timeline.wait_for_somebody()
        start_s, view = timeline.now_s, self._view(server_round, arrays)
        started, ended = self._start(view, arrays, ask, 0), list[Ended]()
        while underway:
            ended.append(underway.take())
            timeline.move_to(ended[-1].time_s)
            if underway.buffer.is_full or _in_vain(ended, view.count):
                break
            started += self._start(self._view(server_round, arrays), arrays, ask, len(ended))
        for one in ended:
            if one.staleness is not None:
                self._shared.fleet.trained([one.client])
        record = self._record(view, start_s, started, ended)
        if not underway.buffer.is_full:
            return None, record
        logger.info("round %d: staleness %s", server_round, [one.staleness for one in ended])
        with np.errstate(all="ignore"):
            new = underway.update({name: unpack(array) for name, array in arrays.items()})
        if not is_finite(new):
            logger.warning("round %d: what comes of its replies is not finite", server_round)
            return None, record
        return ArrayRecord({name: pack(values) for name, values in new.items()}), record

    def _view(self, server_round: int, arrays: ArrayRecord) -> View:
        """Return what there is to see now; those who trained in this round cannot again."""
        shared = self._shared
        view = shared.chooser.view(server_round, shared.timeline.now_s, size_bytes(arrays))
        feasible = view.feasible & (view.fleet.selected_round < server_round)
        feasible[list(self._underway.clients)] = False
        return replace(view, feasible=feasible)

    def _start(self, view: View, arrays: ArrayRecord, ask: Ask, draw: int) -> list[Start]:
        """Fill the free slots, as far as there is somebody to fill them; return who starts."""
        free = max(view.count - len(self._underway), 0)
        # Nobody at all, at the start of a round, is an error that choosing tells.
        if not free or (not view.feasible.any() and (self._underway or draw)):
            return []
        view, shared = replace(view, count=free, wanted=free), self._shared
        cohort = shared.chooser.choose(view, draw)
        clients = cohort.clients.tolist()
        by_wall = shared.timeline.by_wall
        replies = ask(cohort)
        reports, problems = sort_replies(replies, clients, view.round, arrays, by_wall=by_wall)
        shared.trouble.note(view.round, problems)
        shared.fleet.failed(list(problems))
        actual, arrivals_s = self._work(reports, problems, arrays, view)
        predicted = cohort_predicted_s(view, cohort)
        return [Start(cohort, predicted, reports, actual, arrivals_s, problems)]

    def _work(
        self,
        reports: list[Report],
        problems: Mapping[int, Problem],
        arrays: ArrayRecord,
        view: View,
    ) -> tuple[Phases, np.ndarray]:
        """Put to work who starts now; return seconds by phase, and arrivals, of each report."""
        timeline, fleet, underway = self._shared.timeline, self._shared.fleet, self._underway
        spent = {report.client: report.spent for report in reports}
        unusable = {c: problem.spent for c, problem in problems.items() if problem.spent}
        clients, took = timeline.time(spent, view.round, view.model_bytes)
        arrivals_s, ends_s = timeline.arrivals_s(clients, took.total_s)
        wasted, wasted_took = timeline.time(unusable, view.round, view.model_bytes)
        _, wasted_ends_s = timeline.arrivals_s(wasted, wasted_took.total_s)
        fleet.busy(clients, ends_s)
        fleet.busy(wasted, wasted_ends_s)
        timeline.expect(reports, arrivals_s, took.total_s)
        for report, arrival_s, end_s in zip(
            reports, arrivals_s.tolist(), ends_s.tolist(), strict=True
        ):
            if np.isfinite(arrival_s):
                weight = 1.0 if self._equal_weights else report.weight
                underway.trains(report.client, arrival_s, _delta(report, arrays), weight)
            else:
                underway.wastes(report.client, end_s)
        for client, end_s in zip(wasted.tolist(), wasted_ends_s.tolist(), strict=True):
            underway.wastes(client, end_s)
        return took, arrivals_s

    def _record(
        self, view: View, start_s: float, starts: list[Start], ended: list[Ended]
    ) -> RoundRecord:
        """Return what happened in a round that ends now."""
        nobody = np.zeros(0, dtype=np.int64)
        one = combined(starts)
        fates = {
            report.client: "counted" if np.isfinite(arrival_s) else "left"
            for report, arrival_s in zip(one.reports, one.arrivals_s.tolist(), strict=True)
        }
        if view.round == self._rounds:
            late = self._underway.clients & {c for c, fate in fates.items() if fate == "counted"}
            fates |= dict.fromkeys(late, "late")

        def those(fate: str) -> np.ndarray:
            return np.array(sorted(c for c in fates if fates[c] == fate), dtype=np.int64)

        brought = [each.client for each in ended if each.staleness is not None]
        outcome = Updated(
            counted=np.unique(np.array(brought, dtype=np.int64)),
            late=those("late"),
            left=those("left"),
            unused=nobody,
            end_s=self._shared.timeline.now_s,
            fates=fates,
        )
        return RoundRecord(
            server_round=view.round,
            start_s=start_s,
            wanted=self._underway.buffer.size,
            cohort=one.cohort,
            predicted_s=one.predicted_s,
            reports=one.reports,
            actual=one.actual,
            arrivals_s=one.arrivals_s,
            outcome=outcome,
            problems=one.problems,
            arrived=[(e.client, e.staleness) for e in ended if e.staleness is not None],
        )


def check_buffered(arm: Arm, buffer: Buffer, clients: int) -> None:
    """Check that an arm can go without waiting for a cohort.

    Raises:
        InputError: it asks for what needs rounds that do, or more in an update than there are.
    """
    for key, value, usual in (
        ("staging", arm.staging, False),
        ("local_work", arm.local_work, "equal"),
        ("normalisation", arm.normalisation, "none"),
    ):
        if value != usual:
            raise InputError(
                f"{key} needs rounds that wait for their cohort, and those of aggregation "
                f"{arm.aggregation.name!r} do not; leave one of the two out"
            )
    if buffer.size > clients:
        raise InputError(
            f"the buffer is {buffer.size}, but each of the {clients} clients counts once in an "
            "update; make it smaller"
        )


def _delta(report: Report, sent: ArrayRecord) -> Arrays:
    """Return x_i - x_start of a reply, float64."""
    arrays = report.message.content.array_records[ARRAYS]
    return {
        name: unpack(arrays[name]).astype(np.float64) - unpack(array)
        for name, array in sent.items()
    }


def _in_vain(ended: list[Ended], slots: int) -> bool:
    """Whether the last that ended, as many as there are slots, have brought nothing."""
    last = ended[-slots:]
    return len(last) == slots and all(one.staleness is None for one in last)
