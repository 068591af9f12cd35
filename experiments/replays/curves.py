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
    limits = np.array(sorted({(row["capacity"], 1 - row["bound"]) for row in rows}))
    exact = all(row["bound_is_exact"] for row in rows)
    axes.fill_between(
        limits[:, 0], limits[:, 1], color="#DDDDDD", linewidth=0,
        label="below Belady with bypass" if exact else "below the proven bound",
    )  # fmt: skip
    for position, (policy, points) in enumerate(groupby(rows, key=lambda row: row["policy"])):
        curve = np.array(sorted((row["capacity"], 1 - row["hit_ratio"]) for row in points))
        axes.plot(
            curve[:, 0], curve[:, 1], color=COLOURS[position % len(COLOURS)], linewidth=1.3,
            linestyle=DASHES[position // len(COLOURS) % len(DASHES)], marker="o", markersize=2.5,
            label=policy,
        )  # fmt: skip
    if limits[0, 0] > 0:
        axes.set_xscale("log")
    axes.set(xlabel="capacity of a cache (samples)", ylabel="miss ratio (%)", ylim=(0, 1))
    axes.set_title(title, loc="left")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    axes.grid(visible=True)
    figure.legend(loc="outside right upper")
    return figure
