"""What all plots share: colours, sizes, units and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedio.errors import InputError

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
MOST_LINES_WITHIN = 8
METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}}


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


def name_lines(figure: Figure, axes: Axes, place: Literal["upper right", "lower right"]) -> None:
    """Name the lines of a plot of one panel: within it, or above it where they are many.

    Args:
        figure: made higher by what the names above the plot need.
        axes: where the lines are.
        place: of a legend within it.
    """
    lines, names = axes.get_legend_handles_labels()
    if len(names) > MOST_LINES_WITHIN:
        columns = 3 if max(map(len, names)) < 24 else 2
        figure.legend(lines, names, loc="outside upper center", ncols=columns)
        figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(names) // columns))
    elif names:
        axes.legend(loc=place)


def save(
    plots: Mapping[str, Callable[[], Figure]], folder: Path, endings: Sequence[str]
) -> list[Path]:
    """Draw figures and write each into a folder, which is made, and return the files.

    Files of equal figures are equal: no dates and no random names in them.

    Args:
        plots: what draws each, by the name of its file.
        folder: made if it is not there.
        endings: of `png` and `svg`.

    Raises:
        InputError: the folder cannot be written.
    """
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in plots.items():
            with mpl.rc_context(STYLE):
                figure = draw()
                for ending in endings:
                    files.append(folder / f"{name}.{ending}")
                    figure.savefig(files[-1], metadata=METADATA[ending], bbox_inches="tight")
    except OSError as error:
        raise InputError(
            f"cannot write plots to {folder}: {error.strerror}; name another --out"
        ) from error
    return files
