"""Run folders: what may be written where, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedio.config import Experiment
from fedio.errors import InputError, RunError
from fedio.output import dumps, reserved, write_text
from fedio.runs import TRACE_FILE, RunFolder, find_runs, hash_arrays, read_run
from fedio.traces import not_recorded

EXPERIMENT = Experiment(name="x")
SUMMARY = {
    "rounds": 1,
    "virtual_s": 2.0,
    "io_to_compute": 1.0,
    "holdout": {"accuracy": [None] * 10, "samples": [0] * 10},
}


def finished(path: Path) -> RunFolder:
    folder = RunFolder.create(path, EXPERIMENT)
    folder.append_round({"round": 0, "accuracy": np.float64(0.5), "selected": []})
    folder.append_round({"round": 1, "accuracy": None, "selected": np.arange(1, 2)})
    folder.append_clients([{"round": 1, "client": np.int64(1), "utility": float("nan")}])
    folder.finish(SUMMARY)
    return folder


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.experiment == EXPERIMENT
    assert run.rounds == [
        {"round": 0, "accuracy": 0.5, "selected": []},
        {"round": 1, "accuracy": None, "selected": [1]},
    ]
    assert run.clients == [{"round": 1, "client": 1, "utility": None}]
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
    with pytest.raises(InputError, match="no finished run in"):
        find_runs([tmp_path / "c"])


def test_unfinished_runs_below_a_folder_are_left_out_and_alone_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished(tmp_path / "a")
    RunFolder.create(tmp_path / "b", EXPERIMENT)
    assert [p.name for p in find_runs([tmp_path])] == ["a"]
    assert "1 unfinished runs" in caplog.text
    with pytest.raises(InputError, match="did not finish"):
        read_run(find_runs([tmp_path / "b"])[0])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rounds.jsonl", '{"round": 0'),
        ("rounds.jsonl", ""),
        ("rounds.jsonl", '{"round": 0, "selected": []}\n' * 2),
        ("rounds.jsonl", "[1]\n"),
        ("clients.jsonl", '{"round": 1, "client": 1}\n' * 2),
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("env.json", "\x00"),
        ("config.toml", "name = 3"),
        ("config.toml", "= ="),
    ],
)
def test_a_damaged_run_is_refused_in_one_line(tmp_path: Path, name: str, content: str) -> None:
    finished(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_one_process_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    with reserved(tmp_path / "out"):
        second = reserved(tmp_path / "out")
        with pytest.raises(InputError, match="another fedio is writing"):
            second.__enter__()
    with reserved(tmp_path / "out"):
        RunFolder.create(tmp_path / "out", EXPERIMENT)


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


def test_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "below" / "file"
    file.parent.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    write_text(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert list(file.parent.iterdir()) == [file]


def test_what_a_writer_left_that_was_ended_by_force_is_removed(tmp_path: Path) -> None:
    finished(tmp_path)
    leftover = tmp_path / f".{TRACE_FILE}.123"
    leftover.write_text("half")
    RunFolder.create(tmp_path, EXPERIMENT)
    assert not leftover.exists()


def test_a_participation_that_could_not_be_recorded_ends_the_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, EXPERIMENT)
    folder.append_clients([{"round": 1, "client": 1, "problem": "ValueError: boom"}])
    problem = f"Traceback\n  raise\nfedio.errors.RunError: {not_recorded('disk full')}\n"
    with pytest.raises(RunError, match=r"^cannot record a trace: disk full$"):
        folder.append_clients([{"round": 2, "client": 1, "problem": problem}])
    assert len((tmp_path / "clients.jsonl").read_text().splitlines()) == 2
