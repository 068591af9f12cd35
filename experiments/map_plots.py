"""The plots of a map: speed-ups in the cells of each axis, and against I/O : compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.drawing import COLOURS, DASHES, one_panel
from experiments.plots import Drawn
from experiments.ratio_marks import mark, ratio_axis, spans
from experiments.table import label
from experiments.units import ratio
from fedio.runs import Row

SIGNS = "osDPXh*p"  # no triangle: these point to where a limit leaves the true value
AXIS = "axis-"
"""With an axis' name, the name of its plot."""
RATIOS = "io-to-compute"

# Cells that differ by less do not differ in I/O : compute.
_MOVES = 1.2
_WIDTH_OF_ARMS = 0.4


def comparing(figures: Row) -> Drawn:
    """Return what draws the plots that a map has something for.

    Args:
        figures: what `map_json` returned.
    """
    drawn: dict[str, Callable[[], Figure]] = {
        f"{AXIS}{one['name']}": partial(axis, one)
        for one in figures["axes"]
        if _known(arm for cell in one["cells"] for arm in _others(cell))
    }
    if _known(arm for _, cell in _moving_cells(figures) for arm in _others(cell)):
        drawn[RATIOS] = lambda: ratios(figures)
    return drawn


def axis(one: Row) -> Figure:
    """Draw speed-ups over the reference in the cells of an axis, in order: a line per arm."""
    cells = one["cells"]
    figure, axes = one_panel(3.6)
    names, legend = _arms(cells), []
    labels = {arm["name"]: label(arm) for cell in cells for arm in cell["arms"]}
    for position, name in enumerate(names):
        look = _look(position)
        aside = (position - (len(names) - 1) / 2) * _WIDTH_OF_ARMS / len(names)
        places, values = [], []
        for at, cell in enumerate(cells):
            for arm in (arm for arm in _others(cell) if arm["name"] == name):
                mark(axes, at + aside, arm, "y", (look["color"], look["marker"]))
                places.append(at + aside)
                # No line leads to or from a limit: a trend between limits is none.
                known = arm["speedup"] is not None and arm["speedup_bound"] is None
                values.append(arm["speedup"] if known else float("nan"))
        axes.plot(places, values, **look | {"marker": ""}, linewidth=0.9, zorder=1)
        legend.append(Line2D([], [], **look, markersize=5, label=labels[name]))
    axes.axhline(1, color="#555555", linewidth=0.8, zorder=0)
    ratio_axis(axes, "y", spans(arm for cell in cells for arm in _others(cell)))
    ticks = [f"{cell['name']}\n{ratio(cell['io_to_compute'])}" for cell in cells]
    axes.set_xticks(range(len(cells)), ticks, fontsize=8)
    axes.set(
        xlim=(-0.5, len(cells) - 0.5), xlabel=f"{one['title']}; below, the measured I/O : compute",
        ylabel=f"speed-up over {cells[0]['reference']}",
    )  # fmt: skip
    axes.grid(visible=True, axis="y")
    figure.legend(handles=legend, loc="outside upper center", ncols=4)
    return figure


def ratios(figures: Row) -> Figure:
    """Draw speed-ups against the measured I/O : compute, both on logarithmic axes."""
    cells = list(_moving_cells(figures))
    titles = list(dict.fromkeys(title for title, _ in cells))
    names = _arms([cell for _, cell in cells])
    figure, axes = one_panel(4.2)
    for title, cell in cells:
        for arm in _others(cell):
            colour = COLOURS[names.index(arm["name"]) % len(COLOURS)]
            sign = SIGNS[titles.index(title) % len(SIGNS)]
            mark(axes, cell["io_to_compute"], arm, "y", (colour, sign))
    axes.axhline(1, color="#555555", linewidth=0.8, zorder=0)
    ratio_axis(axes, "x", [cell["io_to_compute"] for _, cell in cells])
    ratio_axis(axes, "y", spans(arm for _, cell in cells for arm in _others(cell)))
    axes.set(xlabel="measured I/O : compute", ylabel=f"speed-up over {figures['reference']}")
    axes.grid(visible=True)
    of_axes = [
        Line2D([], [], linestyle="", marker=SIGNS[at % len(SIGNS)], color="#555555", label=title)
        for at, title in enumerate(titles)
    ]
    of_arms = [
        Line2D([], [], color=COLOURS[at % len(COLOURS)], linewidth=3, label=name)
        for at, name in enumerate(names)
    ]
    figure.legend(handles=of_arms + of_axes, loc="outside upper center", ncols=3)
    return figure


def _look(position: int) -> dict[str, Any]:
    """Return the colour, the line and the sign of an arm."""
    return {
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": DASHES[position % len(DASHES)],
        "marker": SIGNS[position % len(SIGNS)],
    }


def _moving_cells(figures: Row) -> Iterator[tuple[str, Row]]:
    """Yield the cells of the axes that move I/O : compute, each with its axis' title.

    A cell that axes share stands for itself, with the first of them.
    """
    shared = False
    for one in figures["axes"]:
        measured = [cell["io_to_compute"] for cell in one["cells"] if cell["io_to_compute"]]
        if not measured or max(measured) < _MOVES * min(measured):
            continue
        for cell in one["cells"]:
            is_base = cell["name"] == one["base"]
            if cell["io_to_compute"] and not (is_base and shared):
                yield one["title"], cell
            shared |= is_base


def _others(cell: Row) -> list[Row]:
    """Return the arms of a cell but the one that speed-ups refer to."""
    return [arm for arm in cell["arms"] if arm["name"] != cell["reference"]]


def _arms(cells: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(arm["name"] for cell in cells for arm in _others(cell)))


def _known(arms: Iterator[Row]) -> bool:
    return any(arm["speedup"] is not None for arm in arms)
