"""What all plots share: colours, sizes and units."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

# Okabe and Ito's palette, told apart with any colour vision; its yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")

# The phases add up to the duration; storage and decoding are busy while others last. Network is
# grey, storage warm, computing blue.
PHASES = {
    "download_s": ("download", "#BBBBBB"),
    "stall_s": ("stall", "#CC79A7"),
    "compute_s": ("compute", "#0072B2"),
    "upload_s": ("upload", "#777777"),
}
BUSY = {
    "origin_s": ("origin read", "#D55E00"),
    "cache_s": ("cache read", "#F0E442"),
    "decode_s": ("decode", "#56B4E9"),
    "write_s": ("cache write", "#E69F00"),
}
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fedio",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "grid.color": "#E5E5E5",
    "savefig.dpi": 200,
}
WIDTH = 6.4


def one_panel(height: float) -> tuple[Figure, Axes]:
    """Return a figure of one plot, so many inches high."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit in which times up to the longest are read, in seconds, and its name."""
    if longest_s < 300:
        return 1.0, "s"
    return (60.0, "min") if longest_s < 3 * 3600 else (3600.0, "h")


def swatches(figure: Figure, kinds: Iterable[tuple[str, str]], columns: int) -> None:
    """Put a legend of (label, colour) pairs above a figure."""
    handles = [Patch(color=colour, label=label) for label, colour in kinds]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=columns, handlelength=1,
        columnspacing=1.2,
    )  # fmt: skip
