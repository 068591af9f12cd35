"""Plots of speed-ups: of a comparison, of the axes of a map, against I/O : compute."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from experiments import map_plots
from experiments.maps import map_json
from experiments.ratio_marks import ratio_axis, ticks
from experiments.speedup_plot import UNKNOWN, has_speedups, speedups
from fedio.runs import Row, find_runs, read_run
from tests.experiments.synthetic_runs import write_map


def arm(name: str, kind: str = "arm", *span: float | None, bound: str | None = None) -> Row:
    ratio, low, high = span or (None, None, None)
    return {
        "name": name, "kind": kind, "speedup": ratio, "speedup_low": low, "speedup_high": high,
        "speedup_bound": bound,
    }  # fmt: skip


COMPARISON: Row = {
    "reference": "ref",
    "arms": [
        arm("ref", "arm", 1.0, 1.0, 1.0),
        arm("warm", "bound", 4.0, 3.0, 5.0),
        arm("slower", "arm", 0.8, None, 0.9, bound="at most"),
        arm("half", "control", 1.3, None, None),
        arm("never"),
        arm("least", "arm", 2.0, 1.5, None, bound="at least"),
    ],
}


def dots(axes: Axes) -> list[tuple[float, float, str]]:
    """Return the place and the sign of each dot."""
    return [
        (*map(float, box.lines[0].get_xydata()[0]), box.lines[0].get_marker())
        for box in axes.containers
    ]


def whiskers(axes: Axes, along: int) -> list[tuple[float, float]]:
    """Return the ends of each interval."""
    found = []
    for box in axes.containers:
        (segment,) = box.lines[2][0].get_segments()
        found.append((float(segment[0][along]), float(segment[1][along])))
    return found


def names_at(axes: Axes) -> dict[float, str]:
    places = axes.get_yticks()
    return dict(zip(places, (one.get_text() for one in axes.get_yticklabels()), strict=True))


def test_each_arm_has_a_row_with_its_interval_and_kinds_are_apart() -> None:
    axes = speedups(COMPARISON).axes[0]
    rows = names_at(axes)
    assert list(rows.values()) == ["ref", "slower", "never", "least", "half", "warm"]
    drawn = {rows[y]: (x, sign) for x, y, sign in dots(axes)}
    assert drawn == {
        "ref": (1.0, "o"), "slower": (0.8, "<"), "least": (2.0, ">"), "half": (1.3, "o"),
        "warm": (4.0, "o"),
    }  # fmt: skip
    ends = [(1.0, 1.0), (0.8, 0.9), (1.5, 2.0), (1.3, 1.3), (3.0, 5.0)]
    assert np.allclose(whiskers(axes, 0), ends)
    places = list(rows)
    assert places[4] - places[3] == places[5] - places[4] == 2  # a heading between kinds
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    assert low < 0.8
    assert high > 5.0
    texts = {text.get_text(): text.xy[1] for text in axes.texts}  # type: ignore[attr-defined]
    assert {"arms", "controls", "bounds"} < set(texts)
    assert rows[texts[UNKNOWN]] == "never"


def test_it_is_drawn_where_an_arm_has_a_speedup_over_another() -> None:
    assert has_speedups(COMPARISON)
    alone = COMPARISON | {"arms": COMPARISON["arms"][:1]}
    assert not has_speedups(alone)
    unknown = COMPARISON | {"arms": [COMPARISON["arms"][0], arm("never")]}
    assert not has_speedups(unknown)


@pytest.mark.parametrize(
    ("low", "high"), [(0.98, 1.03), (0.5, 1.4), (0.9, 3.9), (0.8, 5.0), (0.01, 8.0), (1e-3, 1e4)]
)
def test_ticks_are_a_few_round_numbers(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 3 <= len(found) <= 10
    assert all(low <= tick <= high for tick in found)
    assert all(len(f"{tick:g}".replace(".", "").strip("0")) <= 3 for tick in found)


def test_an_axis_of_ratios_has_room_for_all_and_for_1() -> None:
    axes = speedups(COMPARISON).axes[0]
    ratio_axis(axes, "x", [2.0, 3.0])
    low, high = axes.get_xlim()
    assert low < 1
    assert high > 3
    assert [text.get_text() for text in axes.get_xticklabels()][:1] == ["1"]


@pytest.fixture
def figures(tmp_path: Path) -> Row:
    runs = [read_run(path) for path in find_runs([write_map(tmp_path / "map")])]
    return map_json(runs)


def test_an_axis_has_its_cells_in_order_and_what_was_measured_below(figures: Row) -> None:
    axes = map_plots.axis(figures["axes"][0]).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2 MB\n1.00", "8 MB\n4.00"]
    (line,) = (line for line in axes.lines if line.get_linewidth() == 0.9)
    # Seeds take 1 and 1.1 times: 1.5 and 2 over the root of 1.1.
    expected = [1.5 / math.sqrt(1.1), 2.0 / math.sqrt(1.1)]
    assert list(line.get_ydata()) == pytest.approx(expected)
    assert [y for _, y, _ in dots(axes)] == pytest.approx(expected)
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "speed-up over slow"


def test_bounds_point_up_and_down(figures: Row) -> None:
    axes = map_plots.axis(figures["axes"][1]).axes[0]
    (small, _), (_, _) = whiskers(axes, 1)
    ((_, ratio, sign), (_, _, plain)) = dots(axes)
    assert (sign, plain) == ("v", "o")
    assert small == pytest.approx(ratio)


def test_ratios_are_of_the_axes_that_move_them(figures: Row) -> None:
    axes = map_plots.ratios(figures).axes[0]
    assert [x for x, _, _ in dots(axes)] == [1.0, 4.0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend == ["fast", "Size of samples"]


def test_a_cell_that_axes_share_is_drawn_once(figures: Row) -> None:
    also: dict[str, Any] = deepcopy(figures["axes"][0]) | {"title": "Again"}
    also["cells"][1]["io_to_compute"] = 3.0
    twice = figures | {"axes": [figures["axes"][0], also]}
    assert [x for x, _, _ in dots(map_plots.ratios(twice).axes[0])] == [1.0, 4.0, 3.0]


def test_plots_are_those_that_have_something_to_show(figures: Row) -> None:
    assert list(map_plots.comparing(figures)) == ["axis-size", "axis-cache", "io-to-compute"]
    still = figures | {"axes": figures["axes"][1:]}
    assert list(map_plots.comparing(still)) == ["axis-cache"]
    for cell in still["axes"][0]["cells"]:
        for row in cell["arms"]:
            row["speedup"] = None
    assert list(map_plots.comparing(still)) == []
