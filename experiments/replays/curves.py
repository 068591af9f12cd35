"""Miss-ratio curves: what a cache misses at each capacity, under each policy and at best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from experiments.drawing import COLOURS, DASHES, STYLE, WIDTH
from fedio.errors import RunError
from fedio.output import make_folder, replacing
from fedio.runs import Row
from storage.policies import POLICIES

CURVES_FILE = "miss-ratio"
MARKERS = ("o", "s", "^", "D", "v", "<", ">")


def write(rows: Sequence[Row], title: str, folder: Path) -> list[Path]:
    """Draw the rows of a replay into `folder`, as PNG and SVG; returns the files.

    Raises:
        RunError: they cannot be written; what was there is as it was.
    """
    files = [folder / f"{CURVES_FILE}.{ending}" for ending in ("png", "svg")]
    try:
        make_folder(folder)
        with mpl.rc_context(STYLE):
            figure = draw(rows, title)
            for file, metadata in zip(files, ({"Software": None}, {"Date": None}), strict=True):
                with replacing(file) as temporary:
                    figure.savefig(
                        temporary, format=file.suffix[1:], metadata=metadata, bbox_inches="tight"
                    )
    except OSError as error:
        raise RunError(f"cannot write plots to {folder}: {error.strerror}") from error
    return files


def draw(rows: Sequence[Row], title: str) -> Figure:
    """Draw a curve per policy, and the bound as the edge of what no cache can reach.

    The axis of capacities is logarithmic. Substituted requests count as misses here.
    """
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    limits = sorted({(row["capacity"], 1 - row["bound"]) for row in rows})
    capacities, least = zip(*limits, strict=True)
    is_exact = all(row["bound_is_exact"] for row in rows)
    limit = "no cache gets here" + ("" if is_exact else " (proven)")
    edge = axes.fill_between(np.array(capacities), np.array(least), color="#DDDDDD", linewidth=0)
    legend: dict[str, Artist] = {limit: edge}
    curves = {
        policy: sorted((row["capacity"], 1 - row["hit_ratio"]) for row in points)
        for policy, points in groupby(rows, key=lambda row: row["policy"])
    }
    # Those of the table look the same in every figure.
    known = dict.fromkeys([*POLICIES, *curves])
    styles = {policy: divmod(position, len(COLOURS)) for position, policy in enumerate(known)}
    # The legend has them in the order of their right ends.
    for policy in sorted(curves, key=lambda name: -curves[name][-1][1]):
        kind, colour = styles[policy]
        (legend[policy],) = axes.plot(
            *np.array(curves[policy]).T, color=COLOURS[colour], linewidth=1.1, markersize=5,
            markerfacecolor="none", linestyle=DASHES[kind % len(DASHES)],
            marker=MARKERS[colour % len(MARKERS)],
        )  # fmt: skip
    if capacities[0] > 0:
        axes.set_xscale("log")
    axes.set_xticks(capacities, _apart(capacities))
    axes.minorticks_off()
    axes.set(xlabel="capacity of a cache (samples)", ylabel="miss ratio (%)", ylim=(0, 1))
    axes.set_title(title, loc="left", parse_math=False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    axes.grid(visible=True)
    _add_legend(figure, legend)
    return figure


def _add_legend(figure: Figure, entries: Mapping[str, Artist]) -> None:
    """Name the curves as they are written: a name may have what matplotlib reads as a sign."""
    legend = figure.legend(list(entries.values()), [" "] * len(entries), loc="outside right upper")
    for text, name in zip(legend.get_texts(), entries, strict=True):
        text.set(text=name, parse_math=False)


def _apart(capacities: Sequence[float]) -> list[str]:
    """Return the labels of a logarithmic axis, without those that would lie upon one another."""
    labels: list[str] = []
    last = 0.0
    least = (max(capacities) / max(min(capacities), 1e-9)) ** 0.06
    for capacity in capacities:
        is_apart = not last or capacity > least * last
        labels.append(f"{capacity:,.3g}" if is_apart else "")
        last = capacity if is_apart else last
    return labels
