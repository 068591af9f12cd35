"""Miss-ratio curves: what a cache misses at each capacity, under each policy and at best."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.plots import COLOURS, DASHES, STYLE, WIDTH
from fedio.errors import InputError
from fedio.runs import Row

CURVES_FILE = "miss-ratio"
MARKERS = ("o", "s", "^", "D")


def write(rows: Sequence[Row], title: str, folder: Path) -> list[Path]:
    """Draw the rows of a replay into `folder`, as PNG and SVG; returns the files.

    Raises:
        InputError: the folder cannot be written.
    """
    files = [folder / f"{CURVES_FILE}.{ending}" for ending in ("png", "svg")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            figure = draw(rows, title)
            for file, metadata in zip(files, ({"Software": None}, {"Date": None}), strict=True):
                figure.savefig(file, metadata=metadata, bbox_inches="tight")
    except OSError as error:
        raise InputError(
            f"cannot write plots to {folder}: {error.strerror}; name another --out"
        ) from error
    return files


def draw(rows: Sequence[Row], title: str) -> Figure:
    """Draw a curve per policy, and the bound as the edge of what no cache can reach.

    The axis of capacities is logarithmic. Substituted requests count as misses here.
    """
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    limits = sorted({(row["capacity"], 1 - row["bound"]) for row in rows})
    capacities, least = zip(*limits, strict=True)
    exact = all(row["bound_is_exact"] for row in rows)
    axes.fill_between(
        np.array(capacities), np.array(least), color="#DDDDDD", linewidth=0,
        label="below Belady with bypass" if exact else "below the proven bound",
    )  # fmt: skip
    curves = {
        policy: sorted((row["capacity"], 1 - row["hit_ratio"]) for row in points)
        for policy, points in groupby(rows, key=lambda row: row["policy"])
    }
    styles = {policy: divmod(position, len(COLOURS)) for position, policy in enumerate(curves)}
    # The legend has them in the order of their right ends.
    for policy in sorted(curves, key=lambda name: -curves[name][-1][1]):
        kind, colour = styles[policy]
        axes.plot(
            *np.array(curves[policy]).T, color=COLOURS[colour], linewidth=1.3, markersize=3.5,
            linestyle=DASHES[kind % len(DASHES)], marker=MARKERS[kind % len(MARKERS)], label=policy,
        )  # fmt: skip
    if capacities[0] > 0:
        axes.set_xscale("log")
    axes.set_xticks(capacities, [f"{capacity:,.3g}" for capacity in capacities])
    axes.minorticks_off()
    axes.set(xlabel="capacity of a cache (samples)", ylabel="miss ratio (%)", ylim=(0, 1))
    axes.set_title(title, loc="left")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    axes.grid(visible=True)
    figure.legend(loc="outside right upper")
    return figure
