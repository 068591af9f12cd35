"""The figures of a comparison, from run folders alone: one row per arm.

Time to target and final accuracy read the evaluations of rounds 1 and later (round 0 is the
untrained model); nothing is interpolated. Counts read every participation of a run, late ones
too: their reads and writes happened. All seconds are virtual.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean, stdev
from typing import Any

from scipy.special import stdtrit

from fedio.config import Experiment
from fedio.errors import InputError
from fedio.loading import differing_keys
from fedio.plugins import unknown
from fedio.runs import Row, Run

HELD_EVALUATIONS = 3
FINAL_EVALUATIONS = 5
CONFIDENCE = 0.95

# Keys that tell the runs of one comparison apart, not worth naming where more differs.
_ARM_KEYS = ("arm", "seed", "engine.", "compare.", "description")


def arm_name(run: Run) -> str:
    """Return the name of the arm that a run ran."""
    return run.experiment.arm or next(iter(run.experiment.arms))


def group_by_arm(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each arm: arms in the order of the experiment, runs by seed.

    Raises:
        InputError: there are none, an arm has two runs of one seed, or the runs are of different
            experiments or meanings of an arm, which cannot stand in one table.
    """
    arms: dict[str, list[Run]] = {}
    first: Run | None = None
    for run in runs:
        first = first or run
        if first.experiment.setting != run.experiment.setting:
            differing = differing_keys(first.experiment, run.experiment)
            keys = [key for key in differing if not key.startswith(_ARM_KEYS)]
            raise InputError(
                f"{first.path} and {run.path} are runs of different experiments "
                f"(they differ in {', '.join(keys[:4])}); report them apart"
            )
        for other in (same := arms.setdefault(arm_name(run), [])):
            if other.experiment.seed == run.experiment.seed:
                raise InputError(
                    f"{other.path} and {run.path} both hold {arm_name(run)} with seed "
                    f"{run.experiment.seed}; name one of them"
                )
            if other.experiment.chosen != run.experiment.chosen:
                raise InputError(
                    f"{other.path} and {run.path} mean different things by arm "
                    f"{arm_name(run)}; report them apart"
                )
        same.append(run)
    if first is None:
        raise InputError("no runs: name at least one folder that fedio run or compare wrote")
    order = (*first.experiment.compare.arms, *first.experiment.arms, *arms)
    return {
        name: sorted(arms[name], key=lambda run: run.experiment.seed)
        for name in dict.fromkeys(order)
        if name in arms
    }


def evaluations(run: Run) -> list[tuple[float, float]]:
    """Return (virtual seconds, accuracy) of each evaluation after round 0, in order."""
    return [
        (row["end_s"], row["accuracy"])
        for row in run.rounds
        if row["round"] > 0 and row["accuracy"] is not None
    ]


def time_to_target_s(run: Run, target: float) -> float | None:
    """Return the seconds to the first of 3 consecutive evaluations that reach `target`, or none."""
    held = evaluations(run)
    for first in range(len(held) - HELD_EVALUATIONS + 1):
        window = held[first : first + HELD_EVALUATIONS]
        if all(accuracy >= target for _, accuracy in window):
            return window[0][0]
    return None


def final_accuracy(run: Run) -> float | None:
    """Return the mean accuracy of the last 5 evaluations, or of all if there are fewer."""
    return _mean(accuracy for _, accuracy in evaluations(run)[-FINAL_EVALUATIONS:])


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


def speedup(
    arm_s: Mapping[int, float | None], reference_s: Mapping[int, float | None]
) -> tuple[float | None, float | None, float | None]:
    """Return the speed-up over the reference and its 95 % interval, paired by seed.

    The geometric mean of reference / arm over the seeds that both have, with a two-sided t
    interval on the logarithms.

    Args:
        arm_s: seconds to target by seed, none where it was not reached.
        reference_s: the same of the reference arm.

    Returns:
        speed-up, low, high: none unless every pair reached; no interval for one seed.
    """
    pairs = [(reference_s[seed], arm_s[seed]) for seed in arm_s if seed in reference_s]
    logs = [math.log(one / other) for one, other in pairs if one and other]
    if not logs or len(logs) < len(pairs):
        return None, None, None
    middle = fmean(logs)
    if len(logs) == 1:
        return math.exp(middle), None, None
    quantile = float(stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2))
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def arm_figures(runs: Sequence[Run], target: float, reference: Sequence[Run]) -> Row:
    """Return the figures of one arm: over seeds, times are geometric means, the rest means.

    A mean leaves out the seeds that have no value (a client that was never selected may not
    exist); a time is null unless every seed reached the target.

    Args:
        runs: the arm's runs, one a seed.
        target: accuracy to reach.
        reference: the runs of the arm that speed-ups refer to.
    """
    times = {run.experiment.seed: time_to_target_s(run, target) for run in runs}
    reached = [time for time in times.values() if time]
    ratio, low, high = speedup(
        times, {run.experiment.seed: time_to_target_s(run, target) for run in reference}
    )
    finals = [value for run in runs if (value := final_accuracy(run)) is not None]
    outcomes = Counter(row["outcome"] for run in runs for row in run.clients)
    per_run = [_run_figures(run) for run in runs]
    return {
        "name": arm_name(runs[0]),
        "kind": runs[0].experiment.chosen.kind,
        "seeds": sorted(times),
        "time_to_target_s": geometric_mean(reached) if len(reached) == len(times) else None,
        "speedup": ratio,
        "speedup_low": low,
        "speedup_high": high,
        "final_accuracy": _mean(finals),
        "final_accuracy_spread": stdev(finals) if len(finals) > 1 else None,
        **{key: _mean(figures[key] for figures in per_run) for key in per_run[0]},
        **{key: outcomes[key] for key in ("counted", "late", "failed", "rejected")},
    }


def _run_figures(run: Run) -> dict[str, float | None]:
    """Return the figures of one run that are averaged over seeds."""

    def total(key: str) -> int:
        return sum(row.get(key) or 0 for row in run.clients)

    selected = times_selected(run)
    accuracies = run.summary["holdout"]["accuracy"]
    known = sorted(value for value in accuracies if value is not None)
    never = [value for value, times in zip(accuracies, selected, strict=True) if not times]
    return {
        "virtual_s": run.summary["virtual_s"],
        "worst_decile_accuracy": _mean(known[: -(-len(known) // 10)]),
        "never_selected_accuracy": _mean(value for value in never if value is not None),
        "hit_ratio": _ratio(total("hits"), total("requests")),
        "substituted_ratio": _ratio(total("substituted"), total("requests")),
        "byte_hit_ratio": _ratio(total("hit_bytes"), total("hit_bytes") + total("origin_bytes")),
        "unique_samples_per_round": _ratio(
            total("unique_samples"), sum(row["round"] > 0 for row in run.rounds)
        ),
        "coverage": _ratio(sum(times > 0 for times in selected), len(selected)),
        "origin_bytes": total("origin_bytes"),
        "written_bytes": total("written_bytes"),
        "jain_index": jain_index(selected),
    }


def compare_json(
    runs: Iterable[Run],
    target: float | None = None,
    reference: str | None = None,
) -> Row:
    """Return the comparison of the arms in `runs`, as `fedio compare --json` writes it.

    What is not given is taken from the first run's experiment; where that names no reference, it
    is the first arm.

    Raises:
        InputError: the runs do not belong in one table, or the reference is not among them.
    """
    arms = group_by_arm(runs)
    first = next(iter(arms.values()))[0]
    experiment = first.experiment
    if reference is None:
        wanted = experiment.compare.reference
        reference = wanted if wanted in arms else next(iter(arms))
    if reference not in arms:
        raise InputError(unknown("arm", reference, list(arms)))
    if target is None:
        target = experiment.compare.target_accuracy
    everyone = [run for same in arms.values() for run in same]
    return {
        "schema": 1,
        "preset": experiment.name,
        "reference": reference,
        "target_accuracy": target,
        "seeds": sorted({run.experiment.seed for run in everyone}),
        "io_to_compute": _mean(run.summary["io_to_compute"] for run in arms[reference]),
        "command": _distinct(run.env["command"] for run in everyone),
        "commit": _distinct(run.env["commit"] for run in everyone),
        "instruction_set": _distinct(run.env["instruction_set"] for run in everyone),
        "versions": {
            name: _distinct(run.env["versions"].get(name) for run in everyone)
            for name in first.env["versions"]
        },
        "setting": setting(experiment),
        "arms": [arm_figures(same, target, arms[reference]) for same in arms.values()],
    }


def setting(experiment: Experiment) -> Row:
    """Return what a reader must know of an experiment to judge its figures."""
    nominal = experiment.data.nominal
    return {
        "dataset": experiment.data.dataset.name,
        "partition": experiment.data.partition.model_dump(mode="json", exclude_none=True),
        "fleet": experiment.fleet.model_dump(mode="json"),
        "cache": experiment.cache.model_dump(mode="json", exclude_none=True),
        "local_steps": experiment.training.local_steps,
        "batch_size": experiment.training.batch_size,
        "clients": experiment.data.clients,
        "rounds": experiment.rounds.rounds,
        "cohort": experiment.rounds.cohort,
        "over_commitment": experiment.rounds.over_commitment,
        "learning_model": experiment.model.name,
        "timing_model": experiment.timing.model,
        "nominal": nominal.model_dump(mode="json") if nominal else None,
        "decode_bytes_per_s": experiment.data.decode_bytes_per_s,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _distinct(values: Iterable[Any]) -> str | None:
    """Return the one value that all runs share, or the several that they have."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value is not None)) or None
