"""The inline engine: real training through Flower's apps, the same whatever runs it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.engines import inline
from fedio.config import Experiment
from fedio.errors import RunError
from fedio.runs import CACHES_FOLDER, Run, RunFolder, read_run
from storage.lmdb_store import INDEX_FILE

Tiny = Callable[..., Experiment]


def play(experiment: Experiment, path: Path) -> Run:
    inline.run(experiment, RunFolder.create(path, experiment))
    return read_run(path)


def lines(run: Run) -> tuple[str, str]:
    return (run.path / "rounds.jsonl").read_text(), (run.path / "clients.jsonl").read_text()


def test_workers_repetition_and_stores_make_no_difference(tiny: Tiny, tmp_path: Path) -> None:
    first = play(tiny(), tmp_path / "first")
    assert first.summary["demand_hits"] / sum(row["requests"] for row in first.clients) > 0.2
    assert first.summary["evictions"] > 0
    assert any(row["late"] for row in first.rounds)
    ways = {
        "again": tiny(),
        "two-workers": tiny("engine.workers=2"),
        "memory": tiny("cache.store='memory'"),
        "memory-two-workers": tiny("cache.store='memory'", "engine.workers=2"),
    }
    for name, experiment in ways.items():
        other = play(experiment, tmp_path / name)
        assert other.summary["model_hash"] == first.summary["model_hash"], name
        assert lines(other) == lines(first), name
    assert not multiprocessing.active_children()


def test_a_run_leaves_nothing_to_the_next_in_the_same_process(tiny: Tiny, tmp_path: Path) -> None:
    for store in ("lmdb", "memory"):
        experiment = tiny(f"cache.store='{store}'", "rounds.rounds=2")
        before = lines(play(experiment, tmp_path / store))
        assert lines(play(experiment, tmp_path / store)) == before
        shutil.rmtree(tmp_path / store)
        other = play(tiny("seed=5", "rounds.rounds=2", "arm='two'"), tmp_path / store)
        fresh = play(tiny("seed=5", "rounds.rounds=2", "arm='two'"), tmp_path / f"{store}-fresh")
        assert lines(other) == lines(fresh)


def test_another_seed_is_another_run(tiny: Tiny, tmp_path: Path) -> None:
    one = play(tiny(), tmp_path / "one")
    other = play(tiny("seed=1"), tmp_path / "other")
    assert one.summary["model_hash"] != other.summary["model_hash"]


def test_caches_go_with_the_run_unless_they_are_kept(tiny: Tiny, tmp_path: Path) -> None:
    play(tiny("rounds.rounds=1"), tmp_path / "gone")
    assert not (tmp_path / "gone" / CACHES_FOLDER).exists()
    play(tiny("rounds.rounds=1", "cache.keep=true"), tmp_path / "kept")
    assert list((tmp_path / "kept" / CACHES_FOLDER).rglob("data.mdb"))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_traceback_with_round_and_partition_is_in_the_error(
    tiny: Tiny, tmp_path: Path, workers: int
) -> None:
    experiment = tiny(
        "arms.one.sampler='tests.experiments.failing:Raises'",
        f"engine.workers={workers}",
        "rounds.empty_rounds=2",
        "rounds.cohort=6",
        "rounds.over_commitment=1.0",
    )
    with pytest.raises(RunError) as caught:
        play(experiment, tmp_path / "run")
    said = str(caught.value)
    assert "round 1, partition 0: ValueError: boom" in said.splitlines()[0]
    assert "Traceback" in said
    assert "failing.py" in said
    assert RunFolder(tmp_path / "run").is_begun  # its first round is over, so it can be resumed


def test_a_worker_that_dies_ends_the_run_with_its_exit_code(tiny: Tiny, tmp_path: Path) -> None:
    mark = tmp_path / "died"
    sampler = (
        f"{{name='tests.experiments.failing:Dies', args={{spare={os.getpid()}, mark='{mark}'}}}}"
    )
    experiment = tiny(f"arms.one.sampler={sampler}", "engine.workers=2")
    with pytest.raises(RunError, match="exit code 3"):
        play(experiment, tmp_path / "run")
    assert mark.exists()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("checkpoints", [True, False])
def test_of_memory_caches_no_payload_is_ever_written(
    tiny: Tiny, tmp_path: Path, checkpoints: bool
) -> None:
    kept = ("cache.store='memory'", "cache.keep=true", f"engine.checkpoints={checkpoints}".lower())
    play(tiny(*kept, "rounds.rounds=2"), tmp_path / "run")
    written = [file for file in (tmp_path / "run" / CACHES_FOLDER).rglob("*") if file.is_file()]
    assert {file.name for file in written} == ({INDEX_FILE} if checkpoints else set())
    assert sum(file.stat().st_size for file in written) < 50_000  # a photo of these has 1.5 kB
