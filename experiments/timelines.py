"""The timeline of a run: what each client did when, participation by participation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline

from experiments.drawing import PHASES, one_panel, time_unit
from experiments.run_figures import stall_s
from experiments.units import CLOCKS
from fedio.runs import Row, Run

# What stays readable on a page.
MOST_ROUNDS, MOST_CLIENTS = 30, 40
_ROW_INCHES, _BAR = 0.15, 0.72

# How a participation ended, at its end: sign, filling, words. What counted has no sign.
SIGNS = {
    "late": ("D", "white", "late"),
    "unused": ("s", "white", "unused"),
    "left": ("<", "black", "left"),
    "failed": ("x", "black", "failed"),
    "rejected": ("X", "black", "rejected"),
}
FAULT = ("v", "#D00000", "fault")


@dataclass(frozen=True, slots=True)
class Bar:
    """A participation on its line: when each phase begins, and when the last ends.

    Attributes:
        line: of its client, from 0.
        edges_s: [phases + 1]; only the start where it is not known how long it took.
    """

    line: int
    edges_s: list[float]
    outcome: str
    is_struck: bool

    def reaches(self, last_s: float) -> float:
        """Return its end, or the end of what is shown."""
        return min(self.edges_s[-1], last_s)


def timeline(run: Run) -> Figure:
    """Draw the phases of each participation over the run's clock, a line per client.

    Where reading overlaps training, stall and compute alternate; they are drawn one after the
    other. Of long runs it shows the first rounds, and of many clients those most often selected.
    """
    rounds = [row for row in run.rounds if row["round"] > 0]
    shown = rounds[:MOST_ROUNDS]
    numbers = {row["round"] for row in shown}
    rows = [row for row in run.clients if row["round"] in numbers]
    everyone = Counter(row["client"] for row in rows)
    clients = sorted(sorted(everyone, key=lambda one: (-everyone[one], one))[:MOST_CLIENTS])
    bars = _bars(run, shown, rows, clients)
    last_s = shown[-1]["end_s"] if shown else 1.0
    figure, axes = one_panel(1.1 + _ROW_INCHES * max(len(clients), 3))
    scale, unit = time_unit(last_s)
    _phases(axes, bars, scale)
    signs = _signs(axes, bars, last_s, scale)
    ends = [row["end_s"] / scale for row in shown]
    axes.vlines(ends, -0.6, len(clients) - 0.4, color="#888888", linewidth=0.4, zorder=0)
    axes.set_yticks(range(len(clients)), list(map(str, clients)), fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.set(
        xlim=(0, 1.01 * last_s / scale), ylim=(max(len(clients), 1) - 0.4, -0.6),
        xlabel=f"{CLOCKS[run.clock]} ({unit}); thin lines are ends of rounds", ylabel="client",
        title=_left_out(len(shown), len(rounds), len(clients), len(everyone)),
    )  # fmt: skip
    swatches = [Patch(color=colour, label=label) for label, colour in PHASES.values()]
    figure.legend(
        handles=[*swatches, *signs], loc="outside upper center", ncols=7, handlelength=1,
        columnspacing=1.2,
    )  # fmt: skip
    return figure


def _bars(
    run: Run, rounds: Sequence[Row], rows: Iterable[Row], clients: Sequence[int]
) -> list[Bar]:
    """Return the participations of the clients shown."""
    by_number = {row["round"]: row for row in rounds}
    lines = {client: line for line, client in enumerate(clients)}
    cancels = run.experiment.rounds.late == "cancel"
    bars = []
    for row in (row for row in rows if row["client"] in lines):
        start_s, end_s = (by_number[row["round"]][key] for key in ("start_s", "end_s"))
        edges_s = [start_s]
        # When it left is not written down, so that how far it came is not known.
        if row["duration_s"] is not None and row["outcome"] != "left":
            for key in PHASES:
                took_s = stall_s(row) if key == "stall_s" else row[key]
                edges_s.append(edges_s[-1] + took_s)
            if row["outcome"] == "late" and cancels:
                edges_s = [min(edge_s, end_s) for edge_s in edges_s]
        struck = bool(row.get("faults"))
        bars.append(Bar(lines[row["client"]], edges_s, row["outcome"], struck))
    return bars


def _phases(axes: Axes, bars: Sequence[Bar], scale: float) -> None:
    """Draw each phase as one shape, so that files stay small; paler where it did not count."""
    whole = [bar for bar in bars if len(bar.edges_s) > 1]
    for counts in (True, False):
        for position, (_, colour) in enumerate(PHASES.values()):
            boxes = [
                _box(bar.line, *(edge_s / scale for edge_s in bar.edges_s[position : position + 2]))
                for bar in whole
                if (bar.outcome == "counted") == counts
            ]
            if boxes:
                outline = Outline.make_compound_path(*boxes)
                alpha = 1.0 if counts else 0.45
                axes.add_patch(PathPatch(outline, color=colour, alpha=alpha, linewidth=0))


def _box(line: int, left: float, right: float) -> Outline:
    low, high = line - _BAR / 2, line + _BAR / 2
    corners = [(left, low), (right, low), (right, high), (left, high), (left, low)]
    return Outline(corners, closed=True)


def _signs(axes: Axes, bars: Sequence[Bar], last_s: float, scale: float) -> list[Artist]:
    """Mark how participations ended, and what faults struck; returns what the legend says."""
    said: list[Artist] = []
    for outcome, (sign, filling, label) in SIGNS.items():
        places = [(bar.reaches(last_s), bar.line) for bar in bars if bar.outcome == outcome]
        said += _marked(axes, places, scale, (sign, filling, label))
    struck = [(bar.edges_s[0], bar.line - _BAR / 2) for bar in bars if bar.is_struck]
    said += _marked(axes, struck, scale, FAULT)
    return said


def _marked(
    axes: Axes, places: Sequence[tuple[float, float]], scale: float, sign: tuple[str, str, str]
) -> list[Line2D]:
    if not places:
        return []
    marker, filling, label = sign
    return axes.plot(
        [time_s / scale for time_s, _ in places], [line for _, line in places], marker,
        markersize=3.5, markerfacecolor=filling, markeredgecolor="black", markeredgewidth=0.6,
        label=label, clip_on=False, zorder=3,
    )  # fmt: skip


def _left_out(rounds: int, all_rounds: int, clients: int, all_clients: int) -> str:
    """Return a line about what is not shown, nothing if all is."""
    parts = []
    if rounds < all_rounds:
        parts.append(f"the first {rounds} of {all_rounds} rounds")
    if clients < all_clients:
        parts.append(f"{clients} of the {all_clients} clients in them, most often selected")
    return "; ".join(parts)
