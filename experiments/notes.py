"""The lines beside the tables of a comparison, without which its figures cannot be judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from experiments.columns import FORMS, READING, STAGING
from experiments.run_figures import FINAL_EVALUATIONS
from experiments.setting import setting_clauses
from experiments.statistics import FEWEST_CENSORED_PAIRS
from experiments.units import percent, size
from fedio.runs import Row

SECONDS = {
    "virtual": "All seconds are virtual.",
    "wall": "All seconds are device time: what the devices took, without Flower's own overhead.",
}
CENSORING = (
    "A run that did not reach the target counts with the earliest time that may still turn out to "
    "be its own: where the streak at the target begins that its end cut off, or else its end (the "
    "horizon, if there is one). A speed-up is then at most (<=) what is shown if that is the arm's "
    "run, at least (>=) if it is the reference's, and unknown (mixed) if seeds differ in that; its "
    f"interval has one end only, and from {FEWEST_CENSORED_PAIRS} seeds on. Seeds with which "
    "neither reached the target are left out; then what is shown is of the others alone, without "
    "an interval. A bound that is at least so much limits nothing."
)
LABELS = {"Cache": "Cache: ", "Fleet": "Fleet: ", "I/O : compute": "I/O : compute "}
"""How the clauses begin that do not say themselves what they are about."""


def notes(comparison: Row) -> list[str]:
    """Return the lines beside a table without which its figures cannot be judged."""
    arms = comparison["arms"]
    seeds = ", ".join(map(str, comparison["seeds"]))
    clauses = setting_clauses(comparison)
    lines = [
        f"Target accuracy {percent(comparison['target_accuracy'])}; seeds {seeds}.",
        f"Speed-ups refer to {comparison['reference']}.",
        *(f"{LABELS.get(about, '')}{clause}." for about, clause in clauses.items()),
        SECONDS[comparison["clock"]],
        *_alike(arms),
        *_fewer_seeds(arms, comparison["seeds"]),
        *censored(comparison),
        *_few_evaluations(arms),
    ]
    for arm in arms:
        lines += _about(arm)
    if _nothing_shown(arm for arm in arms if arm["name"] != comparison["reference"]):
        lines.append("Every interval includes 1: these seeds show no arm to be faster or slower.")
    return lines


def _nothing_shown(arms: Iterable[Row]) -> bool:
    """Whether all speed-ups of some arms have intervals, and all of these include 1."""
    told = [arm for arm in arms if arm["speedup"] is not None or arm["speedup_bound"]]
    spans = [(arm["speedup_low"], arm["speedup_high"]) for arm in told]
    # Of a bound one end is known, and the other is far off.
    return bool(spans) and all(
        (low or high) and (low or 0.0) <= 1 <= (high or math.inf) for low, high in spans
    )


def _fewer_seeds(arms: Sequence[Row], seeds: Sequence[int]) -> list[str]:
    """Say which arms did not run all seeds."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for arm in arms:
        alike.setdefault(tuple(arm["seeds"]), []).append(arm["name"])
    return [
        f"{', '.join(names)} ran seeds {', '.join(map(str, own))} only; what refers to another "
        "arm is over the seeds that both ran."
        for own, names in alike.items()
        if list(own) != seeds
    ]


def censored(comparison: Row) -> list[str]:
    """Say what becomes of runs that did not reach the target, where there are some."""
    arms, reference = comparison["arms"], comparison["reference"]
    if not any(arm["censored"] for arm in arms):
        return []
    seeds = {seed for arm in arms if arm["name"] == reference for seed in arm["seeds"]}
    left_out = {
        arm["name"]: len(seeds & set(arm["seeds"])) - arm["speedup_pairs"]
        for arm in arms
        if arm["name"] != reference
    }
    named = ", ".join(f"{name} {count}" for name, count in left_out.items() if count)
    out = [f"Left out, since neither reached the target: {named}."] if named else []
    return [CENSORING, *out]


def _few_evaluations(arms: Sequence[Row]) -> list[str]:
    """Say whose final accuracy is of fewer evaluations than it says."""
    few = [arm["name"] for arm in arms if arm["fewest_evaluations"] < FINAL_EVALUATIONS]
    if not few:
        return []
    return [
        f"Fewer than {FINAL_EVALUATIONS} evaluations make the final accuracy of {', '.join(few)}."
    ]


def _about(arm: Row) -> list[str]:
    """Return what must be known of one arm."""
    name, lines = arm["name"], []
    if arm["failed"] or arm["rejected"]:
        lines.append(
            f"{name}: {arm['failed']} participations failed and {arm['rejected']} were rejected; "
            "fedio report --round says why."
        )
    if arm["aggregation"] == "fedbuff":
        lines.append(
            f"{name} waits for nobody: its rounds end with an update of the server, and deadlines "
            "do not apply to them."
        )
    staging = arm["staging_origin_bytes"], arm["staging_written_bytes"]
    if any(staging):
        read, written = map(size, staging)
        lines.append(f"{name}: staging read {read} of its bytes from the origin, wrote {written}.")
    if arm["substituted_ratio"]:
        lines.append(
            f"{name} trained a stand-in for {percent(arm['substituted_ratio'])} of its requests: "
            "cached samples in place of others, which are no hits."
        )
    return lines


def _alike(arms: Sequence[Row]) -> list[str]:
    """Say what all arms do alike to bring samples to training; columns show the rest."""
    words: dict[str, Callable[[Row], str]] = {
        "prefetch": lambda arm: READING[arm["prefetch"]][1],
        "form": lambda arm: FORMS[arm["form"]],
        "staging": lambda arm: STAGING[arm["staging"]][1],
    }
    alike = [say(arms[0]) for key, say in words.items() if len({arm[key] for arm in arms}) == 1]
    if not alike:
        return []
    return [f"In every arm {' and '.join(filter(None, (', '.join(alike[:-1]), alike[-1])))}."]
