"""Run folders: what may be written where, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedio.config import Experiment
from fedio.errors import InputError
from fedio.runs import RunFolder, dumps, find_runs, hash_arrays, read_run

EXPERIMENT = Experiment(name="x")


def finished(path: Path) -> RunFolder:
    folder = RunFolder.create(path, EXPERIMENT)
    folder.append_round({"round": 0, "accuracy": np.float64(0.5), "selected": np.arange(2)})
    folder.append_clients([{"client": np.int64(1), "utility": float("nan")}])
    folder.finish({"rounds": 0})
    return folder


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.experiment == EXPERIMENT
    assert run.rounds == [{"round": 0, "accuracy": 0.5, "selected": [0, 1]}]
    assert run.clients == [{"client": 1, "utility": None}]
    assert run.env["digest"] == EXPERIMENT.digest
    assert run.env["versions"]["flwr"].startswith("1.42")


def test_an_equal_experiment_replaces_the_run(tmp_path: Path) -> None:
    finished(tmp_path)
    folder = RunFolder.create(tmp_path, EXPERIMENT)
    with pytest.raises(InputError, match="did not finish"):
        read_run(tmp_path)
    folder.append_round({"round": 0})
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 1


def test_another_experiment_is_not_written_over(tmp_path: Path) -> None:
    finished(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = Experiment.model_validate({"name": "x", "training": {"lr": 0.3}})
    with pytest.raises(InputError, match=r"another experiment.*training\.lr"):
        RunFolder.create(tmp_path, other)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_other_peoples_files_and_plain_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no run"):
        RunFolder.create(tmp_path, EXPERIMENT)
    with pytest.raises(InputError, match="is a file"):
        RunFolder.create(tmp_path / "thesis.txt", EXPERIMENT)
    with pytest.raises(InputError, match="cannot write to"):
        RunFolder.create(tmp_path / "thesis.txt" / "run", EXPERIMENT)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_place_that_takes_no_folder_is_refused() -> None:
    with pytest.raises(InputError, match="cannot write to /proc/fedio"):
        RunFolder.create(Path("/proc/fedio"), EXPERIMENT)


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    finished(tmp_path / "b")
    finished(tmp_path / "a")
    assert [p.name for p in find_runs([tmp_path, tmp_path / "b"])] == ["a", "b"]
    with pytest.raises(InputError, match="no run in"):
        find_runs([tmp_path / "c"])


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / "rounds.jsonl").write_text('{"round": 0')
    with pytest.raises(InputError, match="damaged"):
        read_run(tmp_path)


def test_json_has_no_nan() -> None:
    assert json.loads(dumps({"a": [float("inf"), np.nan, np.array([1.5])]})) == {
        "a": [None, None, [1.5]]
    }


def test_the_model_hash_sees_names_shapes_types_and_values() -> None:
    base = {"w": np.zeros((2, 3), np.float32)}
    others = (
        {"v": np.zeros((2, 3), np.float32)},
        {"w": np.zeros((3, 2), np.float32)},
        {"w": np.zeros((2, 3), np.float64)},
        {"w": np.full((2, 3), 1e-45, np.float32)},
    )
    assert len({hash_arrays(arrays) for arrays in (base, *others)}) == 5
    assert hash_arrays(base) == hash_arrays({"w": np.zeros((3, 2), np.float32).reshape(2, 3)})
