"""Plug-ins to copy: they change results as they say, under both engines, from any folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import experiments
from experiments.engines import inline
from experiments.figures import compare_json
from fedio.config import Experiment
from fedio.loading import load
from fedio.runs import Run, RunFolder, read_run

Tiny = Callable[..., Experiment]

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(experiments.__file__).parent / "examples"
GUIDE = CHECKOUT / "docs" / "plugins.md"
FEDIO = Path(sys.executable).with_name("fedio")

FILES = {"hardest": "policy", "skip_easy": "sampler", "shifts": "selector"}
CLASSES = {
    "policy": "hardest:Hardest",
    "sampler": "skip_easy:SkipEasy",
    "selector": "shifts:Shifts",
}
ENGINES = ["inline", pytest.param("flower", marks=pytest.mark.slow)]


def play(experiment: Experiment, path: Path) -> Run:
    inline.run(experiment, RunFolder.create(path, experiment))
    return read_run(path)


def lines(run: Run) -> tuple[str, str]:
    return (run.path / "rounds.jsonl").read_text(), (run.path / "clients.jsonl").read_text()


def fedio(folder: Path, *arguments: str) -> None:
    """Run the command line in a folder, as a user does who has fedio installed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(  # noqa: S603 - our own program
        [FEDIO, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> dict[str, dict[str, Any]]:
    """The figures of every arm of the examples' experiment, on less data than it has."""
    less = [
        f"data.folder='{data_folder}'",
        "data.dataset.args.samples=160",
        "data.clients=8",
        "rounds.rounds=8",
        "rounds.cohort=2",
        "model=mlp",
        "cache.store=memory",
    ]
    experiment = load(EXAMPLES / "examples.toml", less)
    folder = tmp_path_factory.mktemp("arms")
    runs = [play(experiment.for_arm(name), folder / name) for name in experiment.arms]
    return {row["name"]: row for row in compare_json(runs)["arms"]}


def test_the_policy_keeps_more_of_use_and_writes_less(arms: dict[str, dict[str, Any]]) -> None:
    mine, builtin = arms["hardest"], arms["uniform+lru"]
    assert mine["hit_ratio"] > builtin["hit_ratio"] + 0.1
    assert mine["written_bytes"] < 0.7 * builtin["written_bytes"]
    assert mine["origin_bytes"] < builtin["origin_bytes"]
    # What a cache keeps changes seconds, and nothing that is learned.
    assert mine["final_accuracy"] == builtin["final_accuracy"]
    assert mine["unique_samples_per_round"] == builtin["unique_samples_per_round"]


def test_the_sampler_trains_fewer_samples_which_suits_the_policy(
    arms: dict[str, dict[str, Any]],
) -> None:
    mine, builtin, both = arms["skip-easy"], arms["uniform+lru"], arms["hardest+skip-easy"]
    assert mine["unique_samples_per_round"] < 0.95 * builtin["unique_samples_per_round"]
    assert mine["hit_ratio"] > builtin["hit_ratio"]
    assert both["unique_samples_per_round"] == mine["unique_samples_per_round"]
    assert both["hit_ratio"] > max(mine["hit_ratio"], arms["hardest"]["hit_ratio"])


def test_the_selector_trades_coverage_for_warm_caches(arms: dict[str, dict[str, Any]]) -> None:
    mine, builtin = arms["shifts"], arms["uniform+lru"]
    assert mine["coverage"] == 2 / 8  # one shift of two clients
    assert builtin["coverage"] > 0.5
    assert mine["hit_ratio"] > builtin["hit_ratio"]


def test_shifts_of_one_round_reach_everybody_first(tiny: Tiny, tmp_path: Path) -> None:
    selector = "arms.one.selector={name='experiments.examples.shifts:Shifts', args={rounds=1}}"
    run = play(tiny(selector, "rounds.over_commitment=1.0"), tmp_path / "run")
    chosen = [row["client"] for row in run.clients]
    assert sorted(chosen[:6]) == list(range(6))
    assert {row["why"] for row in run.clients} == {"waited longest"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_copies_in_a_folder_of_ones_own_give_the_same_results_under_both_engines(
    tiny: Tiny, tmp_path: Path, engine: str
) -> None:
    user = tmp_path / "user"
    user.mkdir()
    for name in FILES:
        shutil.copy(EXAMPLES / f"{name}.py", user / f"my_{name}.py")
    copies = [f"arms.one.{kind}=my_{name}" for kind, name in CLASSES.items()]
    (user / "mine.toml").write_text(tiny(*copies).to_toml())
    options = ["--set", "engine.workers=2", "--engine", engine, "--out", "run"]
    fedio(user, "run", "mine.toml", *options)
    copied = read_run(user / "run")

    shipped = [f"arms.one.{kind}=experiments.examples.{name}" for kind, name in CLASSES.items()]
    here = play(tiny(*shipped), tmp_path / "shipped")
    assert copied.summary["model_hash"] == here.summary["model_hash"]
    assert lines(copied) == lines(here)
    assert here.summary["demand_hits"] > 0
    assert here.summary["evictions"] > 0
    assert {row["why"] for row in here.clients} == {"on duty", "waited longest"}
    builtin = play(tiny(), tmp_path / "builtin")
    assert builtin.summary["model_hash"] != here.summary["model_hash"]


def blocks(folder: Path) -> None:
    """Write the guide's blocks that name a file into that file."""
    for text in re.findall(r"```(?:python|toml)\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        name = text.split("\n", 1)[0].removeprefix("# ")
        (folder / name).write_text(text)


def test_the_guides_smallest_examples_run_as_printed(tmp_path: Path, data_folder: Path) -> None:
    blocks(tmp_path)
    photos = "{name='photos', args={samples=120, test_samples=40}}"
    less = [f"data.dataset={photos}", f"data.folder='{data_folder}'", "rounds.cohort=2"]
    options = [word for override in less for word in ("--set", override)]
    fedio(tmp_path, "compare", "mine.toml", "--out", "out", *options)
    rows = compare_json(
        read_run(tmp_path / "out" / name / "seed-0") for name in ("builtin", "mine")
    )
    builtin, mine = rows["arms"]
    assert mine["hit_ratio"] > builtin["hit_ratio"]
    assert mine["coverage"] == mine["jain_index"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["guide", "examples"])
def test_the_contract_tests_take_a_class_of_ones_own(tmp_path: Path, rows: str) -> None:
    blocks(tmp_path)
    if rows == "examples":
        for name in FILES:
            shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
        file = tmp_path / "my_rows.py"
        text = file.read_text().replace("from mine import CachedFirst, MostRecent, RoundRobin", "")
        for (module, kind), name in zip(
            FILES.items(), ("MostRecent", "CachedFirst", "RoundRobin"), strict=True
        ):
            mine = CLASSES[kind].partition(":")[2]
            text = f"from {module} import {mine}\n" + text.replace(name, mine)
        file.write_text(text)
    command = GUIDE.read_text().rpartition("-p my_rows -k mine \\\n")[2].partition("\n")[0]
    done = subprocess.run(  # noqa: S603 - our own tests
        [sys.executable, "-m", "pytest", "-p", "my_rows", "-k", "mine", "-p", "no:cacheprovider",
         *command.split()],
        cwd=CHECKOUT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 25
