"""The figures of a comparison, from run folders alone: one row per arm.

Seconds are of the runs' clock, which they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import geometric_mean, stdev
from typing import Any

from experiments.clock_error import clock_error
from experiments.fault_counts import fault_counts
from experiments.run_figures import (
    accuracy_at_horizon,
    evaluations,
    final_accuracy,
    mean,
    run_figures,
    tells,
    time_to_target,
)
from experiments.statistics import AccuracyDifference, accuracy_difference, speedup
from experiments.units import CLOCKS
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.loading import differing_keys
from fedio.plugins import unknown
from fedio.runs import Row, Run

# Keys that tell the runs of one comparison apart, not worth naming where more differs.
_ARM_KEYS = ("arm", "seed", "engine.", "compare.", "description")


def arm_name(run: Run) -> str:
    """Return the name of the arm that a run ran."""
    return run.experiment.arm or next(iter(run.experiment.arms))


def group_by_arm(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each arm: arms in the order of the experiment, runs by seed.

    Raises:
        InputError: there are none, an arm has two runs of one seed, or the runs are of different
            experiments, clocks or meanings of an arm, which cannot stand in one table.
    """
    arms: dict[str, list[Run]] = {}
    first: Run | None = None
    for run in runs:
        first = first or run
        if first.experiment.cell != run.experiment.cell:
            raise InputError(
                f"{first.path} and {run.path} are runs of a map's cells: make a page of them with "
                "fedio report --markdown FILE.md, or name one cell"
            )
        if first.experiment.setting != run.experiment.setting:
            differing = differing_keys(first.experiment, run.experiment)
            keys = [key for key in differing if not key.startswith(_ARM_KEYS)]
            raise InputError(
                f"{first.path} and {run.path} are runs of different experiments "
                f"(they differ in {', '.join(keys[:4])}); report them apart"
            )
        if _timing(first) != _timing(run):
            raise InputError(
                f"{first.path} has {_timing(first)} and {run.path} {_timing(run)}; "
                "they do not compare: report them apart"
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


def _timing(run: Run) -> str:
    """Return what a run's seconds are, in words."""
    pace = f" at pace {run.experiment.emulation.pace!r}" if run.clock == "wall" else ""
    return CLOCKS[run.clock] + pace


def arm_figures(runs: Sequence[Run], target: float, reference: Sequence[Run]) -> Row:
    """Return the figures of one arm: over seeds, times are geometric means, the rest means.

    A mean leaves out the seeds that have no value (a client that was never selected may not
    exist); a time is null unless every seed reached the target.

    Args:
        runs: the arm's runs, one a seed.
        target: accuracy to reach.
        reference: the runs of the arm that speed-ups refer to.
    """
    times = [time_to_target(run, target) for run in runs]
    reached_s = [time.seconds for time in times if time.reached]
    finals = [value for run in runs if (value := final_accuracy(run)) is not None]
    outcomes = Counter(row["outcome"] for run in runs for row in run.clients)
    per_run = [run_figures(run) for run in runs]
    arm = runs[0].experiment.chosen
    return {
        "name": arm_name(runs[0]),
        "kind": arm.kind,
        # Where stalls are not told, nothing was read ahead yet, whatever the arm says now.
        "prefetch": arm.prefetch and all(tells(run, "stall_s") for run in runs),
        "form": arm.form,
        "staging": arm.staging,
        "cache": arm.cache,
        "aggregation": arm.aggregation.name,
        "normalisation": arm.normalisation,
        "local_work": arm.local_work,
        "seeds": sorted(run.experiment.seed for run in runs),
        "time_to_target_s": geometric_mean(reached_s) if len(reached_s) == len(times) else None,
        "reached": len(reached_s),
        "censored": len(times) - len(reached_s),
        **_against(reference, runs, target),
        "fewest_evaluations": min(len(evaluations(run)) for run in runs),
        "final_accuracy": mean(finals),
        "final_accuracy_spread": stdev(finals) if len(finals) > 1 else None,
        **{key: mean(figures[key] for figures in per_run) for key in per_run[0]},
        **{
            key: outcomes[key]
            for key in ("counted", "late", "left", "unused", "failed", "rejected")
        },
    }


def _against(reference: Sequence[Run], runs: Sequence[Run], target: float) -> Row:
    """Return the figures of an arm that refer to another, paired by seed."""
    sides = (runs, reference)
    times = [{run.experiment.seed: time_to_target(run, target) for run in side} for side in sides]
    finals = [{run.experiment.seed: accuracy_at_horizon(run) for run in side} for side in sides]
    faster = speedup(*times)
    closer = AccuracyDifference() if runs is reference else accuracy_difference(*finals)
    return {
        "speedup": faster.ratio,
        "speedup_low": faster.low,
        "speedup_high": faster.high,
        "speedup_bound": faster.bound,
        "speedup_pairs": faster.pairs,
        "accuracy_difference": closer.mean,
        "accuracy_difference_low": closer.low,
        "accuracy_difference_high": closer.high,
        "equal_accuracy": closer.equal,
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
    error, faults = clock_error(everyone), fault_counts(everyone)
    return {
        "schema": 1,
        "clock": first.clock,
        "preset": experiment.name,
        "reference": reference,
        "target_accuracy": target,
        "seeds": sorted({run.experiment.seed for run in everyone}),
        "io_to_compute": mean(run.summary["io_to_compute"] for run in arms[reference]),
        "command": _distinct(run.env["command"] for run in everyone),
        "commit": _distinct(run.env["commit"] for run in everyone),
        "instruction_set": _distinct(run.env["instruction_set"] for run in everyone),
        "versions": {
            name: _distinct(run.env["versions"].get(name) for run in everyone)
            for name in first.env["versions"]
        },
        "setting": setting(experiment),
        "arms": [arm_figures(same, target, arms[reference]) for same in arms.values()],
        **({} if error is None else {"clock_error": error}),
        **({} if faults is None else {"faults": faults}),
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
        "horizon_s": experiment.rounds.horizon_s,
        "stop_accuracy": experiment.rounds.stop_accuracy,
        "cohort": experiment.rounds.cohort,
        "over_commitment": experiment.rounds.over_commitment,
        "deadline_s": experiment.rounds.deadline_s,
        "late": experiment.rounds.late,
        "availability": experiment.availability.model_dump(mode="json"),
        "learning_model": experiment.model.name,
        "precision": experiment.training.precision,
        "timing_model": experiment.timing.model,
        "nominal": nominal.model_dump(mode="json") if nominal else None,
        "decode_bytes_per_s": experiment.data.decode_bytes_per_s,
    }


def _distinct(values: Iterable[Any]) -> str | None:
    """Return the one value that all runs share, or the several that they have."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value is not None)) or None
