"""Clients that start in the course of a round, moment by moment, put together as one cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from fedio.costs import Phases
from strategies.replies import Problem, Report
from strategies.selector import Cohort, Reasons


@dataclass(frozen=True, slots=True)
class Start:
    """Clients that start at one moment; aligned as in `RoundRecord`."""

    cohort: Cohort
    predicted_s: np.ndarray
    reports: list[Report]
    actual: Phases
    arrivals_s: np.ndarray
    problems: Mapping[int, Problem]


_NONE, _NO_CLIENTS = np.zeros(0), np.zeros(0, dtype=np.int64)
NOBODY = Start(
    cohort=Cohort(_NO_CLIENTS, _NO_CLIENTS, Reasons([], {}, {})),
    predicted_s=_NONE,
    reports=[],
    actual=Phases(**{phase.name: _NONE for phase in fields(Phases)}),
    arrivals_s=_NONE,
    problems={},
)


def combined(starts: list[Start]) -> Start:
    """Return the starts of a round as if all had been at once, each client in one of them.

    Why others were not chosen is what it was at the last of them.
    """
    starts = [NOBODY, *starts]
    clients = np.concatenate([start.cohort.clients for start in starts])
    order = np.argsort(clients)
    steps = np.concatenate([start.cohort.local_steps for start in starts])
    reasons = [start.cohort.reasons for start in starts]
    why = [reason for one in reasons for reason in one.why]
    details = {
        name: np.concatenate([_column(one, name) for one in reasons])[order]
        for name in sorted({name for one in reasons for name in one.details})
    }
    cohort = Cohort(
        clients[order],
        steps[order],
        Reasons([why[i] for i in order], details, reasons[-1].rest),
    )
    actual = {
        phase.name: np.concatenate([getattr(start.actual, phase.name) for start in starts])
        for phase in fields(Phases)
    }
    return Start(
        cohort=cohort,
        predicted_s=np.concatenate([start.predicted_s for start in starts])[order],
        reports=[report for start in starts for report in start.reports],
        actual=Phases(**actual),
        arrivals_s=np.concatenate([start.arrivals_s for start in starts]),
        problems={c: problem for start in starts for c, problem in start.problems.items()},
    )


def _column(reasons: Reasons, name: str) -> np.ndarray:
    """Return a figure of those chosen, unknown where a choice did not have it."""
    unknown = np.full(len(reasons.why), np.nan)
    return reasons.details.get(name, unknown)
