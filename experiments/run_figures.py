"""The figures of one run, from its folder alone.

Time to target and final accuracy read the evaluations of rounds 1 and later (round 0 is the
untrained model) up to the horizon, if there is one; nothing is interpolated. Counts read every
participation of a run, late ones too, and those after the horizon: their reads and writes
happened. Bytes are those of staging too. Seconds are of the run's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from experiments.clock_error import is_behind
from experiments.statistics import Time
from fedio.runs import CLOCK_KEYS, HELD_EVALUATIONS, Row, Run

FINAL_EVALUATIONS = 5


def ended_s(run: Run) -> float:
    """Return the seconds after which nothing counts: those of the horizon, or of the run's end."""
    horizon_s = run.experiment.rounds.horizon_s
    return run.clock_s if horizon_s is None else min(horizon_s, run.clock_s)


def evaluations(run: Run) -> list[tuple[float, float]]:
    """Return (seconds, accuracy) of each evaluation after round 0 that counts, in order."""
    last_s = ended_s(run)
    return [
        (row["end_s"], row["accuracy"])
        for row in run.rounds
        if row["round"] > 0 and row["accuracy"] is not None and row["end_s"] <= last_s
    ]


def time_to_target(run: Run, target: float) -> Time:
    """Return the time of the first of 3 consecutive evaluations that reach `target`.

    Where there are none it is censored: at the end, or at the first of the evaluations that had
    reached it by then but were too few, since from there on it may have held.
    """
    held_s: list[float] = []
    for time_s, accuracy in evaluations(run):
        held_s = [*held_s, time_s] if accuracy >= target else []
        if len(held_s) == HELD_EVALUATIONS:
            return Time(held_s[0], reached=True)
    return Time(held_s[0] if held_s else ended_s(run), reached=False)


def time_to_target_s(run: Run, target: float) -> float | None:
    """Return the seconds to target, or none if it was not reached."""
    time = time_to_target(run, target)
    return time.seconds if time.reached else None


def final_accuracy(run: Run) -> float | None:
    """Return the mean accuracy of the last 5 evaluations, or of all if there are fewer."""
    return mean(accuracy for _, accuracy in evaluations(run)[-FINAL_EVALUATIONS:])


def accuracy_at_horizon(run: Run) -> float | None:
    """Return the final accuracy of a run that went on to its horizon, none of any other."""
    horizon_s = run.experiment.rounds.horizon_s
    return None if horizon_s is None or run.clock_s < horizon_s else final_accuracy(run)


def times_selected(run: Run) -> list[int]:
    """Return how often each client was selected, by partition."""
    counts = Counter(client for row in run.rounds for client in row["selected"])
    return [counts[client] for client in range(run.experiment.data.clients)]


def jain_index(counts: Sequence[int]) -> float | None:
    """Return (sum x)^2 / (N sum x^2): 1 is all alike, 1/N is one alone; none if nobody was.

    Source: Jain, Chiu, Hawe (1984), DEC TR-301.
    """
    squares = sum(count**2 for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else None


def stall_s(row: Row) -> float | None:
    """Return the seconds that a participation's training waited for data, none if it failed.

    Rows from before reading ran ahead do not say; there it was all that was neither compute nor
    network.
    """
    told_s: float | None = row.get("stall_s")
    if told_s is not None or row.get("duration_s") is None:
        return told_s
    rest_s: float = row["duration_s"] - row["download_s"] - row["compute_s"] - row["upload_s"]
    return rest_s


def run_figures(run: Run) -> dict[str, float | None]:
    """Return the figures of one run that are averaged over seeds."""
    selected = times_selected(run)
    steps = [row["steps"] for row in run.clients if row.get("steps") is not None]
    accuracies = run.summary["holdout"]["accuracy"]
    known = sorted(value for value in accuracies if value is not None)
    never = [value for value, times in zip(accuracies, selected, strict=True) if not times]
    return {
        CLOCK_KEYS[run.clock]: run.clock_s,
        "round_s": _ratio(run.clock_s, run.summary["rounds"]),
        "local_steps": mean(steps),
        "least_local_steps": min(steps, default=None),
        "most_local_steps": max(steps, default=None),
        **_shares_lost(run),
        "worst_decile_accuracy": mean(known[: -(-len(known) // 10)]),
        "never_selected_accuracy": mean(value for value in never if value is not None),
        **_storage_figures(run),
        "coverage": _ratio(sum(times > 0 for times in selected), len(selected)),
        "never_selected": selected.count(0),
        "jain_index": jain_index(selected),
    }


def _shares_lost(run: Run) -> dict[str, float | None]:
    """Return which shares of the participations did not count, or did not go as on a device."""
    outcomes = Counter(row["outcome"] for row in run.clients)
    lost = {f"{why}_share": _ratio(outcomes[why], outcomes.total()) for why in ("late", "left")}
    told = [row for row in run.clients if row.get("behind_s") is not None and not row.get("faults")]
    return lost | {"behind_share": _ratio(sum(map(is_behind, told)), len(told))}


def _storage_figures(run: Run) -> dict[str, float | None]:
    """Return what a run read, wrote and trained; what its rows do not tell is none.

    `byte_hit_ratio` is of what training asked for, so staging is not in it.
    """

    def total(key: str) -> float:
        return sum(row.get(key) or 0 for row in run.clients)

    def per_round(key: str) -> float | None:
        return _ratio(total(key), rounds) if tells(run, key) else None

    rounds = sum(row["round"] > 0 for row in run.rounds)
    staged = [one for row in run.rounds for one in row.get("staged") or ()]
    staging = {key: sum(one[key] for one in staged) for key in ("origin_bytes", "written_bytes")}
    stalled_s = sum(stall_s(row) or 0.0 for row in run.clients)
    done = sum(row.get("duration_s") is not None for row in run.clients)
    return {
        "hit_ratio": _ratio(total("hits"), total("requests")),
        "staged_ratio": _ratio(total("staged"), total("requests")),
        "substituted_ratio": _ratio(total("substituted"), total("requests")),
        "byte_hit_ratio": _ratio(total("hit_bytes"), total("hit_bytes") + total("origin_bytes")),
        "unique_samples_per_round": per_round("unique_samples"),
        "effective_samples_per_round": per_round("effective_samples"),
        "skipped_samples": total("skipped") if tells(run, "skipped") else None,
        "stall_share": _ratio(stalled_s, total("duration_s")),
        "participation_s": _ratio(total("duration_s"), done),
        "held_samples": _ratio(total("resident_samples"), done),
        "origin_bytes": total("origin_bytes") + staging["origin_bytes"],
        "written_bytes": total("written_bytes") + staging["written_bytes"],
        "staging_origin_bytes": staging["origin_bytes"],
        "staging_written_bytes": staging["written_bytes"],
    }


def tells(run: Run, key: str) -> bool:
    """Whether the participations of a run have that figure; those that failed have none."""
    return all(key in row for row in run.clients if row.get("requests") is not None)


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that there are, if there are any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
