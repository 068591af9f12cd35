"""The timeline: the virtual clock, who is at work until when, and what has arrived by now."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedio.clock import VirtualClock
from fedio.costs import Phases, phases
from fedio.profiles import Speeds
from fedio.protocol import Meter
from strategies.fleet import Fleet
from strategies.round import Outcome, Report, settle, work_of


class Timeline:
    """Gives participations their durations, and the fleet table each report at its time.

    Durations come from the meters' true counts and the devices' true speeds. A client is busy
    until its own end, counted or late; what it claims is unknown to the server before that.
    """

    def __init__(self, fleet: Fleet, speeds: Speeds) -> None:
        """Start at 0 s.

        Args:
            fleet: the table to keep up to date.
            speeds: the devices' true figures.
        """
        self._fleet = fleet
        self._speeds = speeds
        self._clock = VirtualClock()
        self._on_the_way: list[tuple[float, float, Report]] = []

    @property
    def now_s(self) -> float:
        """The virtual time in seconds."""
        return self._clock.now_s

    def wait_for_somebody(self) -> None:
        """When all known clients are busy, move the clock to the first that will be idle."""
        ends_s = self._fleet.busy_until_s[self._fleet.samples > 0]
        if len(ends_s) and (ends_s > self.now_s).all():
            self._move_to(float(ends_s.min()))

    def play(
        self,
        reports: list[Report],
        unusable: Mapping[int, Meter],
        model_bytes: float,
        wanted: int,
        deadline_s: float | None,
    ) -> tuple[Phases, np.ndarray, Outcome]:
        """Let a round that starts now run to its end.

        Args:
            reports: the valid replies of its participations.
            unusable: the meters of clients that did their work and sent what cannot be used.
            model_bytes: what each of them downloaded, and uploaded.
            wanted: how many of them count.
            deadline_s: seconds the round may last.

        Returns:
            Seconds by phase and arrival (virtual seconds) of each report, and who counts.
        """
        meters = {report.client: report.meter for report in reports}
        clients, took = self._time(meters, model_bytes)
        wasted, wasted_took = self._time(unusable, model_bytes)
        durations_s = took.total_s
        arrivals_s, wasted_s = self.now_s + durations_s, self.now_s + wasted_took.total_s
        last_s = float(wasted_s.max(initial=self.now_s))
        outcome = settle(clients, arrivals_s, wanted, self.now_s, deadline_s, last_s)
        self._fleet.busy(clients, arrivals_s)
        self._fleet.busy(wasted, wasted_s)
        self._on_the_way += zip(arrivals_s.tolist(), durations_s.tolist(), reports, strict=True)
        self._move_to(outcome.end_s)
        return took, arrivals_s, outcome

    def _time(self, meters: Mapping[int, Meter], model_bytes: float) -> tuple[np.ndarray, Phases]:
        """Return the clients of meters, and what the work of each takes."""
        clients = np.array(list(meters), dtype=np.int64)
        work = work_of(list(meters.values()), model_bytes)
        return clients, phases(work, self._speeds.take(clients))

    def _move_to(self, time_s: float) -> None:
        """Move the clock, and write every report that has arrived by then into the table."""
        self._clock.advance_to(time_s)
        here = [entry for entry in self._on_the_way if entry[0] <= time_s]
        self._on_the_way = [entry for entry in self._on_the_way if entry[0] > time_s]
        for _, duration_s, report in here:
            claims = report.claims
            self._fleet.observed([report.client], claims.server_round, [duration_s])
            self._fleet.claimed(
                [report.client],
                claims.server_round,
                utility=[claims.utility],
                loss=[report.train_loss],
                resident_samples=[claims.resident_samples],
                resident_bytes=[claims.resident_bytes],
            )
