"""The virtual clock's error: worked out by hand, with what is left out counted apart."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from experiments import clock_plot
from experiments.clock_error import COMPONENTS, clock_error, is_behind
from experiments.figures import compare_json
from experiments.table import print_table
from fedio.runs import Row, Run, read_run
from tests.experiments.synthetic_runs import (
    client_row,
    experiment,
    round_row,
    wall_row,
    write_emulated,
    write_run,
)


def emulated(path: Path, clients: list[Row]) -> Run:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 20.0, 0.5)]
    config = experiment(clients=40, engine={"clock": "wall"})
    return read_run(write_run(path, config, rounds, clients))


def test_errors_are_shares_of_the_measured_duration(tmp_path: Path) -> None:
    one = wall_row(
        1,
        0,
        virtual_compute_s=7.0,
        virtual_origin_s=1.5,
        virtual_decode_s=1.25,
        virtual_upload_s=0.75,
        virtual_stall_s=2.0,
        virtual_duration_s=10.75,
    )
    other = wall_row(1, 1, virtual_compute_s=5.9, virtual_duration_s=9.9, device="board")
    found = clock_error([emulated(tmp_path / "run", [one, other])])
    assert found is not None
    errors = {name: (one["bias"], one["mean"]) for name, one in found["components"].items()}
    assert errors == {
        "compute": pytest.approx(((0.1 - 0.01) / 2, (0.1 + 0.01) / 2)),
        "io": pytest.approx((-0.025 / 2, 0.025 / 2)),  # 0.5 s less origin, 0.25 s more decoding
        "network": pytest.approx((-0.025 / 2, 0.025 / 2)),
        "stall": pytest.approx((0.0, 0.0)),
        "total": pytest.approx(((0.075 - 0.01) / 2, (0.075 + 0.01) / 2)),
    }
    shares = {name: one["share"] for name, one in found["components"].items()}
    assert shares == pytest.approx(
        {"compute": 0.6, "io": 0.4, "network": 0.2, "stall": 0.2, "total": 1.0}
    )
    assert list(found["devices"]) == ["board", "phone-mid"]
    assert found["devices"]["board"]["components"]["compute"]["median"] == pytest.approx(0.01)


def test_median_and_95th_percentile_are_over_participations(tmp_path: Path) -> None:
    rows = [wall_row(1, client, error=client / 100) for client in range(21)]
    found = clock_error([emulated(tmp_path / "run", rows)])
    assert found is not None
    total = found["components"]["total"]
    assert (total["median"], total["p95"]) == pytest.approx((0.10, 0.19))


def test_what_the_clock_cannot_foresee_is_counted_apart(tmp_path: Path) -> None:
    rows = [
        wall_row(1, 0, error=0.01, faults=[]),
        wall_row(1, 1, error=0.01, behind_s=0.5),  # exactly the 5 % that still keep up
        wall_row(1, 2, error=0.9, behind_s=0.6),
        wall_row(1, 3, error=0.9, faults=["stop"], behind_s=9.0),
        wall_row(1, 4, "failed", faults=["kill"]),
        wall_row(1, 5, "late", error=0.01),
    ]
    found = clock_error([emulated(tmp_path / "run", rows)])
    assert found is not None
    counts = (found["participations"], found["cannot_keep_up"], found["faults"])
    assert counts == (5, 1, 1)
    assert found["components"]["total"]["p95"] == pytest.approx(0.01)


def test_no_error_where_there_is_one_clock_only_or_nothing_to_judge(tmp_path: Path) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 20.0, 0.5)]
    virtual = write_run(
        tmp_path / "virtual", experiment(), rounds, [client_row(1, 0, duration_s=9.0)]
    )
    assert clock_error([read_run(virtual)]) is None
    assert not is_behind(client_row(1, 0, duration_s=9.0))
    slow = emulated(tmp_path / "slow", [wall_row(1, 0, behind_s=5.0)])
    found = clock_error([slow])
    assert found is not None
    assert found["components"] is None
    text = io.StringIO()
    print_table(Console(width=80, file=text), compare_json([slow]))
    assert re.search(r"phone-mid +1 +1 +0 +- +- +- +- +-", text.getvalue())


def test_table_beside_the_comparison(tmp_path: Path) -> None:
    run = emulated(
        tmp_path / "run", [wall_row(1, 0, error=0.1), wall_row(1, 1, error=0.05, behind_s=2.0)]
    )
    comparison = compare_json([run])
    assert comparison["clock_error"] == clock_error([run])
    text = io.StringIO()
    print_table(Console(width=80, file=text), comparison)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines]
    for cells in (
        "compute 60.0% 6.0% 6.0% 6.0% 6.0%",
        "phone-mid 2 1 0 6.0/6.0 4.0/4.0 2.0/2.0 2.0/2.0 10.0/10.0",
    ):
        assert cells.split() in rows
    said = " ".join(" ".join(lines).split())
    assert "Of 2 participations 1 count: with 1 the host could not keep up" in said


def test_scatter_shows_each_participation_and_hollow_ones(tmp_path: Path) -> None:
    rows = [
        wall_row(1, 0, error=0.1),
        wall_row(1, 1, error=0.2, device="board"),
        wall_row(1, 2, error=0.3, behind_s=2.0),
        wall_row(1, 3, error=0.4, faults=["stop"]),
    ]
    figure = clock_plot.clock_error([emulated(tmp_path / "run", rows)])
    *panels, legend = figure.axes
    assert [axes.get_title() for axes in panels] == ["compute", "I/O", "network", "stall", "total"]
    assert len(panels) == len(COMPONENTS)
    dots, hollow = [], []
    for line in panels[0].lines[:-1]:
        into = hollow if line.get_markerfacecolor() == "none" else dots
        into += [tuple(map(float, point)) for point in np.atleast_2d(line.get_xydata())]
    assert np.allclose(sorted(dots), [(6.0, 6.6), (6.0, 7.2)])
    assert np.allclose(hollow, [(6.0, 7.8)])
    diagonal = panels[0].lines[-1].get_xydata()
    assert np.array_equal(diagonal[:, 0], diagonal[:, 1])
    said = legend.get_legend()
    assert said is not None
    assert [text.get_text() for text in said.get_texts()] == [
        "board", "phone-mid", "host could not keep up",
    ]  # fmt: skip


def test_a_run_in_which_everything_happens(tmp_path: Path) -> None:
    found = clock_error([read_run(write_emulated(tmp_path / "run"))])
    assert found is not None
    left_out = found["cannot_keep_up"] + found["faults"]
    assert 0 < left_out < found["participations"]
    for key in ("participations", "cannot_keep_up", "faults"):
        assert sum(one[key] for one in found["devices"].values()) == found[key]
