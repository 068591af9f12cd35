"""Faults on purpose, in whole runs: alike for any number of workers, and after a resume."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.engines import inline
from fedio.config import Experiment, Faults
from fedio.faults import struck
from fedio.runs import Run, RunFolder, read_run

Tiny = Callable[..., Experiment]

EVERYTHING = (
    "faults.kill={rate=0.1}",
    "faults.stop={rate=0.2, seconds=500}",
    "faults.slow_storage=[{rate=0.2, factor=50}, {round=2}]",
    "faults.full_disk={rate=0.2}",
    "faults.corrupt_cache={rate=0.2}",
    "rounds.rounds=12",
)


def play(experiment: Experiment, path: Path) -> Run:
    inline.run(experiment, RunFolder.create(path, experiment))
    return read_run(path)


def rows(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("rounds.jsonl", "clients.jsonl")]


@pytest.mark.parametrize("arm", ["one", "two"])
def test_they_strike_alike_with_any_number_of_workers(tiny: Tiny, tmp_path: Path, arm: str) -> None:
    chosen = tiny(*EVERYTHING, f"arm='{arm}'", "seed=3")
    run = play(chosen, tmp_path / "none")
    other = play(tiny(*EVERYTHING, f"arm='{arm}'", "seed=3", "engine.workers=2"), tmp_path / "two")
    assert rows(other.path) == rows(run.path)
    assert other.summary["model_hash"] == run.summary["model_hash"]

    injected = Counter(name for row in run.clients for name in row["faults"])
    assert all(injected[kind] > 0 for kind in Faults.model_fields), injected
    for row in run.clients:
        assert row["faults"] == struck(chosen, row["client"], row["round"]).names
        assert (row["outcome"] == "failed") == ("kill" in row["faults"])
        if row["outcome"] == "failed":
            assert "killed on purpose" in row["problem"]
            continue
        if "full_disk" in row["faults"]:
            assert row["written_samples"] == row["evicted_samples"] == 0
            assert row["refused"] == row["misses"]
        else:
            assert row["refused"] == 0
        assert ("stop" in row["faults"]) == (row["stall_s"] > 500)


def test_a_round_that_is_trained_again_is_struck_again(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted when all have trained, before that is kept."""
    faults = [part for setting in EVERYTHING for part in ("--set", setting)]
    run = ["run", str(tiny_file), "--seed", "3", *faults]
    assert main([*run, "--out", str(tmp_path / "whole")]) == 0
    out, append, rounds = tmp_path / "cut", RunFolder.append_round, itertools.count(0)

    def cut(folder: RunFolder, row: Any) -> None:
        if next(rounds) % 4 == 3:
            raise KeyboardInterrupt
        append(folder, row)

    monkeypatch.setattr(RunFolder, "append_round", cut)
    codes = [main([*run, "--out", str(out)])]
    while codes[-1] == 130:
        codes.append(main([*run, "--out", str(out), "--resume"]))
    assert codes == [130] * 4 + [0]
    assert rows(out) == rows(tmp_path / "whole")


def test_whose_cache_was_lost_with_its_last_participation_can_still_go_on(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after its cache was damaged, it has saved nothing since."""
    both = "{round=3}"
    run = ["run", str(tiny_file), "--set", f"faults.kill={both}"]
    run += ["--set", f"faults.corrupt_cache={both}"]
    assert main([*run, "--out", str(tmp_path / "whole")]) == 0
    keep = RunFolder.keep

    def cut(folder: RunFolder, checkpoint: Any) -> None:
        keep(folder, checkpoint)
        if checkpoint.notes["round"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "keep", cut)
        assert main([*run, "--out", str(tmp_path / "cut")]) == 130
    assert main([*run, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    lost = [json.loads(line) for line in rows(tmp_path / "whole")[0].splitlines()][3]
    assert lost["failed"] == lost["selected"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "faults.kill={round=1, clients=[2, 6]}"], "there is no client 6"),
        (["--set", "faults.kill={rate=0.1, round=1}"], "give a round or a rate"),
        (
            ["--set", "faults.slow_storage={rate=0.1}", "--engine", "emulate",
             "--set", "emulation.pace='none'"],
            "set emulation.pace = 'profile'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_go_wrong_is_refused(
    tiny_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    assert main(["run", str(tiny_file), *arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
