"""Reports on their way: the server knows of each only when it has arrived on the clock."""

from __future__ import annotations

import numpy as np

from strategies.fleet import Fleet
from strategies.round import Report


class Arrivals:
    """Holds reports back until their time, then writes them into the fleet table."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: list[tuple[float, float, Report]] = []

    def expect(self, reports: list[Report], start_s: float, durations_s: np.ndarray) -> None:
        """Take reports of participations that began at `start_s`; clients are busy until then."""
        arrivals_s = start_s + durations_s
        self._fleet.busy([report.client for report in reports], arrivals_s)
        self._waiting += zip(arrivals_s.tolist(), durations_s.tolist(), reports, strict=True)

    def deliver(self, now_s: float) -> None:
        """Let the server know of every report that has arrived by `now_s`."""
        here = [entry for entry in self._waiting if entry[0] <= now_s]
        self._waiting = [entry for entry in self._waiting if entry[0] > now_s]
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
