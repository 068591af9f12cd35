"""A map: which runs its cells take, what is refused before any of them, what comes out."""

from __future__ import annotations

import json
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.cli import main
from experiments.mapping import print_map
from experiments.maps import map_json, plan
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.loading import load, with_values
from fedio.runs import SUMMARY_FILE, Run, read_run
from tests.experiments.synthetic_runs import round_row, write_run

MAP = """
[arms.three]
policy = "fifo"

[map.axes.share]
title = "Cache share"
question = "How large must caches be?"
regime = "policies matter where caches are small"
base = "70%"
cells = { "30%" = { "cache.share" = 0.3 }, "70%" = {} }

[map.axes.rounds]
title = "Rounds"
question = "How long must it run?"
regime = "none"
base = "5"
arms = ["one", "three"]
cells = { "5" = {}, "4" = { "rounds.rounds" = 4, "compare.target_accuracy" = 0.2 } }
"""


@pytest.fixture
def map_file(tiny_file: Path) -> Path:
    tiny_file.write_text(tiny_file.read_text() + 'arms = ["one", "two"]\n' + MAP)
    return tiny_file


def jobs_of(file: Path, out: Path, *axes: str, seeds: int | None = None) -> list[str]:
    made = plan(load(file), out, axes=axes, seeds=seeds)
    assert all(job.folder.parent.name == job.experiment.arm for job in made.jobs)
    return [str(job.folder.relative_to(out)) for job in made.jobs]


def test_cells_have_folders_and_the_one_that_changes_nothing_is_shared(
    map_file: Path, tmp_path: Path
) -> None:
    made = plan(load(map_file), tmp_path / "out", axes=(), seeds=2)
    first = [
        "base/one", "base/two", "base/three",
        "share/30%/one", "share/30%/two", "rounds/4/one", "rounds/4/three",
    ]  # fmt: skip
    found = [str(job.folder.relative_to(tmp_path / "out")) for job in made.jobs]
    assert found == [f"{arm}/seed-{seed}" for seed in (0, 1) for arm in first]
    experiments = {job.experiment.cell: job.experiment for job in made.jobs}
    assert list(experiments) == ["base", "share/30%", "rounds/4"]
    assert [one.cache.share for one in experiments.values()] == [0.7, 0.3, 0.7]
    assert [one.rounds.rounds for one in experiments.values()] == [5, 5, 4]
    assert len({job.name for job in made.jobs}) == len(made.jobs)
    assert made.jobs[3].name == "share/30%: one, seed 0"
    assert all(one.map == load(map_file).map for one in experiments.values())
    assert not (tmp_path / "out").exists()


def test_an_axis_alone_takes_its_own_cells_and_arms(map_file: Path, tmp_path: Path) -> None:
    assert jobs_of(map_file, tmp_path / "out", "rounds", "rounds") == [
        "base/one/seed-0",
        "base/three/seed-0",
        "rounds/4/one/seed-0",
        "rounds/4/three/seed-0",
    ]


def test_an_arm_has_its_seeds_in_every_cell(map_file: Path, tmp_path: Path) -> None:
    map_file.write_text(map_file.read_text().replace("[compare]", "[compare]\narm_seeds.three = 2"))
    assert jobs_of(map_file, tmp_path / "out")[-2:] == [
        "base/three/seed-1",
        "rounds/4/three/seed-1",
    ]
    assert len(jobs_of(map_file, tmp_path / "out", seeds=1)) == 7


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ('"a" = { "cache.shar" = 1 }', "did you mean 'share'?"),
        ('"a" = { "cache.share" = "much" }', "cache.share: "),
        ('"a" = { "rounds.cohort" = 7 }', "rounds.cohort is 7 but data.clients is 6"),
        ('"a" = { "name" = "x" }', "name cannot change in a cell; compare.target_accuracy can"),
        ('"a" = { "engine.clock" = "wall" }', "engine.clock cannot change in a cell"),
        ('"a" = { "seed" = 7 }', "seed cannot change in a cell"),
        ('"a" = { "fleet.profiles" = { phone = 1 } }', "fleet.profiles: unknown profile 'phone'"),
        ('"a" = { "compare.reference" = "two" }', "compare.reference cannot change in a cell"),
    ],
)
def test_what_a_cell_cannot_be_is_said_before_anything_runs(
    map_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cells: str, said: str
) -> None:
    out = tmp_path / "out"
    map_file.write_text(map_file.read_text().replace('"4" = {', f'{cells}, "4" = {{'))
    assert main(["map", str(map_file), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: map axis rounds, cell a: ")
    assert said in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smoke"], "smoke has no map"),
        (["FILE", "--axis", "shar"], "--axis: unknown axis 'shar': did you mean 'share'?"),
        (["FILE", "--set", "engine.clock=wall"], "engine.clock is wall"),
        (["FILE", "--set", "compare.reference=two"], "compare.reference is two"),
        (["FILE", "--set", "map.axes.base=map.axes.share"], "map.axes.base: it is a table"),
    ],
)
def test_wrong_input_is_one_line(
    map_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    out = tmp_path / "out"
    given = [str(map_file) if word == "FILE" else word for word in arguments]
    assert main(["map", *given, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")
    assert not out.exists()


@pytest.mark.parametrize("name", ["base", "map.toml", "report.md", "report"])
def test_no_axis_has_a_name_that_the_map_needs(map_file: Path, tmp_path: Path, name: str) -> None:
    map_file.write_text(map_file.read_text().replace("axes.share", f'axes."{name}"'))
    with pytest.raises(InputError, match=rf"map\.axes\.{name}: "):
        jobs_of(map_file, tmp_path / "out")


def test_an_axis_of_nothing_but_the_shared_cell_is_refused(map_file: Path, tmp_path: Path) -> None:
    text = map_file.read_text().replace('"30%" = { "cache.share" = 0.3 }, ', "")
    map_file.write_text(text)
    with pytest.raises(InputError, match=r"map\.axes\.share: it has only the cell"):
        jobs_of(map_file, tmp_path / "out")


@pytest.mark.parametrize("name", ["map.toml", "report.md"])
def test_figures_do_not_go_into_a_file_of_the_map(
    map_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert main(["map", str(map_file), "--out", str(out), "--json", str(out / name)]) == 2
    assert "is a file of the map itself" in capsys.readouterr().err


def test_a_map_keeps_out_of_folders_of_others_and_others_out_of_its_own(
    map_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared, mapped = tmp_path / "compared", tmp_path / "mapped"
    short = ["--set", "rounds.rounds=1"]
    assert main(["compare", str(map_file), *short, "--out", str(compared)]) == 0
    assert main(["map", str(map_file), *short, "--out", str(compared)]) == 2
    assert "holds no map" in capsys.readouterr().err
    assert main(["map", str(map_file), "--axis", "share", *short, "--out", str(mapped)]) == 0
    capsys.readouterr()
    assert main(["compare", str(map_file), *short, "--out", str(mapped)]) == 2
    assert "holds no comparison" in capsys.readouterr().err
    assert main(["map", str(map_file), "--set", "training.lr=0.2", "--out", str(mapped)]) == 2
    assert "holds another experiment" in capsys.readouterr().err


def test_a_map_runs_once_and_its_folders_tell_it_all(
    map_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", tmp_path / "figures.json"
    arguments = ["map", str(map_file), "--out", str(out), "--json", str(file)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "share/30%: one, seed 0: 5 rounds done" in captured.err
    assert "rounds/4: three, seed 0: 4 rounds done" in captured.err
    found = json.loads(file.read_text())
    assert (found["schema"], found["preset"], found["reference"]) == (1, "tiny", "one")
    share, rounds = found["axes"]
    assert share["regime"] == "policies matter where caches are small"
    told = [
        (axis["name"], cell["name"], [arm["name"] for arm in cell["arms"]])
        for axis in found["axes"]
        for cell in axis["cells"]
    ]
    assert told == [
        ("share", "30%", ["one", "two"]),
        ("share", "70%", ["one", "two"]),
        ("rounds", "5", ["one", "three"]),
        ("rounds", "4", ["one", "three"]),
    ]
    assert share["cells"][1]["arms"][0] == rounds["cells"][0]["arms"][0]
    assert share["cells"][0]["changes"] == {"cache.share": 0.3}
    assert share["cells"][0]["setting"]["cache"]["share"] == 0.3
    assert [cell["target_accuracy"] for cell in rounds["cells"]] == [0.1, 0.2]

    folders = sorted(path.parent for path in out.rglob(SUMMARY_FILE))
    assert len(folders) == 7
    assert map_json(map(read_run, folders)) == found

    made = [(folder / SUMMARY_FILE).stat().st_mtime_ns for folder in folders]
    assert main(arguments) == 0
    again = capsys.readouterr()
    assert "7 of 7 runs are there already" in again.err
    assert again.out == captured.out
    assert [(folder / SUMMARY_FILE).stat().st_mtime_ns for folder in folders] == made
    assert main([*arguments, "--set", "compare.target_accuracy=0.99"]) == 0
    cells = json.loads(file.read_text())["axes"][1]["cells"]
    assert [cell["target_accuracy"] for cell in cells] == [0.99, 0.2]


@pytest.mark.slow
def test_any_number_of_jobs_makes_the_same_figures(map_file: Path, tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        out = ["--out", str(tmp_path / jobs), "--json", str(file)]
        assert main(["map", str(map_file), "--jobs", jobs, *out]) == 0
        axes = json.loads(file.read_text())["axes"]
        found.append([cell["arms"] for axis in axes for cell in axis["cells"]])
    assert found[0] == found[1]


def made_up(folder: Path, cell: str, seconds: float, **changes: Any) -> Run:
    """Return a run in a cell, whose three evaluations are at the target from `seconds` on."""
    values = {
        "name": "made-up",
        "arm": changes.pop("arm", "a"),
        "arms": {"a": {}, "b": {}},
        "compare": {"reference": "a", "target_accuracy": 0.5},
        "map": {"axes": {"x": changes.pop("axis")}},
        "cell": cell,
        "rounds": {"cohort": 2, "rounds": 5},
        "data": {"clients": 4},
    } | changes
    rows = [round_row(0, 0.0, 0.1)]
    rows += [round_row(number, seconds + number - 1, 0.6) for number in (1, 2, 3)]
    experiment = Experiment.model_validate(values)
    return read_run(write_run(folder / cell / experiment.arm, experiment, rows))


def axis_of(*cells: str) -> dict[str, Any]:
    return {
        "title": "T", "question": "Q?", "regime": "R", "base": "one",
        "cells": {cell: {} if cell == "one" else {"cache.share": 0.1} for cell in cells},
    }  # fmt: skip


def test_a_map_that_grew_has_the_order_and_words_of_the_fuller(tmp_path: Path) -> None:
    old, new = axis_of("one", "four"), axis_of("one", "two", "four") | {"regime": "new"}
    runs = [
        made_up(tmp_path, "base", 1.0, axis=old),
        made_up(tmp_path, "x/four", 1.0, axis=old),
        made_up(tmp_path, "x/two", 1.0, axis=new),
    ]
    (axis,) = map_json(runs)["axes"]
    assert [cell["name"] for cell in axis["cells"]] == ["one", "two", "four"]
    assert axis["regime"] == "new"
    (axis,) = map_json(runs[:2])["axes"]
    assert [cell["name"] for cell in axis["cells"]] == ["one", "four"]


def test_the_table_has_speedups_and_the_time_of_the_reference(tmp_path: Path) -> None:
    axis = axis_of("one", "two")
    runs = [
        made_up(tmp_path, "base", 600.0, axis=axis),
        made_up(tmp_path, "base", 400.0, axis=axis, arm="b"),
        made_up(tmp_path, "x/two", 30.0, axis=axis),
    ]
    for width, headings in ((80, 1), (20, 2)):
        file = StringIO()
        print_map(Console(file=file, width=width), map_json(runs))
        lines = [line.split() for line in file.getvalue().splitlines()]
        assert lines[:2] == [["x:", "T"], ["Q?"]]
        assert sum(line[:1] == ["arm"] for line in lines) == headings
        arms = [line[1:] for line in lines if line[:1] == ["b"]]
        assert arms == ([["1.50", "-"]] if headings == 1 else [["1.50"], ["-"]])
        times = [line[1:] for line in lines if line[:1] == ["a"]]
        assert list(chain(*times)) == ["600", "s", "30.00", "s"]


def test_runs_of_no_map_are_named(tmp_path: Path) -> None:
    run = made_up(tmp_path, "", 1.0, axis=axis_of("one"))
    with pytest.raises(InputError, match="is none of a map"):
        map_json([run])
    with pytest.raises(InputError, match="no runs"):
        map_json([])


def test_a_cell_is_the_experiment_with_other_values(map_file: Path, tmp_path: Path) -> None:
    experiment = load(map_file)
    (job, *_) = [
        job
        for job in plan(experiment, tmp_path / "out", axes=["share"], seeds=None).jobs
        if job.experiment.cell != "base"
    ]
    alone = with_values(experiment, {"cache.share": 0.3}).for_arm("one")
    assert job.experiment.digest == alone.digest
