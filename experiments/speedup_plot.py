"""The speed-ups of a comparison: a dot with its interval per arm, on a logarithmic axis."""

from __future__ import annotations

from itertools import groupby

from matplotlib.figure import Figure

from experiments.drawing import one_panel
from experiments.ratio_marks import mark, ratio_axis, spans
from fedio.runs import Row

COLOURS = {"arm": "#0072B2", "control": "#777777", "bound": "#D55E00"}
KINDS = {"arm": "arms", "control": "controls", "bound": "bounds"}
UNKNOWN = "target not reached"


def has_speedups(comparison: Row) -> bool:
    """Tell whether an arm has a speed-up over another."""
    others = [arm for arm in comparison["arms"] if arm["name"] != comparison["reference"]]
    return any(arm["speedup"] is not None for arm in others)


def speedups(comparison: Row) -> Figure:
    """Draw each arm's speed-up over the reference, a row per arm, kinds set apart."""
    kinds = list(KINDS)
    arms = sorted(comparison["arms"], key=lambda arm: kinds.index(arm["kind"]))
    several = len({arm["kind"] for arm in arms}) > 1
    figure, axes = one_panel(0.9 + 0.24 * (len(arms) + 2))
    rows: dict[float, str] = {}
    row = 0.0
    for kind, same in groupby(arms, key=lambda arm: str(arm["kind"])):
        if several:
            axes.annotate(
                KINDS[kind], (0, row), xycoords=("axes fraction", "data"), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=8, color=COLOURS[kind],
                fontstyle="italic",
            )  # fmt: skip
            row += 1
        for arm in same:
            rows[row] = arm["name"]
            mark(axes, row, arm, "x", (COLOURS[kind], "o"))
            if arm["speedup"] is None:
                axes.annotate(
                    UNKNOWN, (1, row), xytext=(4, 0), textcoords="offset points", va="center",
                    fontsize=8, color="#777777",
                )  # fmt: skip
            row += 1
    axes.axvline(1, color="#555555", linewidth=0.8, zorder=0)
    ratio_axis(axes, "x", spans(arms))
    axes.set_yticks(list(rows), list(rows.values()))
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(row - 0.4, -0.6), xlabel=f"speed-up over {comparison['reference']}")
    axes.grid(visible=True, axis="x")
    return figure
