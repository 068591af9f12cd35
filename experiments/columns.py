"""The columns of a comparison's tables: what each shows of an arm, and what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.units import NOTHING, number, percent, seconds, size
from fedio.runs import Row


def _always(arms: Sequence[Row]) -> bool:
    return bool(arms)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, one line that says what it means, and the text of its cell.

    Attributes:
        show: turns an arm's row of figures into text.
        tells: whether the column says something of these arms; otherwise it is left out.
    """

    title: str
    legend: str
    show: Callable[[Row], str]
    tells: Callable[[Sequence[Row]], bool] = _always


def _differ(key: str) -> Callable[[Sequence[Row]], bool]:
    return lambda arms: len({arm[key] for arm in arms}) > 1


def _any(key: str) -> Callable[[Sequence[Row]], bool]:
    return lambda arms: any(arm[key] for arm in arms)


SIGNS = {None: "", "at most": "<= ", "at least": ">= "}


def _speedup(row: Row) -> str:
    bound, low, high = (row[f"speedup{key}"] for key in ("_bound", "_low", "_high"))
    if bound == "mixed":
        return str(bound)
    interval = "" if low == high else f" [{number(low)}, {number(high)}]"
    return SIGNS[bound] + number(row["speedup"]) + interval


def _final(row: Row) -> str:
    spread = row["final_accuracy_spread"]
    return percent(row["final_accuracy"]) + ("" if spread is None else f" ±{100 * spread:.1f}")


def _difference(row: Row) -> str:
    """Return the difference of final accuracy in points, as the interval has it."""
    keys = ("accuracy_difference", "accuracy_difference_low", "accuracy_difference_high")
    if row["equal_accuracy"] is None:
        return NOTHING
    middle, low, high = (f"{100 * row[key]:+.2f}" for key in keys)
    interval = "" if low == high else f" [{low}, {high}]"
    return f"{middle}{interval} {row['equal_accuracy']}"


TIME_COLUMNS = (
    Column(
        "seeds",
        "how many seeds the arm ran; its figures are over all of them, what refers to another arm "
        "over those that both ran",
        lambda row: str(len(row["seeds"])),
        lambda arms: len({len(arm["seeds"]) for arm in arms}) > 1,
    ),
    Column(
        "reached",
        "how many seeds reached the target",
        lambda row: f"{row['reached']} of {len(row['seeds'])}",
        _any("censored"),
    ),
    Column(
        "to target",
        "time of the first of 3 consecutive evaluations at the target or above "
        "(geometric mean over seeds; - unless every seed got there)",
        lambda row: seconds(row["time_to_target_s"]),
    ),
    Column(
        "speed-up",
        "time to target of the reference over the arm's, paired by seed "
        "[95% t interval on the logarithms]",
        _speedup,
    ),
)

ACCURACY_COLUMNS = (
    Column(
        "final",
        "mean test accuracy of the last 5 evaluations (up to the horizon, if there is one; that of "
        "the untrained model is none), ± standard deviation over seeds",
        _final,
    ),
    Column(
        "less ref.",
        "final accuracy less the reference's in points, paired by seed [90% t interval]; yes: "
        "equal within 1 point by two one-sided t tests at 5%; higher, lower: not so, and 0 is "
        "outside the interval; open: neither (-: the reference, or a run ended before the horizon)",
        _difference,
        lambda arms: any(arm["equal_accuracy"] for arm in arms),
    ),
)

# How arms bring samples to training, in the words of a cell and of a sentence.
READING = {
    True: ("ahead", "reading overlaps training"),
    False: ("in turn", "reading and training take turns"),
}
FORMS = {
    "encoded": "samples are cached encoded",
    "prepared": "samples are cached prepared",
    "best": "samples are cached in the form that saves more per byte",
}
STAGING = {
    True: ("yes", "who trains next fills its cache while it is idle"),
    False: ("no", "nothing is staged"),
}


def _weighs(arms: Sequence[Row]) -> bool:
    """Whether effective samples are not just the unique ones."""
    keys = ("unique_samples_per_round", "effective_samples_per_round")
    pairs = [[arm[key] for key in keys] for arm in arms]
    return any(None not in pair and not math.isclose(*pair, rel_tol=0.005) for pair in pairs)


READING_COLUMNS = (
    Column(
        "reads",
        "ahead: the next batches are read while one is trained; in turn: they are not",
        lambda row: READING[row["prefetch"]][0],
        _differ("prefetch"),
    ),
    Column(
        "cached",
        "the form of cached samples: encoded, as at the origin; prepared, as they are trained; or "
        "whichever is best for a sample",
        lambda row: str(row["form"]),
        _differ("form"),
    ),
    Column(
        "cache",
        "bounded: as the experiment says; unbounded: holds all that was ever read; warm: holds all "
        "samples before the first round",
        lambda row: str(row["cache"]),
        _differ("cache"),
    ),
    Column(
        "stages",
        "whether clients fill their caches while they are idle, for the round to come",
        lambda row: STAGING[row["staging"]][0],
        _differ("staging"),
    ),
    Column(
        "each",
        "what a participation takes, on average",
        lambda row: seconds(row["participation_s"]),
    ),
    Column(
        "stall",
        "share of the participations' time in which training waited for data",
        lambda row: percent(row["stall_share"]),
        _any("stall_share"),
    ),
)

ROUND_COLUMNS = (
    Column(
        "aggregates",
        "what becomes of the replies",
        lambda row: str(row["aggregation"]),
        _differ("aggregation"),
    ),
    Column(
        "per step",
        "fednova: updates count per local step",
        lambda row: str(row["normalisation"]),
        _differ("normalisation"),
    ),
    Column(
        "steps",
        "local steps of a participation: the fewest and the most, on average over seeds",
        lambda row: f"{number(row['least_local_steps'])} - {number(row['most_local_steps'])}",
        _differ("local_work"),
    ),
    Column(
        "round",
        "what a round takes, on average",
        lambda row: seconds(row["round_s"]),
    ),
    Column(
        "late",
        "share of participations whose replies came after the last that counted",
        lambda row: percent(row["late_share"]),
        _any("late_share"),
    ),
    Column(
        "left",
        "share of participations that were aborted, since the device was there no longer",
        lambda row: percent(row["left_share"]),
        _any("left_share"),
    ),
    Column(
        "slow",
        "share of participations with which the host could not keep up: it took over 5% longer "
        "than the device it stands for",
        lambda row: percent(row["behind_share"]),
        lambda arms: any(arm["behind_share"] is not None for arm in arms),
    ),
)

STORAGE_COLUMNS = (
    Column(
        "origin",
        "bytes read from the slow tier, over the whole run, for staging too",
        lambda row: size(row["origin_bytes"]),
    ),
    Column(
        "held",
        "samples in a client's cache at the end of a participation, on average",
        lambda row: number(row["held_samples"]),
    ),
    Column(
        "hits",
        "demand hits of the cache over requests",
        lambda row: percent(row["hit_ratio"]),
    ),
    Column(
        "staged",
        "hits of samples that came in by staging, over requests; part of the hits",
        lambda row: percent(row["staged_ratio"]),
        _any("staged_ratio"),
    ),
    Column(
        "byte hits",
        "bytes read from the cache, as they are cached and for stand-ins too, over bytes read "
        "to train",
        lambda row: percent(row["byte_hit_ratio"]),
    ),
    Column(
        "written",
        "bytes written into the caches, over the whole run, by staging too",
        lambda row: size(row["written_bytes"]),
    ),
)

SAMPLE_COLUMNS = (
    Column(
        "unique",
        "distinct samples a participation trained, summed over a round's participations",
        lambda row: number(row["unique_samples_per_round"]),
    ),
    Column(
        "effective",
        "the same, as how many samples of equal weight they count for (Kish)",
        lambda row: number(row["effective_samples_per_round"]),
        _weighs,
    ),
    Column(
        "skipped",
        "samples that could not be read or decoded and were not trained, over the whole run",
        lambda row: number(row["skipped_samples"]),
        _any("skipped_samples"),
    ),
)

CLIENT_COLUMNS = (
    Column(
        "worst 10%",
        "mean accuracy of the worst tenth of clients, on their samples held out from training",
        lambda row: percent(row["worst_decile_accuracy"]),
    ),
    Column(
        "coverage",
        "share of clients selected at least once",
        lambda row: percent(row["coverage"]),
    ),
    Column(
        "unselected",
        "clients that were never selected",
        lambda row: number(row["never_selected"]),
    ),
    Column(
        "never sel.",
        "mean accuracy of these on their samples held out from training (- if there are none)",
        lambda row: percent(row["never_selected_accuracy"]),
    ),
    Column(
        "Jain",
        "Jain's index of the times that clients were selected: 1 is all alike",
        lambda row: number(row["jain_index"]),
    ),
)

TABLES = {
    "Time to target": TIME_COLUMNS,
    "Accuracy": ACCURACY_COLUMNS,
    "Rounds": ROUND_COLUMNS,
    "Reading": READING_COLUMNS,
    "Storage": STORAGE_COLUMNS,
    "Samples": SAMPLE_COLUMNS,
    "Clients": CLIENT_COLUMNS,
}
COLUMNS = tuple(column for columns in TABLES.values() for column in columns)


def tables(arms: Sequence[Row]) -> dict[str, list[Column]]:
    """Return the columns that say something of these arms, by the title of their table."""
    shown = {
        title: [column for column in columns if column.tells(arms)]
        for title, columns in TABLES.items()
    }
    return {title: columns for title, columns in shown.items() if columns}
