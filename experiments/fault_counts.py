"""Faults on purpose: how many struck, and what became of the participations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedio.runs import Row, Run


def fault_counts(runs: Iterable[Run]) -> dict[str, Row] | None:
    """Return by fault how many participations it struck, and how many had which outcome.

    One that two faults struck is counted with both. None where the experiments have no faults.
    """
    rows = [row for run in runs for row in run.clients if "faults" in row]
    if not rows:
        return None
    outcomes: dict[str, Counter[str]] = {}
    for row in rows:
        for name in row["faults"]:
            outcomes.setdefault(name, Counter())[row["outcome"]] += 1
    return {
        name: {"injected": counts.total(), "outcomes": dict(sorted(counts.items()))}
        for name, counts in sorted(outcomes.items())
    }
