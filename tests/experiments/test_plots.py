"""Plots show the numbers of the runs, and equal runs give equal files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch, Rectangle

from experiments import plots
from experiments.drawing import PHASES
from experiments.figures import compare_json, group_by_arm
from fedio.errors import InputError
from fedio.runs import Run, read_run
from tests.experiments.synthetic_runs import (
    client_row,
    draw_run,
    experiment,
    round_row,
    write_emulated,
    write_run,
)


@pytest.fixture
def drawn(tmp_path: Path) -> list[Run]:
    return [
        read_run(draw_run(tmp_path / f"{arm}-{seed}", arm, seed, rounds=6, clients=12, cohort=3))
        for arm in ("uniform+lru", "oort+static")
        for seed in (0, 1)
    ]


def evaluated(path: Path, seed: int, rounds: list[tuple[float, float | None]]) -> Run:
    rows = [round_row(r, end_s, accuracy) for r, (end_s, accuracy) in enumerate(rounds)]
    return read_run(write_run(path, experiment(seed=seed), rows))


def test_plots_as_png_and_svg(drawn: list[Run], tmp_path: Path) -> None:
    files = plots.write(drawn, tmp_path / "new" / "plots", compare_json(drawn, 0.3))
    timelines = ("timeline-uniform+lru", "timeline-oort+static")
    kinds = ("speedups", "accuracy", "phases", "hits", "selection", *timelines)
    names = [f"{name}.{end}" for name in kinds for end in ("png", "svg")]
    assert [file.name for file in files] == names
    for file in files:
        start = b"\x89PNG" if file.suffix == ".png" else b"<?xml"
        assert file.read_bytes().startswith(start)


def test_files_are_equal_when_drawn_again_and_settings_stay(
    drawn: list[Run], tmp_path: Path
) -> None:
    before = dict(mpl.rcParams)
    comparison = compare_json(drawn, 0.3)
    first = plots.write(drawn, tmp_path / "first", comparison)
    second = plots.write(drawn, tmp_path / "second", comparison)
    assert [one.read_bytes() for one in first] == [one.read_bytes() for one in second]
    assert dict(mpl.rcParams) == before


def test_accuracy_is_a_mean_of_steps_over_virtual_time(tmp_path: Path) -> None:
    runs = [
        evaluated(tmp_path / "0", 0, [(0, 0.1), (10, 0.3), (20, 0.5), (30, 0.5), (40, 0.5)]),
        evaluated(tmp_path / "1", 1, [(0, 0.1), (20, None), (40, 0.7), (50, 0.7), (60, 0.7)]),
    ]
    figure = plots.accuracy(group_by_arm(runs), target=0.5)
    axes = figure.axes[0]
    line, dot = axes.lines[0], axes.lines[1]
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == [0, 10, 20, 30, 40]  # where both seeds still ran
    assert line.get_ydata() == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.6])
    assert dot.get_xydata()[0] == pytest.approx([np.sqrt(20 * 40), 0.5])
    assert axes.get_xlabel() == "virtual time (s)"


def test_unreached_target_has_no_dot_and_unevaluated_runs_no_line(tmp_path: Path) -> None:
    never = evaluated(tmp_path / "0", 0, [(0, 0.1), (10, 0.2)])
    assert len(plots.accuracy(group_by_arm([never]), target=0.5).axes[0].lines) == 2
    blind = evaluated(tmp_path / "1", 0, [(0, None), (10, None)])
    assert len(plots.accuracy(group_by_arm([blind]), target=0.5).axes[0].lines) == 1


@pytest.mark.parametrize("arms", [2, 8, 9, 17])
def test_many_names_stand_above_the_plot(tmp_path: Path, arms: int) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 10.0, 0.2)]
    configs = [experiment(f"arm-{number}") for number in range(arms)]
    runs = [read_run(write_run(tmp_path / one.arm, one, rounds)) for one in configs]
    for figure in (plots.accuracy(group_by_arm(runs), 0.5), plots.selection(group_by_arm(runs))):
        within, above = figure.axes[0].get_legend(), figure.legends
        assert (within is None, len(above)) == ((True, 1) if arms > 8 else (False, 0))
        legend = above[0] if above else within
        assert legend is not None
        assert len(legend.get_texts()) == arms


def test_phases_are_means_of_the_counted_and_add_up(tmp_path: Path) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 30.0, 0.2)]
    clients = [
        client_row(1, 0, download_s=1.0, stall_s=2.0, compute_s=6.0, upload_s=1.0, duration_s=10.0,
                   origin_s=4.0, decode_s=3.0),
        client_row(1, 1, download_s=3.0, stall_s=6.0, compute_s=2.0, upload_s=3.0, duration_s=14.0,
                   origin_s=8.0, cache_s=1.0, write_s=2.0),
        client_row(1, 2, "late", stall_s=1000.0, origin_s=1000.0),
        client_row(1, 3, "failed"),
    ]  # fmt: skip
    run = read_run(write_run(tmp_path / "run", experiment(), rounds, clients))
    figure = plots.phases(group_by_arm([run]))
    axes = figure.axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    thick, thin = bars[:4], bars[4:]
    assert [bar.get_width() for bar in thick] == [2.0, 4.0, 4.0, 2.0]
    assert [bar.get_x() for bar in thick] == [0.0, 2.0, 6.0, 10.0]
    # What is busy meanwhile begins where local training does.
    assert [bar.get_width() for bar in thin] == [6.0, 0.5, 1.5, 1.0]
    assert [bar.get_x() for bar in thin] == [2.0, 8.0, 8.5, 10.0]
    assert min(bar.get_height() for bar in thick) > 2 * max(bar.get_height() for bar in thin)
    assert min(bar.get_y() for bar in thin) > max(bar.get_y() + bar.get_height() for bar in thick)
    assert axes.texts[0].get_text() == "12.0 s  (round 30.0 s)"
    assert axes.get_xlim()[1] > 12
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[::2] == ["duration:", "download", "stall", "compute", "upload"]
    assert legend[1::2] == ["busy:", "origin read", "cache read", "decode", "cache write"]


def test_phases_of_runs_that_did_not_tell_stalls_add_up_too(tmp_path: Path) -> None:
    row = client_row(1, 0, download_s=1.0, origin_s=4.0, write_s=1.0, compute_s=2.0, duration_s=8.0)
    del row["stall_s"]
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 30.0, 0.2)]
    run = read_run(write_run(tmp_path / "run", experiment(), rounds, [row]))
    axes = plots.phases(group_by_arm([run])).axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [bar.get_width() for bar in bars[:4]] == [1.0, 5.0, 2.0, 0.0]


def test_hits_are_shares_of_requests_by_round(tmp_path: Path) -> None:
    rounds = [round_row(r, 10.0 * r, 0.1) for r in range(4)]
    clients = [
        client_row(1, 0, requests=10, hits=0, misses=10),
        client_row(3, 0, requests=10, hits=6, staged=2, misses=4),
        client_row(3, 1, "late", requests=10, hits=1, substituted=1, misses=8),
        client_row(3, 2, "failed"),
    ]
    run = read_run(write_run(tmp_path / "run", experiment(), rounds, clients))
    figure = plots.hits(group_by_arm([run]))
    demand, staged, substituted, misses = (
        area for area in figure.axes[0].collections if isinstance(area, PolyCollection)
    )
    # Demand hits: none in round 1, a gap in round 2 where nobody asked, 5 of 20 in round 3.
    assert _tops(demand) == {1: 0.0, 3: 0.25}
    assert _tops(staged) == {1: 0.0, 3: 0.35}
    assert _tops(substituted) == {1: 0.0, 3: 0.4}
    assert _tops(misses) == {1: 1.0, 3: 1.0}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["demand hits", "staged hits", "substituted", "misses"]


def _tops(area: PolyCollection) -> dict[int, float]:
    """Return the upper edge of an area in each round that it covers."""
    tops: dict[int, float] = {}
    for path in area.get_paths():
        corners = path.vertices
        for server_round in range(1, 4):
            inside = corners[np.abs(corners[:, 0] - server_round) <= 0.5]
            edges = {server_round - 0.5, server_round + 0.5}
            if edges <= set(inside[:, 0]):
                tops[server_round] = pytest.approx(inside[inside[:, 0] == min(edges), 1].max())
    return tops


def test_selection_is_sorted_by_how_often(tmp_path: Path) -> None:
    rounds = [
        round_row(0, 0.0, 0.1),
        round_row(1, 1.0, 0.1, selected=[2, 0]),
        round_row(2, 2.0, 0.1, selected=[2, 3]),
        round_row(3, 3.0, 0.1, selected=[2, 3]),
    ]
    run = read_run(write_run(tmp_path / "run", experiment(), rounds))
    line = plots.selection(group_by_arm([run])).axes[0].lines[0]
    assert list(line.get_ydata()) == [3, 2, 1, 0, 0]  # the last closes the step
    assert line.get_label() == "uniform+lru: 75.0% of clients, Jain 0.64"  # 36 / (4 * 14)


def segments(axes: Axes) -> list[list[tuple[float, float, float]]]:
    """Return (line, from, to) of the boxes of each shape, in the order in which they were drawn."""
    shapes = []
    for patch in axes.patches:
        assert isinstance(patch, PathPatch)
        corners = patch.get_path().vertices.reshape(-1, 5, 2)
        shapes.append(
            [
                (float(box[:, 1].mean().round()), float(box[:, 0].min()), float(box[:, 0].max()))
                for box in corners
            ]
        )
    return shapes


def marks(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()]
        for line in axes.lines
    }


def test_a_timeline_has_each_phase_from_the_start_of_the_round(tmp_path: Path) -> None:
    rounds = [
        round_row(0, 0.0, 0.1),
        round_row(1, 10.0, 0.2, selected=[3, 5, 8], counted=[3], late=[5], failed=[8]),
        round_row(2, 30.0, 0.3, start_s=10.0, selected=[3], counted=[3]),
    ]
    took = {"download_s": 1.0, "stall_s": 2.0, "compute_s": 3.0, "upload_s": 4.0}
    clients = [
        client_row(1, 3, duration_s=10.0, **took),
        client_row(1, 5, "late", duration_s=20.0, **{key: 2 * took[key] for key in took}),
        client_row(1, 8, "failed", faults=["kill"]),
        client_row(2, 3, duration_s=10.0, faults=[], **took),
    ]
    run = read_run(write_run(tmp_path / "run", experiment(clients=9), rounds, clients))
    axes = plots.timeline(run).axes[0]
    counted, late = segments(axes)[:4], segments(axes)[4:]
    assert counted == [
        [(0, 0, 1), (0, 10, 11)], [(0, 1, 3), (0, 11, 13)],
        [(0, 3, 6), (0, 13, 16)], [(0, 6, 10), (0, 16, 20)],
    ]  # fmt: skip
    assert late == [[(1, 0, 2)], [(1, 2, 6)], [(1, 6, 12)], [(1, 12, 20)]]
    colours = [patch.get_facecolor()[:3] for patch in axes.patches]
    assert colours == [to_rgb(colour) for _, colour in PHASES.values()] * 2
    assert axes.patches[4].get_alpha() < axes.patches[0].get_alpha()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["3", "5", "8"]
    found = marks(axes)
    assert set(found) == {"late", "failed", "fault"}
    assert (found["late"], found["failed"]) == ([(20, 1)], [(0, 2)])
    (struck,) = found["fault"]
    assert struck[0] == 0
    assert 1.5 < struck[1] < 2
    (ends,) = (one for one in axes.collections if isinstance(one, LineCollection))
    assert [segment[0][0] for segment in ends.get_segments()] == [10, 30]
    assert axes.get_xlabel().startswith("virtual time (s)")
    assert axes.get_title() == ""


def test_who_is_told_to_cancel_ends_with_the_round_and_who_left_at_no_known_time(
    tmp_path: Path,
) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 10.0, 0.2, late=[0], left=[1])]
    took = {"compute_s": 25.0, "duration_s": 25.0}
    clients = [client_row(1, 0, "late", **took), client_row(1, 1, "left", **took)]
    config = experiment(rounds={"cohort": 2, "rounds": 5, "late": "cancel"})
    axes = plots.timeline(read_run(write_run(tmp_path / "run", config, rounds, clients))).axes[0]
    assert segments(axes)[2] == [(0, 0, 10)]
    assert marks(axes) == {"late": [(10, 0)], "left": [(0, 1)]}


def test_long_timelines_are_cut_to_what_is_readable_and_say_so(tmp_path: Path) -> None:
    shape = {"rounds": 35, "clients": 60, "cohort": 10}
    run = read_run(draw_run(tmp_path / "run", "uniform+lru", 0, **shape))
    axes = plots.timeline(run).axes[0]
    shown = [int(text.get_text()) for text in axes.get_yticklabels()]
    first = [row for row in run.clients if row["round"] <= 30]
    times = Counter(row["client"] for row in first)
    assert len(shown) == 40
    assert shown == sorted(shown)
    assert min(times[client] for client in shown) >= max(
        times[client] for client in times if client not in shown
    )
    assert axes.get_title() == (
        f"the first 30 of 35 rounds; 40 of the {len(times)} clients in them, most often selected"
    )
    (ends,) = (one for one in axes.collections if isinstance(one, LineCollection))
    assert len(ends.get_segments()) == 30
    assert axes.get_xlim()[1] < 1.05 * run.rounds[30]["end_s"] / 60


def test_a_run_in_which_nobody_trained_has_a_timeline_too(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", experiment(), [round_row(0, 0.0, 0.1)]))
    assert len(plots.timeline(run).axes[0].patches) == 0


def test_seconds_of_devices_are_called_so(tmp_path: Path) -> None:
    run = read_run(write_emulated(tmp_path / "run"))
    arms = group_by_arm([run])
    for figure in (plots.accuracy(arms, 0.5), plots.phases(arms), plots.timeline(run)):
        assert figure.axes[0].get_xlabel().startswith("device time")
    drawn_twice = [
        plots.write([run], tmp_path / name, compare_json([run])) for name in ("first", "second")
    ]
    assert "clock-error.svg" in {file.name for file in drawn_twice[0]}
    first, second = ([file.read_bytes() for file in files] for files in drawn_twice)
    assert first == second


def test_a_folder_that_cannot_be_written(drawn: list[Run], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another --out"):
        plots.write(drawn, tmp_path / "file", compare_json(drawn))
