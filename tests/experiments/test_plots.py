"""Plots show the numbers of the runs, and equal runs give equal files."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from experiments import plots
from experiments.figures import group_by_arm
from fedio.errors import InputError
from fedio.runs import Run, read_run
from tests.experiments.synthetic_runs import (
    client_row,
    draw_run,
    experiment,
    round_row,
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


def test_four_plots_as_png_and_svg(drawn: list[Run], tmp_path: Path) -> None:
    files = plots.write(drawn, tmp_path / "new" / "plots", target=0.3)
    names = [f"{name}.{end}" for name in ("accuracy", "phases", "hits", "selection")
             for end in ("png", "svg")]  # fmt: skip
    assert [file.name for file in files] == names
    for file in files:
        start = b"\x89PNG" if file.suffix == ".png" else b"<?xml"
        assert file.read_bytes().startswith(start)


def test_files_are_equal_when_drawn_again_and_settings_stay(
    drawn: list[Run], tmp_path: Path
) -> None:
    before = dict(mpl.rcParams)
    first = plots.write(drawn, tmp_path / "first", target=0.3)
    second = plots.write(drawn, tmp_path / "second", target=0.3)
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


def test_a_folder_that_cannot_be_written(drawn: list[Run], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another --out"):
        plots.write(drawn, tmp_path / "file")
