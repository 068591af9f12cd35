"""Plots of runs: accuracy, phases, hits and selection here, others beside.

They read run folders only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.clock_error import timed
from experiments.clock_plot import clock_error
from experiments.drawing import (
    BUSY,
    COLOURS,
    DASHES,
    MOST_LINES_WITHIN,
    PHASES,
    WIDTH,
    name_lines,
    one_panel,
    save,
    swatches,
    time_unit,
)
from experiments.figures import arm_figures, group_by_arm
from experiments.run_figures import evaluations, stall_s, time_to_target_s, times_selected
from experiments.speedup_plot import has_speedups, speedups
from experiments.timelines import timeline
from experiments.units import CLOCKS, number, percent, seconds
from fedio.runs import Row, Run

Arms = Mapping[str, Sequence[Run]]
Drawn = Mapping[str, Callable[[], Figure]]
"""What draws each plot, by its name."""

TIMELINE = "timeline-"
"""With an arm's name, the name of the timeline of its first seed."""

HITS = {
    "demand": ("demand hits", "#0072B2"),
    "staged": ("staged hits", "#56B4E9"),
    "substituted": ("substituted", "#E69F00"),
    "misses": ("misses", "#DDDDDD"),
}


def write(runs: Iterable[Run], folder: Path, comparison: Row) -> list[Path]:
    """Write all plots of `runs` into `folder`, as PNG and SVG, and return the files.

    Args:
        runs: of one comparison.
        folder: made if it is not there.
        comparison: what `compare_json` returned for them.

    Raises:
        InputError: the runs do not belong together, or the folder cannot be written.
    """
    arms = group_by_arm(runs)
    timelines = {f"{TIMELINE}{arm}": partial(timeline, same[0]) for arm, same in arms.items()}
    return save({**comparing(arms, comparison), **timelines}, folder, ("png", "svg"))


def comparing(arms: Arms, comparison: Row) -> Drawn:
    """Return what draws the plots that a comparison has something for."""
    target = comparison["target_accuracy"]
    drawn: dict[str, Callable[[], Figure]] = {
        "accuracy": lambda: accuracy(arms, target),
        "phases": lambda: phases(arms),
        "hits": lambda: hits(arms),
        "selection": lambda: selection(arms),
    }
    if has_speedups(comparison):
        drawn = {"speedups": lambda: speedups(comparison)} | drawn
    everyone = [run for same in arms.values() for run in same]
    if any(timed(everyone)):
        drawn["clock-error"] = partial(clock_error, everyone)
    return drawn


LOWEST_SHARE_OF_TARGET = 0.6


def accuracy(arms: Arms, target: float | None) -> Figure:
    """Draw test accuracy over time: the mean over seeds, in a band from lowest to highest.

    Many arms are drawn as lines alone, since their bands would hide them.

    Evaluations hold until the next one, as steps. A dot marks the time to target. With a target
    the axis begins at 60 % of it.
    """
    figure, axes = one_panel(3.8)
    longest_s = max(run.rounds[-1]["end_s"] for runs in arms.values() for run in runs)
    scale, unit = time_unit(longest_s)
    for position, (name, runs) in enumerate(arms.items()):
        colour = COLOURS[position % len(COLOURS)]
        times_s, values = _steps(runs)
        if not times_s.size:
            continue
        if len(arms) <= MOST_LINES_WITHIN:
            axes.fill_between(
                times_s / scale, values.min(axis=0), values.max(axis=0),
                step="post", color=colour, alpha=0.15, linewidth=0,
            )  # fmt: skip
        axes.step(
            times_s / scale, values.mean(axis=0), where="post", color=colour, linewidth=1.1,
            linestyle=DASHES[position % len(DASHES)], label=name,
        )  # fmt: skip
        reached = [time for run in runs if target and (time := time_to_target_s(run, target))]
        if target and len(reached) == len(runs):
            axes.plot(
                geometric_mean(reached) / scale, target, "o", color=colour, markersize=6,
                markeredgecolor="white", zorder=5,
            )  # fmt: skip
    if target:
        axes.axhline(target, color="#555555", linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(
            f"target {100 * target:g}%", (0, target), xycoords=("axes fraction", "data"),
            xytext=(3, 2), textcoords="offset points", ha="left", va="bottom", fontsize=8,
            color="#555555",
        )  # fmt: skip
        # What decides lies around the target; the first steep rise can leave the picture.
        axes.set_ylim(bottom=LOWEST_SHARE_OF_TARGET * target)
    axes.set(xlabel=f"{_time(arms)} ({unit})", ylabel="test accuracy (%)", xlim=(0, None))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    axes.grid(visible=True)
    name_lines(figure, axes, "lower right")
    return figure


def phases(arms: Arms) -> Figure:
    """Draw what a counted participation takes, by phase: means over participations and seeds.

    Thick bars add up to its duration. Thin ones, from the end of the download on, are the seconds
    that storage and decoding are busy; they may be longer, since several readers decode at a time.
    """
    figure, axes = one_panel(1.6 + 0.6 * len(arms))
    longest_s = 0.0
    for position, runs in enumerate(arms.values()):
        rows = [row for run in runs for row in run.clients if row["outcome"] == "counted"]
        rows = [row | {"stall_s": stall_s(row)} for row in rows]
        spans = _spans(rows, PHASES)
        took_s, downloaded_s = sum(spans.values()), spans["download_s"]
        busy = _spans(rows, BUSY)
        _stack(axes, (0.0, position - 0.11), 0.5, spans)
        _stack(axes, (downloaded_s, position + 0.28), 0.18, busy)
        longest_s = max(longest_s, took_s, downloaded_s + sum(busy.values()))
        round_s = fmean(run.clock_s / run.summary["rounds"] for run in runs)
        text = f"{seconds(took_s)}  (round {seconds(round_s)})"
        axes.annotate(
            text, (took_s, position - 0.11), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    axes.set_yticks(range(len(arms)), list(arms))
    axes.tick_params(axis="y", length=0)
    axes.set(
        xlim=(0, 1.3 * longest_s or 1),
        ylim=(len(arms) - 0.5, -0.5),
        xlabel=f"{_time(arms)} of a counted participation, mean (s)",
    )
    axes.grid(visible=True, axis="x")
    rows_of_legend = [("duration:", "none"), *PHASES.values()], [("busy:", "none"), *BUSY.values()]
    pairs = zip(*rows_of_legend, strict=True)
    swatches(figure, [kind for pair in pairs for kind in pair], columns=5)
    return figure


def _spans(rows: Sequence[Row], kinds: Iterable[str]) -> dict[str, float]:
    """Return the mean of each kind of seconds."""
    return {key: fmean(row[key] for row in rows) if rows else 0.0 for key in kinds}


def _stack(
    axes: Axes, start: tuple[float, float], height: float, spans: Mapping[str, float]
) -> None:
    """Draw seconds by kind as one bar, from a place (seconds, row) on."""
    left_s, at = start
    for key, width_s in spans.items():
        _, colour = (PHASES | BUSY)[key]
        axes.barh(at, width_s, height, left=left_s, color=colour, edgecolor="white", linewidth=0.4)
        left_s += width_s


def hits(arms: Arms) -> Figure:
    """Draw what requests found in each round, as shares of all requests, a panel per arm."""
    columns = min(len(arms), 2)
    lines = -(-len(arms) // columns)
    figure = Figure(figsize=(WIDTH, 0.7 + 1.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    shown: set[str] = set()
    rounds = max(1, *(run.rounds[-1]["round"] for runs in arms.values() for run in runs))
    edges = np.arange(rounds + 1) + 0.5
    for position, (name, runs) in enumerate(arms.items()):
        axes = panels[position // columns][position % columns]
        shares = _hit_shares(runs, rounds)
        below = np.zeros(rounds)
        for kind, share in shares.items():
            above = below + share
            # Corners spelled out: steps would lose a round before a gap.
            axes.fill_between(
                np.repeat(edges, 2)[1:-1], np.repeat(below, 2), np.repeat(above, 2),
                color=HITS[kind][1], linewidth=0,
            )  # fmt: skip
            below = above
            if np.nansum(share) > 0:
                shown.add(kind)
        axes.set(title=name, ylim=(0, 1), xlim=(edges[0], edges[-1]))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    for axes in panels.flat[len(arms) :]:
        axes.set_visible(False)
    figure.supxlabel("round", fontsize=9)
    figure.supylabel("share of requests (%)", fontsize=9)
    swatches(figure, [HITS[kind] for kind in HITS if kind in shown], columns=4)
    return figure


def selection(arms: Arms) -> Figure:
    """Draw how often clients were selected, most often first: level is fair, steep is not."""
    figure, axes = one_panel(3.4)
    for position, (name, runs) in enumerate(arms.items()):
        colour = COLOURS[position % len(COLOURS)]
        counts = np.array([sorted(times_selected(run), reverse=True) for run in runs])
        clients = np.arange(counts.shape[1] + 1)
        middle, low, high = (
            np.append(values, values[-1])
            for values in (counts.mean(axis=0), counts.min(axis=0), counts.max(axis=0))
        )
        figures = arm_figures(runs, 1.0, [])
        axes.fill_between(clients, low, high, step="post", color=colour, alpha=0.15, linewidth=0)
        axes.step(
            clients, middle, where="post", color=colour, linewidth=1.4,
            linestyle=DASHES[position % len(DASHES)],
            label=f"{name}: {percent(figures['coverage'])} of clients, "
            f"Jain {number(figures['jain_index'])}",
        )  # fmt: skip
    axes.set(
        xlabel="clients, most often selected first", ylabel="times selected", xlim=(0, None),
        ylim=(0, None),
    )  # fmt: skip
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True)
    name_lines(figure, axes, "upper right")
    return figure


def _time(arms: Arms) -> str:
    """Return what the seconds of these runs are called; they have one clock."""
    return next(CLOCKS[run.clock] for runs in arms.values() for run in runs)


def _steps(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which any seed was evaluated, and each seed's accuracy then.

    Times run from the first at which every seed has a value to the last at which all still ran.
    Shapes: (times,), (seeds, times).
    """
    series = []
    for run in runs:
        start = [(0.0, row["accuracy"]) for row in run.rounds if row["round"] == 0]
        known = [pair for pair in start if pair[1] is not None] + evaluations(run)
        series.append(np.array(known).reshape(-1, 2))
    if any(not one.size for one in series):
        return np.empty(0), np.empty((len(runs), 0))
    first, last = max(one[0, 0] for one in series), min(one[-1, 0] for one in series)
    times_s = np.unique(np.concatenate([one[:, 0] for one in series]))
    times_s = times_s[(times_s >= first) & (times_s <= last)]
    values = [one[np.searchsorted(one[:, 0], times_s, side="right") - 1, 1] for one in series]
    return times_s, np.array(values)


def _hit_shares(runs: Sequence[Run], rounds: int) -> dict[str, np.ndarray]:
    """Return the share of requests by kind in rounds 1, 2, ...: NaN where nobody asked.

    Staged hits are part of `hits`; demand here is the rest of them.
    """
    counts = {kind: np.zeros(rounds) for kind in HITS}
    requests = np.zeros(rounds)
    for row in (row for run in runs for row in run.clients if row.get("requests")):
        at = row["round"] - 1
        requests[at] += row["requests"]
        counts["demand"][at] += row["hits"] - row["staged"]
        for kind in ("staged", "substituted", "misses"):
            counts[kind][at] += row[kind]
    requests[requests == 0] = np.nan
    return {kind: count / requests for kind, count in counts.items()}
