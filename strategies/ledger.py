"""The ledger: it writes down what happened, a line per participation and a line per round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from fedio.config import Experiment
from fedio.costs import Phases
from fedio.faults import NONE as NO_FAULTS
from fedio.faults import struck
from fedio.protocol import ARRAYS
from fedio.runs import Row, RunFolder
from strategies.durations import Durations, Spent
from strategies.replies import Problem, Report
from strategies.round import Outcome
from strategies.selector import Cohort
from strategies.shared import size_bytes

PHASES = tuple(field.name for field in fields(Phases))


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """All there is to know of a round.

    `reports`, `actual` and `arrivals_s` are aligned, one entry per valid reply; `predicted_s` is
    aligned to the cohort's clients. `staged` has a row per client that staged in it for the next
    one; None where the arm does not stage. In a round that does not wait for its cohort `arrived`
    says who brought what the server updated its model with, and how stale that was.
    """

    server_round: int
    start_s: float
    wanted: int
    cohort: Cohort
    predicted_s: np.ndarray
    reports: list[Report]
    actual: Phases
    arrivals_s: np.ndarray
    outcome: Outcome
    problems: Mapping[int, Problem]
    staged: list[Row] | None = None
    arrived: list[tuple[int, int]] | None = None

    @property
    def spent(self) -> dict[int, Spent]:
        """What the clients with a valid reply spent."""
        return {report.client: report.spent for report in self.reports}


class Ledger:
    """Writes a run's lines, and keeps the totals that its summary needs."""

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        devices: list[str],
        durations: Durations,
    ) -> None:
        """Start a run.

        Args:
            folder: where it is written.
            experiment: what is run; what goes wrong on purpose is written down too.
            devices: the name of each client's device profile.
            durations: where devices tell their own time, the virtual clock's is put beside it.
        """
        self._folder = folder
        self._experiment = experiment
        self._devices = devices
        self._durations = durations
        self._trained: set[int] = set()
        self._demand_hits = self._evictions = 0
        self._accuracies: list[float] = []

    def state(self) -> dict[str, np.ndarray]:
        """Return the totals so far."""
        return {
            "trained": np.array(sorted(self._trained), dtype=np.int64),
            "totals": np.array([self._demand_hits, self._evictions]),
            "accuracies": np.array(self._accuracies),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from these totals."""
        self._trained = set(state["trained"].tolist())
        self._demand_hits, self._evictions = state["totals"].tolist()
        self._accuracies = state["accuracies"].tolist()

    def initial(self, accuracy: float | None, loss: float | None) -> None:
        """Write the line of round 0: the model before any training."""
        nobody: list[int] = []
        row: Row = {"round": 0, "start_s": 0.0, "end_s": 0.0, "wanted": 0, "selected": nobody}
        row |= dict.fromkeys(("counted", "late", "left", "unused", "failed", "rejected"), nobody)
        row |= {"not_selected": {}, "accuracy": accuracy, "loss": loss}
        self._folder.append_round(row)

    def record(
        self,
        done: RoundRecord,
        accuracy: float | None,
        loss: float | None,
        replied_s: Mapping[int, float],
    ) -> None:
        """Write the lines of a round and of its participations.

        Args:
            done: the round.
            accuracy: on the central test set, if it was evaluated.
            loss: likewise.
            replied_s: wall-clock seconds until the reply of each client came.
        """
        by_client = {report.client: i for i, report in enumerate(done.reports)}
        beside = self._beside(done, replied_s)
        self._folder.append_clients(
            self._participation(done, position, by_client.get(int(client)))
            | beside.get(int(client), {})
            for position, client in enumerate(done.cohort.clients)
        )
        of = {
            kind: sorted(c for c, p in done.problems.items() if p.outcome == kind)
            for kind in ("late", "failed", "rejected")
        }
        row: Row = {
            "round": done.server_round,
            "start_s": done.start_s,
            "end_s": done.outcome.end_s,
            "wanted": done.wanted,
            "selected": done.cohort.clients,
            "counted": done.outcome.counted,
            "left": done.outcome.left,
            "unused": done.outcome.unused,
            **of,
            "late": sorted([*done.outcome.late.tolist(), *of["late"]]),
            "not_selected": done.cohort.reasons.rest,
            "accuracy": accuracy,
            "loss": loss,
        }
        if done.staged is not None:
            row["staged"] = done.staged
        if done.arrived is not None:
            row["arrived"] = [{"client": c, "staleness": s} for c, s in done.arrived]
        self._folder.append_round(row)
        self._trained |= set(done.outcome.counted.tolist())
        self._demand_hits += sum(report.meter.hits for report in done.reports)
        self._evictions += sum(report.meter.evicted_samples for report in done.reports)
        horizon_s = self._experiment.rounds.horizon_s
        if accuracy is not None and (horizon_s is None or done.outcome.end_s <= horizon_s):
            self._accuracies.append(accuracy)

    def finish(self, summary: Row) -> None:
        """Write the summary with the run's totals: the run is complete."""
        last = self._accuracies[-5:]
        totals = {
            "clients_trained": len(self._trained),
            "demand_hits": self._demand_hits,
            "evictions": self._evictions,
            "final_accuracy": float(np.mean(last)) if last else None,
        }
        self._folder.finish(summary | totals)

    def _beside(self, done: RoundRecord, replied_s: Mapping[int, float]) -> dict[int, Row]:
        """Return what is told of clients only where there are faults, or devices tell the time."""
        rows: dict[int, Row] = {int(client): {} for client in done.cohort.clients}
        if self._experiment.faults != NO_FAULTS:
            for client, row in rows.items():
                row["faults"] = struck(self._experiment, client, done.server_round).names
        if not (self._durations.by_wall and done.reports):
            return rows
        model_bytes = size_bytes(done.reports[0].message.content.array_records[ARRAYS])
        virtual = self._durations.virtual(done.spent, done.server_round, model_bytes)
        for i, report in enumerate(done.reports):
            row = rows[report.client]
            row |= {f"virtual_{name}": getattr(virtual, name)[i] for name in PHASES}
            row["virtual_duration_s"] = virtual.total_s[i]
            row["behind_s"] = None if report.wall is None else report.wall.behind_s
            row["flower_s"] = replied_s[report.client] - done.actual.total_s[i]
        return rows

    def _participation(self, done: RoundRecord, position: int, reply: int | None) -> Row:
        """Return the line of one client of the cohort."""
        client = int(done.cohort.clients[position])
        reasons = done.cohort.reasons
        row: Row = {
            "round": done.server_round,
            "client": client,
            "device": self._devices[client],
            "why": reasons.why[position],
            "details": {name: values[position] for name, values in reasons.details.items()},
            "predicted_s": done.predicted_s[position],
        }
        if reply is None:
            problem = done.problems[client]
            unknown = dict.fromkeys(("duration_s", "arrival_s", *PHASES))
            return row | {"outcome": problem.outcome, "problem": problem.reason} | unknown
        report = done.reports[reply]
        seconds = {name: getattr(done.actual, name)[reply] for name in PHASES}
        return (
            row
            | report.meter.totals
            | seconds
            | {
                "outcome": done.outcome.of(client),
                "problem": None,
                "duration_s": done.actual.total_s[reply],
                "arrival_s": done.arrivals_s[reply],
                "samples": report.weight,
                "train_loss": report.train_loss,
                "utility": report.claims.utility,
                "resident_samples": report.claims.resident_samples,
                "resident_bytes": report.claims.resident_bytes,
            }
        )
