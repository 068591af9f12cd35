"""Interrupted on the command line, and gone on with."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from experiments.cli import main
from fedio.checkpoints import Checkpoint
from fedio.runs import CACHES_FOLDER, CHECKPOINT_FILE, RunFolder


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    return Interrupt(monkeypatch)


class Interrupt:
    """Presses Ctrl-C once, after so many rounds have been kept."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch, self._keep = patch, RunFolder.keep
        self.kept: list[int] = []

    def after(self, rounds: int) -> None:
        original, calls = self._keep, itertools.count(1)
        self.kept.clear()

        def keep(folder: RunFolder, checkpoint: Checkpoint) -> None:
            original(folder, checkpoint)
            self.kept.append(checkpoint.notes["round"])
            if next(calls) == rounds:
                raise KeyboardInterrupt

        self._patch.setattr(RunFolder, "keep", keep)

    def never(self) -> None:
        self.after(10**9)


def rows(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("rounds.jsonl", "clients.jsonl")]


def test_a_run_goes_on(
    tiny_file: Path,
    tmp_path: Path,
    interrupt: Interrupt,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, whole, cut = ["run", str(tiny_file)], tmp_path / "whole", tmp_path / "cut"
    assert main([*run, "--out", str(whole)]) == 0
    interrupt.after(3)
    assert main([*run, "--out", str(cut)]) == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "the same command with --resume goes on from there" in said
    assert (cut / CACHES_FOLDER).is_dir()
    interrupt.never()
    assert main([*run, "--out", str(cut), "--resume"]) == 0
    assert interrupt.kept == [4, 5]
    assert rows(cut) == rows(whole)
    assert not (cut / CACHES_FOLDER).exists()
    capsys.readouterr()
    assert main([*run, "--out", str(cut), "--resume", "--json", str(tmp_path / "s.json")]) == 0
    assert "is complete already" in capsys.readouterr().err
    assert json.loads((tmp_path / "s.json").read_text())["rounds"] == 5


def test_without_resume_it_begins_anew(
    tiny_file: Path, tmp_path: Path, interrupt: Interrupt
) -> None:
    run = ["run", str(tiny_file), "--out", str(tmp_path / "out")]
    interrupt.after(3)
    assert main(run) == 130
    interrupt.never()
    assert main(run) == 0
    assert interrupt.kept == [1, 2, 3, 4, 5]


def test_what_cannot_be_gone_on_with_is_the_users_to_mend(
    tiny_file: Path,
    tmp_path: Path,
    interrupt: Interrupt,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    run = ["run", str(tiny_file), "--resume", "--out"]
    assert main([*run, str(out)]) == 2
    assert f"there is no run in {out} to resume" in capsys.readouterr().err
    assert not out.exists()

    interrupt.after(2)
    assert main(["run", str(tiny_file), "--out", str(out)]) == 130
    before = rows(out)
    assert main([*run, str(out), "--seed", "7"]) == 2
    assert "holds another experiment (it differs in seed" in capsys.readouterr().err
    assert rows(out) == before

    (out / CHECKPOINT_FILE).write_bytes(b"garbage")
    interrupt.never()
    assert main([*run, str(out)]) == 2
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert "run again without --resume" in said
    assert rows(out) == before


@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_without_the_caches_it_could_not_go_on_as_it_was(
    tiny_file: Path,
    tmp_path: Path,
    interrupt: Interrupt,
    capsys: pytest.CaptureFixture[str],
    store: str,
) -> None:
    out = tmp_path / "out"
    run = ["run", str(tiny_file), "--set", f"cache.store={store}", "--out", str(out)]
    interrupt.after(3)
    assert main(run) == 130
    before = rows(out)
    client = json.loads((out / "clients.jsonl").read_text().splitlines()[0])["client"]
    shutil.rmtree(out / CACHES_FOLDER / str(client))
    capsys.readouterr()
    assert main([*run, "--resume"]) == 2
    assert "the caches of 1 clients" in capsys.readouterr().err
    assert rows(out) == before
    assert main(run) == 0


def test_a_trace_is_recorded_from_the_beginning_or_not_at_all(
    tiny_file: Path, tmp_path: Path, interrupt: Interrupt, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", str(tiny_file), "--out", str(tmp_path / "out")]
    interrupt.after(3)
    assert main(run) == 130
    assert main([*run, "--resume", "--record-trace"]) == 2
    assert "began without recording a trace" in capsys.readouterr().err


def test_an_empty_folder_is_begun(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny_file), "--resume", "--out", str(tmp_path / "out")]) == 2
    (tmp_path / "out").mkdir()
    assert main(["run", str(tiny_file), "--resume", "--out", str(tmp_path / "out")]) == 0
    assert "it begins anew" in capsys.readouterr().err


def test_it_says_when_the_code_is_another(
    tiny_file: Path,
    tmp_path: Path,
    interrupt: Interrupt,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = str(tmp_path / "out")
    interrupt.after(2)
    assert main(["run", str(tiny_file), "--out", out]) == 130
    env = json.loads((tmp_path / "out" / "env.json").read_text())
    (tmp_path / "out" / "env.json").write_text(json.dumps(env | {"code": "of before"}))
    interrupt.never()
    assert main(["run", str(tiny_file), "--out", out, "--resume"]) == 0
    assert "has changed since this run began" in " ".join(capsys.readouterr().err.split())


def test_a_comparison_goes_on_in_the_middle_of_a_run(
    tiny_file: Path, tmp_path: Path, interrupt: Interrupt
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["compare", str(tiny_file), "--out", str(whole)]) == 0
    interrupt.after(7)
    assert main(["compare", str(tiny_file), "--out", str(cut)]) == 130
    interrupt.never()
    assert main(["compare", str(tiny_file), "--out", str(cut)]) == 0
    assert interrupt.kept == [3, 4, 5]  # of the second arm; the first was complete
    for run in ("one/seed-0", "two/seed-0"):
        assert rows(cut / run) == rows(whole / run)


def test_a_run_that_is_over_before_its_last_round_is_so_when_it_is_resumed(
    tiny_file: Path, tmp_path: Path, interrupt: Interrupt
) -> None:
    run = ["run", str(tiny_file), "--set", "rounds.stop_accuracy=0.01"]
    assert main([*run, "--out", str(tmp_path / "whole")]) == 0
    interrupt.after(3)
    assert main([*run, "--out", str(tmp_path / "cut")]) == 130
    interrupt.never()
    assert main([*run, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    assert interrupt.kept == []
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    summary = json.loads((tmp_path / "cut" / "summary.json").read_text())
    assert summary["rounds"] == 3
