"""The timeline: the run's clock, who is at work until when, and what has arrived by now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from fedio.clock import VirtualClock
from fedio.costs import Phases
from strategies.durations import Durations, Spent
from strategies.fleet import Fleet
from strategies.presence import Presence
from strategies.replies import Report
from strategies.round import Outcome, Terms, settle

# What the server hears from a client, and when: a row of `Timeline`'s table.
_ARRIVAL = (
    "arrival_s",
    "duration_s",
    "client",
    "server_round",
    "utility",
    "loss",
    "resident_samples",
    "resident_bytes",
)
_CLAIMED = ("utility", "loss", "resident_samples", "resident_bytes")


class Timeline:
    """Gives participations their durations, and the fleet table each report at its time.

    Durations come from the meters' true counts and the devices' true speeds, or from the devices'
    own clocks, arrivals also from when devices are there. A client is busy until its own end,
    counted or late, unless those that are late are told to cancel; what it claims is unknown to the
    server before it arrives.
    """

    def __init__(
        self,
        fleet: Fleet,
        durations: Durations,
        presence: Presence | None = None,
        late: Literal["finish", "cancel"] = "finish",
    ) -> None:
        """Start at 0 s.

        Args:
            fleet: the table to keep up to date.
            durations: what work takes.
            presence: when they are there; None is always.
            late: whether those that are late finish what they do.
        """
        self._fleet = fleet
        self._durations = durations
        self._presence = presence
        self._late = late
        self._clock = VirtualClock()
        self._on_the_way = np.zeros((0, len(_ARRIVAL)))
        self._look_who_is_there()

    @property
    def by_wall(self) -> bool:
        """Whether durations come from the devices' own clocks."""
        return self._durations.by_wall

    @property
    def now_s(self) -> float:
        """The time in seconds."""
        return self._clock.now_s

    def state(self) -> dict[str, np.ndarray]:
        """Return the time, and what is on the way."""
        return {"now_s": np.array(self.now_s), "on_the_way": self._on_the_way}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there; the fleet table has a state of its own."""
        self._clock = VirtualClock(float(state["now_s"]))
        self._on_the_way = state["on_the_way"]

    def wait_for_somebody(self) -> None:
        """When no known client is idle and there, move the clock to when the first will be."""
        known = np.flatnonzero(self._fleet.known & self._fleet.reachable)
        while len(known) and not self._fleet.feasible(self.now_s)[known].any():
            free_s = np.maximum(self._fleet.busy_until_s, self.now_s)
            if self._presence is not None:
                free_s = np.maximum(free_s, self._presence.availability.next_s(self.now_s))
            first_s = float(free_s[known].min())
            if np.isinf(first_s) or first_s <= self.now_s:  # never, or beyond what a float tells
                return
            self.move_to(first_s)

    def play(
        self,
        reports: list[Report],
        unusable: Mapping[int, Spent],
        model_bytes: float,
        server_round: int,
        terms: Terms,
    ) -> tuple[Phases, np.ndarray, Outcome]:
        """Let a round that starts now run to its end.

        Args:
            reports: the valid replies of its participations.
            unusable: what clients spent that did their work and sent what cannot be used.
            model_bytes: what each of them downloaded, and uploaded.
            server_round: its number.
            terms: how many of them count, and until when.

        Returns:
            Seconds by phase and arrival (on the clock; infinite where it never arrives) of each
            report, and who counts.
        """
        spent = {report.client: report.spent for report in reports}
        clients, took = self.time(spent, server_round, model_bytes)
        wasted, wasted_took = self.time(unusable, server_round, model_bytes)
        arrivals_s, ends_s = self.arrivals_s(clients, took.total_s)
        _, wasted_ends_s = self.arrivals_s(wasted, wasted_took.total_s)
        nothing_s = np.concatenate([wasted_ends_s, ends_s[np.isinf(arrivals_s)]])
        last_s = float(nothing_s.max(initial=self.now_s))
        outcome = settle(clients, arrivals_s, terms, self.now_s, last_s)
        if self._late == "cancel":
            cancelled = np.isin(clients, outcome.late)
            arrivals_s = np.where(cancelled, np.inf, arrivals_s)
            ends_s = np.where(cancelled, outcome.end_s, ends_s)
        self._fleet.busy(clients, ends_s)
        self._fleet.busy(wasted, wasted_ends_s)
        self.expect(reports, arrivals_s, took.total_s)
        self.move_to(outcome.end_s)
        return took, arrivals_s, outcome

    def time(
        self, spent: Mapping[int, Spent], server_round: int, model_bytes: float
    ) -> tuple[np.ndarray, Phases]:
        """Return the clients that worked in a round, and what the work of each takes."""
        clients = np.array(list(spent), dtype=np.int64)
        return clients, self._durations.on_clock(spent, server_round, model_bytes)

    def arrivals_s(
        self, clients: np.ndarray, durations_s: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return when work that starts now arrives, if ever, and until when it occupies clients.

        Args:
            clients: int64 [k].
            durations_s: what the work takes, float64 [k].
        """
        if self._presence is None:
            return self.now_s + durations_s, self.now_s + durations_s
        availability, resumes = self._presence.availability, self._presence.on_leave == "resume"
        arrivals_s = availability.finish_s(clients, self.now_s, durations_s, resumes=resumes)
        leaves_s = availability.leaves_s(clients, self.now_s)
        return arrivals_s, np.where(np.isinf(arrivals_s), leaves_s, arrivals_s)

    def expect(self, reports: list[Report], arrivals_s: np.ndarray, worked_s: np.ndarray) -> None:
        """Have reports on their way; those that never arrive are not heard of.

        Args:
            reports: what is sent now.
            arrivals_s: when each arrives, float64 [k].
            worked_s: what the work takes, float64 [k]; less than it lasted where it was paused.
        """
        is_direct = arrivals_s == self.now_s + worked_s
        durations_s = np.where(is_direct, worked_s, arrivals_s - self.now_s)
        rows = [
            (
                arrival_s,
                duration_s,
                report.client,
                report.claims.server_round,
                report.claims.utility,
                report.train_loss,
                report.claims.resident_samples,
                report.claims.resident_bytes,
            )
            for report, arrival_s, duration_s in zip(
                reports, arrivals_s.tolist(), durations_s.tolist(), strict=True
            )
            if np.isfinite(arrival_s)
        ]
        sent = np.array(rows, dtype=np.float64).reshape(-1, len(_ARRIVAL))
        self._on_the_way = np.concatenate([self._on_the_way, sent])

    def move_to(self, time_s: float) -> None:
        """Move the clock on, and write every report that has arrived by then into the table."""
        self._clock.advance_to(time_s)
        arrived = self._on_the_way[:, 0] <= time_s
        # One after the other: a client may have two reports on the way, and the later one counts.
        for row in self._on_the_way[arrived]:
            told = dict(zip(_ARRIVAL, row.tolist(), strict=True))
            client, server_round = [int(told["client"])], int(told["server_round"])
            self._fleet.observed(client, server_round, [told["duration_s"]])
            claims = {name: [told[name]] for name in _CLAIMED}
            self._fleet.claimed(client, server_round, **claims)
        self._on_the_way = self._on_the_way[~arrived]
        self._look_who_is_there()

    def _look_who_is_there(self) -> None:
        """Write into the table who is there now."""
        if self._presence is not None:
            self._fleet.available[:] = self._presence.availability.at(self.now_s)
            self._fleet.available_later[:] = self._presence.forecast(self.now_s)
