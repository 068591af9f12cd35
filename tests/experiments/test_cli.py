"""The command line as a user meets it: results, one-line errors, exit codes, nothing lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from experiments import doctor as checks
from experiments.cli import main
from fedio.errors import RunError


def text_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "smok"], "unknown preset 'smok': did you mean 'smoke'?"),
        (["run", "none.toml"], "no experiment file none.toml"),
        (["run", "smoke", "--set", "cache.shar=1"], "did you mean 'share'?"),
        (["run", "smoke", "--set", "cache.budget_bytes=-5"], "greater than or equal to 0"),
        (["run", "smoke", "--set", "rounds.cohort=11"], "a round cannot train more clients"),
        (
            ["run", "smoke", "--set", "arms.x.policy=lrv"],
            "unknown policy 'lrv': did you mean 'lru'",
        ),
        (["run", "smoke", "--set", "arms.x.selector=ort"], "unknown selector 'ort'"),
        (["run", "smoke", "--set", "arms.x.sampler=uni"], "unknown sampler 'uni'"),
        (["run", "smoke", "--set", "arms.x.aggregation=fedadm"], "did you mean 'fedadam'"),
        (["run", "smoke", "--set", "rounds.minimum=9"], "more than the cohort"),
        (["run", "smoke", "--set", "rounds.deadline_s=[[2, 5]]"], "must start at 1"),
        (["run", "smoke", "--set", "availability.kind=trace"], "goes with a file"),
        (["run", "smoke", "--resume", "--out", "none"], "no run in none to resume"),
        (["run", "smoke", "--set", "model=mpl"], "unknown model 'mpl'"),
        (["run", "smoke", "--set", "data.dataset=foto"], "unknown data set 'foto'"),
        (["run", "smoke", "--set", "fleet.profiles={phone=1}"], "unknown profile 'phone'"),
        (["run", "smoke", "--set", "training.accelerator='cuda:99'"], "no cuda:99 here"),
        (["run", "smoke", "--arm", "best"], "unknown arm 'best'"),
        (["run", "smoke", "--seed", "-1"], "needs a whole number from 0 on"),
        (["run", "smoke", "--engine", "magic"], "invalid choice: 'magic'"),
        (["run", "smoke", "--json", "/no/such/folder/x.json"], "cannot write /no/such/folder"),
        (["run", "smoke", "--set", "arms.x.selectr=oort"], "did you mean 'selector'?"),
        (["run", "smoke", "--set", "arms.a b.policy=lru"], "should match pattern"),
        (["run", "smoke", "--set", "cache.share=inf"], "cache.share"),
        (["run", "smoke", "--set", "rounds=5"], "rounds: it is a table with the keys cohort"),
        (["run", "smoke", "--set", "model=:X"], "model: cannot load model"),
        (["run", "smoke", "--set", "training.local_steps=10**12"], "training.local_steps"),
        (["run", "smoke", "--json", "/proc/x.json"], "cannot write /proc/x.json"),
        (["run", "mine.tml"], "no experiment file mine.tml"),
        (["report", ".", "--target", "nan"], "between 0 and 1"),
        (["run"], "required: PRESET|FILE"),
        (["compare", "smoke", "--target", "2"], "between 0 and 1"),
        (["compare", "smoke", "--seeds", "0"], "needs a whole number from 1 on"),
        (["report", "nowhere"], "no finished run in nowhere"),
        (["bench", "speed"], "unknown bench 'speed'"),
        (["list", "everything"], "invalid choice"),
        (["dance"], "invalid choice: 'dance'"),
        ([], "required: COMMAND"),
        (["data", "fetch", "foto"], "unknown data set 'foto'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_run_writes_its_folder_and_its_figures(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    assert (
        main(["run", str(tiny_file), "--arm", "two", "--out", str(out), "--json", str(figures)])
        == 0
    )
    assert "two, seed 0: 5 rounds" in capsys.readouterr().out
    summary = json.loads(figures.read_text())
    assert summary["rounds"] == 5
    assert 2 <= summary["clients_trained"] <= 6
    assert {"demand_hits", "evictions", "model_hash"} <= summary.keys()

    assert main(["report", str(out), "--round", "2"]) == 0
    explained = capsys.readouterr().out
    assert "Round 2" in explained
    assert "predicted" in explained
    assert main(["report", str(out), "--round", "9"]) == 2


def test_an_output_path_that_cannot_be_used_is_left_alone(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    short = ["--set", "rounds.rounds=1", "--out", str(out)]
    assert main(["run", str(tiny_file), *short]) == 0
    before = text_of(out)
    for command in ("run", "compare"):
        assert main([command, str(tiny_file), *short, "--set", "training.lr=0.2"]) == 2
    assert main(["compare", str(tiny_file), *short]) == 2
    assert text_of(out) == before
    file = tmp_path / "file"
    file.write_text("mine")
    for command in ("run", "compare"):
        assert main([command, str(tiny_file), "--out", str(file)]) == 2
        assert main([command, str(tiny_file), "--out", str(file / "below")]) == 2
        assert main([command, str(tiny_file), "--out", "/proc/fedio"]) == 2
    assert file.read_text() == "mine"
    assert all("error: " in line for line in capsys.readouterr().err.splitlines() if "out" in line)


def test_names_that_look_like_markup_are_shown_as_they_are(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "[" / "b]x"
    assert main(["run", str(tiny_file), "--set", "rounds.rounds=1", "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out


def test_missing_data_without_network_is_the_users_to_mend(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "nothing"
    overrides = ["--set", f"data.dataset={{name='image-folder', args={{path='{folder}'}}}}"]
    assert main(["run", str(tiny_file), *overrides, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_an_engine_cannot_run_leaves_no_folder(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["run", str(tiny_file), "--engine", "flower", "--set", "cache.store=memory"]
    assert main([*arguments, "--out", str(out)]) == 2
    assert "cache.store is memory" in capsys.readouterr().err
    assert not out.exists()


def test_a_reference_that_does_not_run_is_refused_before_anything_runs(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert (
        main(["compare", str(tiny_file), "--set", "compare.arms=['two']", "--out", str(out)]) == 2
    )
    assert "compare.reference is one" in capsys.readouterr().err
    assert not out.exists()


def test_a_failed_run_is_exit_code_1_and_debug_shows_where(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = ["--set", "arms.one.sampler=tests.experiments.failing:Raises"]
    failing += ["--set", "rounds.empty_rounds=1"]
    arguments = ["run", str(tiny_file), *failing, "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "ValueError: boom" in said
    assert main([*arguments, "--debug"]) == 1
    assert "FruitlessError" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "out")]) == 2


def test_a_comparison_and_its_report_from_the_run_folders_alone(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    arguments = [
        "compare",
        str(tiny_file),
        "--seeds",
        "2",
        "--out",
        str(out),
        "--json",
        str(figures),
    ]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert [arm["name"] for arm in found["arms"]] == ["one", "two"]
    assert found["arms"][0]["speedup"] == 1.0
    assert (found["reference"], found["target_accuracy"]) == ("one", 0.1)
    for name in ("accuracy", "phases", "hits", "selection"):
        assert (out / f"{name}.png").stat().st_size > 1000
        assert (out / f"{name}.svg").stat().st_size > 1000

    again = tmp_path / "again.json"
    elsewhere = tmp_path / "elsewhere"
    assert main(["report", str(out), "--json", str(again), "--out", str(elsewhere)]) == 0
    assert again.read_bytes() == figures.read_bytes()
    reported = capsys.readouterr().out
    assert reported.replace(str(elsewhere), "X") == table.replace(str(out), "X")
    html = (elsewhere / "report.html").read_text()
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "<script src" not in html

    # What is complete is not run again, and --no-cache runs it again to the same figures.
    changed = (out / "one" / "seed-0" / "summary.json").stat().st_mtime_ns
    assert main(arguments) == 0
    assert (out / "one" / "seed-0" / "summary.json").stat().st_mtime_ns == changed
    assert "4 of 4 runs are there already" in capsys.readouterr().err
    assert main([*arguments, "--no-cache", "--jobs", "2"]) == 0
    assert (out / "one" / "seed-0" / "summary.json").stat().st_mtime_ns > changed
    redone = json.loads(figures.read_text())
    assert redone["arms"] == found["arms"]


def test_a_target_on_the_command_line_counts_although_the_runs_are_there(
    tiny_file: Path, tmp_path: Path
) -> None:
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    arguments = ["compare", str(tiny_file), "--out", str(out), "--json", str(figures)]
    assert main(arguments) == 0
    assert main([*arguments, "--target", "0.99"]) == 0
    found = json.loads(figures.read_text())
    assert found["target_accuracy"] == 0.99
    assert found["arms"][0]["time_to_target_s"] is None


def test_lists_and_data(
    tiny_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for kind, name in (
        ("policies", "lru"),
        ("selectors", "oort"),
        ("aggregations", "fedyogi"),
        ("samplers", "uniform"),
        ("profiles", "phone-mid"),
        ("presets", "quickstart"),
        ("models", "resnet18"),
        ("datasets", "photos"),
        ("engines", "inline"),
    ):
        assert main(["list", kind]) == 0
        assert name in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    assert "fashion-mnist" in capsys.readouterr().out
    described = tmp_path / "data.json"
    assert main(["data", "describe", str(tiny_file), "--json", str(described)]) == 0
    assert json.loads(described.read_text())["clients"] == 6


def test_the_doctor_finds_everything_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "FAIL" not in capsys.readouterr().out


def test_json_replaces_plain_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link, circle = tmp_path / "pipe", tmp_path / "link", tmp_path / "circle"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    circle.symlink_to(circle)
    for path in (pipe, link, circle, tmp_path / ("x" * 300), tmp_path / ("x" * 250)):
        assert main(["replay", "zipf(requests=9)", "--json", str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"error: cannot write {path}: ")
        assert captured.err.count("\n") == 1
        assert not captured.out
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_an_error_of_many_lines_is_told_in_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise RunError("one\n\n  two")

    monkeypatch.setattr(checks, "check", fail)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "error: one two\n"
