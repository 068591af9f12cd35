"""The page of results: all parts from run folders, every figure with its paragraph, equal bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments import results
from experiments.captions import AXIS, CAPTIONS, RATIOS
from experiments.cli import main
from experiments.origin import origin
from experiments.results_tables import arm_table
from fedio.config import Arm
from fedio.errors import InputError
from fedio.runs import find_runs, read_run
from tests.experiments.synthetic_runs import (
    draw_run,
    experiment,
    round_row,
    write_map,
    write_run,
)

COST = re.compile(
    r"^\d+ runs, which took [\d.]+ \w+ of wall-clock time when added up\.$", re.MULTILINE
)
FIGURES = re.compile(
    r"!\[[^]]*\]\(([^)]+)\)\n\n\*[^*]+\*\n\n\*\*What this does not show\.\*\* (.+)"
)


def made(folder: Path, runs: list[Path], words: dict[str, str] | None = None) -> str:
    """Make the page and return its text."""
    folder.mkdir()
    page = folder / "results.md"
    results.write(find_runs(runs), page, words or {})
    return page.read_text(encoding="utf-8")


def parts(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", page, re.MULTILINE)


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    out = tmp_path / "made-up"
    for arm in ("uniform+lru", "oort+static"):
        draw_run(out / arm, arm, 0, rounds=25, clients=12, cohort=3)
    return out


@pytest.fixture
def atlas(tmp_path: Path) -> Path:
    return write_map(tmp_path / "atlas")


def test_a_comparison_is_told_with_everything(comparison: Path, tmp_path: Path) -> None:
    page = made(tmp_path / "docs", [comparison], {"made-up": "It is *fast*."})
    assert parts(page) == ["made-up", "What the columns mean"]
    for expected in (
        "### What it says\n\nIt is *fast*.",
        "| Data | photos on 12 clients: IID |",
        "| I/O : compute | 1.25 (cold origin and decode seconds over compute seconds) |",
        "| arm | kind | selector | policy | sampler | prefetch |",
        "| uniform+lru | arm | uniform | lru | uniform | yes |",
        "**Storage**\n\n| arm | origin |",
        "- Target accuracy 80.0%; seeds 0.",
        "```\nfedio compare made-up\n```",
        "Commit 0123abc, on instruction set AVX2, fedio 0.1.0, torch 2.14.1.",
        "\n\n2 runs.\n",
        "- **hits**: demand hits of the cache over requests",
    ):
        assert expected in page
    assert "photos on 12 clients" not in page.replace("| Data | photos on 12 clients", "")
    assert "\n\n\n" not in page
    assert "What the experiment expects" not in page


def test_every_figure_has_its_file_and_its_paragraph(
    comparison: Path, atlas: Path, tmp_path: Path
) -> None:
    page = made(tmp_path / "docs", [comparison, atlas])
    shown = FIGURES.findall(page)
    assert len(shown) == page.count("![") == page.count("What this does not show")
    assert {file for file, _ in shown} == {
        f"results/{file.name}" for file in (tmp_path / "docs" / "results").iterdir()
    }
    kinds = ("accuracy", "phases", "hits", "selection")
    hidden = dict(shown)
    for kind in kinds:
        assert hidden[f"results/made-up-{kind}.png"] == CAPTIONS[kind].hides
    assert hidden["results/atlas-axis-size.png"] == AXIS.hides
    assert hidden["results/atlas-io-to-compute.png"] == RATIOS.hides


def test_a_map_is_told_axis_by_axis(atlas: Path, tmp_path: Path) -> None:
    page = made(tmp_path / "docs", [atlas])
    for expected in (
        "## atlas\n\nWhere does it matter?",
        "This is the cell that changes nothing; each axis says what its others change.",
        "| slow | arm | oort | lru | uniform | yes |",
        "### Size of samples\n\nDoes size matter?\n\nWhat the experiment expects: Large samples",
        "| cell | changes | I/O : compute | slow to target | fast |",
        "| 2 MB | nothing | 1.00 | 1.7 min | 1.43 [",
        "| 8 MB | cache.share = 0.3 | 4.00 | 6.7 min | 1.91 [",
        "| 1% | cache.share = 0.01 | 1.00 | 1.7 min | <= ",
        "In every cell:\n\n- Target accuracy 50.0%; seeds 0, 1.",
        "- 1%: A run that did not reach the target counts",
        "12 runs, which took 24.0 s of wall-clock time when added up.",
    ):
        assert expected in page
    assert page.index("### Size of samples") < page.index("### Share of the cache")


def test_what_is_not_there_leaves_no_trace(comparison: Path, atlas: Path, tmp_path: Path) -> None:
    without = made(tmp_path / "a", [comparison])
    for word in ("Expected before", "This is the cell", "In every cell", "What it says", "None"):
        assert word not in without
    assert parts(made(tmp_path / "b", [atlas])) == ["atlas", "What the columns mean"]
    # The part of an experiment is the same, whatever else is on the page.
    both = made(tmp_path / "c", [atlas, comparison])
    assert without[without.index("## made-up") : without.index("## What the col")] in both


def test_a_map_of_one_cell_without_a_shared_one(tmp_path: Path) -> None:
    write_map(tmp_path / "map")
    page = made(tmp_path / "docs", [tmp_path / "map" / "size"])
    assert "This is the cell 8 MB of the first axis" in page
    assert "| 2 MB |" not in page
    assert "Share of the cache" not in page
    with pytest.raises(InputError, match="atlas has runs in the cell that its axes share"):
        made(tmp_path / "more", [tmp_path / "map" / "base"])


def test_an_experiment_that_is_compared_and_mapped_is_two(tmp_path: Path) -> None:
    write_map(tmp_path / "map")
    alone = experiment(name="atlas")
    write_run(tmp_path / "compared", alone, [round_row(0, 0.0, 0.1), round_row(1, 9.0, 0.9)])
    page = made(tmp_path / "docs", [tmp_path / "map", tmp_path / "compared"], {"atlas.map": "Yes."})
    assert re.findall("^## (atlas.*)", page, re.MULTILINE) == ["atlas", "atlas.map"]
    assert "## atlas.map\n\nWhere does it matter?\n\n### What it says\n\nYes." in page
    assert "(results/atlas.map-axis-size.png)" in page


def test_experiments_come_in_order(tmp_path: Path) -> None:
    names = ("zebra", "map", "headline", "ant", "published-artifact", "published")
    for name in names:
        runs = read_run(
            draw_run(tmp_path / "runs" / name, "uniform+lru", 0, rounds=2, clients=12, cohort=3)
        )
        config = runs.experiment.model_copy(update={"name": name})
        (runs.path / "config.toml").write_text(config.to_toml())
    found = results.by_experiment(find_runs([tmp_path / "runs"]))
    assert list(found) == ["headline", "published", "published-artifact", "map", "ant", "zebra"]


def test_made_twice_it_is_equal_byte_for_byte(
    comparison: Path, atlas: Path, tmp_path: Path
) -> None:
    made(tmp_path / "one", [comparison, atlas])
    made(tmp_path / "two", [atlas, comparison])
    assert files(tmp_path / "one") == files(tmp_path / "two")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.mark.slow
def test_with_the_runs_made_again_it_is_equal_but_for_their_cost(
    tiny_file: Path, tmp_path: Path
) -> None:
    other = tiny_file.with_name("other.toml")
    other.write_text(tiny_file.read_text().replace('name = "tiny"', 'name = "other"'))
    atlas = tiny_file.with_name("atlas.toml")
    atlas.write_text(f"""{tiny_file.read_text().replace('name = "tiny"', 'name = "atlas"')}
[map.axes.work]
title = "Steps"
question = "Do steps matter?"
regime = "No."
base = "5"
cells = {{ "2" = {{ "training.local_steps" = 2 }}, "5" = {{}} }}
""")
    texts = []
    for name in ("first", "second"):
        runs, docs = tmp_path / name / "runs", tmp_path / name / "docs"
        docs.mkdir(parents=True)
        for file in (tiny_file, other):
            out = ["--out", str(runs / file.stem)]
            assert main(["compare", str(file), "--seeds", "2", *out]) == 0
        assert main(["map", str(atlas), "--seeds", "2", "--out", str(runs / "atlas")]) == 0
        assert main(["report", str(runs), "--markdown", str(docs / "results.md")]) == 0
        texts.append(files(docs))
    one, two = texts
    pages = [text.pop("results.md").decode() for text in texts]
    assert one == two
    assert parts(pages[0]) == ["atlas", "other", "tiny", "What the columns mean"]
    assert len(COST.findall(pages[0])) == 3
    assert COST.sub("", pages[0]) == COST.sub("", pages[1])
    assert "wall" not in COST.sub("", pages[0])


def test_the_command_writes_it_with_words(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.md"
    words.write_text(
        "\ufeff# Words\n\nAside.\n\n## made-up\n\nOne.\n\n### More\n\n```\n## Two\n```\n\n"
        "## ghost\nno\n",
        encoding="utf-8",
    )
    page = tmp_path / "page.md"
    options = ["--markdown", str(page), "--words", str(words)]
    assert main(["report", str(comparison), *options]) == 0
    assert str(page) in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert (
        "### What it says\n\nOne.\n\n### More\n\n```\n## Two\n```\n\n### What is compared" in text
    )
    assert "Aside" not in text
    assert (tmp_path / "page" / "made-up-accuracy.png").is_file()
    assert not (comparison / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--markdown", "page.txt"], "the page's file is named *.md"),
        (["--words", "words.md"], "--words goes with --markdown"),
        (["--markdown", "page.md", "--words", "none.md"], "cannot read none.md"),
        (["--markdown", "page.md", "--words", "empty.md"], "has no words"),
        (["--markdown", "page.md", "--words", "twice.md"], "has words on x twice"),
        (["--markdown", "words.md", "--words", "words.md"], "are both words.md"),
        (["--markdown", "page.md", "--json", "x.json"], "leave --json out"),
        (["--markdown", "page.md", "--round", "0"], "leave --round out"),
        (["--markdown", "page.md", "--target", "0.5"], "leave --target out"),
        (["--markdown", "page.md", "--export", "csv"], "leave --export out"),
        (["--markdown", "page.md", "--out", "x"], "leave --out out"),
        (["--markdown", "nowhere/page.md"], "in a folder that exists"),
    ],
)
def test_bad_requests_are_one_line(
    comparison: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.md").write_text("# Nothing\n")
    Path("twice.md").write_text("## x\n\nOne.\n\n## x\n\nTwo.\n")
    assert main(["report", str(comparison), *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("page*"))


def test_a_part_of_an_arm_is_told_where_an_arm_has_it() -> None:
    plain = Arm.model_validate(
        {"policy": {"name": "experience", "args": {"frequency": "penalise"}}}
    )
    table = arm_table({"a": plain, "b": Arm()})
    assert table.headings == ["arm", "kind", "selector", "policy", "sampler", "prefetch"]
    assert table.rows[0][3] == "experience(frequency=penalise)"
    bound = Arm.model_validate({"kind": "bound", "cache": "warm", "prefetch": False})
    table = arm_table({"a": plain, "b": bound})
    assert table.headings[-1] == "cache"
    assert table.rows[0][-1] == "bounded"
    assert table.rows[1] == ["b", "bound", "uniform", "lru", "uniform", "no", "warm"]


def test_bars_in_a_cell_do_not_break_the_table(tmp_path: Path) -> None:
    config = experiment("a", chosen={"policy": {"name": "lru", "args": {"x": "1|2"}}})
    run = read_run(draw_run(tmp_path / "draw", "a", 0, rounds=2, clients=4, cohort=1))
    write_run(tmp_path / "runs", config, run.rounds, run.clients)
    assert "lru(x=1\\|2)" in made(tmp_path / "docs", [tmp_path / "runs"])


def test_commands_are_told_without_the_paths_that_they_wrote_to(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", experiment(), [round_row(0, 0.0, 0.1)]))
    told = {
        "fedio compare x --jobs 2 --json /a/b.json --out='my runs' --axis 'a b'": (
            "fedio compare x --jobs 2 --axis 'a b'"
        ),
        "fedio run it's --out": "fedio run it's --out",
    }
    for command, shown in told.items():
        run.env["command"] = command
        assert origin([run]).commands == [shown]
