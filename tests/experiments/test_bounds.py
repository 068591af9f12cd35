"""Bounds in whole runs: with room for everything nothing is read twice, and warm nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.prepare import prepare
from experiments.engines import inline
from fedio.checkpoints import Checkpoint
from fedio.config import Experiment
from fedio.runs import Run, RunFolder, read_run

Tiny = Callable[..., Experiment]
WAYS = (
    "engine.workers=0",
    "engine.workers=2",
    "cache.store='memory'",
    "cache.store='memory' engine.workers=2",
)


def play(experiment: Experiment, path: Path) -> Run:
    inline.run(experiment, RunFolder.create(path, experiment))
    return read_run(path)


def lines(run: Run) -> list[str]:
    return [(run.path / name).read_text() for name in ("rounds.jsonl", "clients.jsonl")]


def bound(tiny: Tiny, kind: str, *overrides: str) -> Experiment:
    """Three batches are all samples of a client: what comes twice in one is read twice for it."""
    arm = "arm='two'", f"arms.two.cache='{kind}'", "cache.share=0.1"
    return tiny(*arm, "training.local_steps=3", "training.batch_size=6", *overrides)


@pytest.mark.parametrize("kind", ["unbounded", "warm"])
def test_stores_and_workers_make_no_difference(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    runs = [
        play(bound(tiny, kind, *way.split()), tmp_path / str(number))
        for number, way in enumerate(WAYS)
    ]
    rows, federation = runs[0].clients, prepare(tiny())
    trained = {row["client"] for row in rows}
    read, written = (sum(row[name] for row in rows) for name in ("origin_bytes", "written_bytes"))
    own = sum(int(federation.size_bytes[federation.samples_of(i)].sum()) for i in trained)
    assert runs[0].summary["evictions"] == 0
    assert read == written
    assert (read == 0) if kind == "warm" else (0 < read <= own)
    for run in runs[1:]:
        assert lines(run) == lines(runs[0])


@pytest.mark.parametrize("store", ["lmdb", "memory"])
@pytest.mark.parametrize("kind", ["unbounded", "warm"])
def test_a_run_goes_on_as_if_it_had_not_been_cut(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, store: str
) -> None:
    experiment, keep = bound(tiny, kind, f"cache.store='{store}'"), RunFolder.keep

    def cut(folder: RunFolder, checkpoint: Checkpoint) -> None:
        keep(folder, checkpoint)
        if checkpoint.notes["round"] == 2:
            raise KeyboardInterrupt

    folder = RunFolder.create(tmp_path / "cut", experiment)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "keep", cut)
        with pytest.raises(KeyboardInterrupt):
            inline.run(experiment, folder)
    inline.run(experiment, RunFolder.again(tmp_path / "cut", experiment))
    assert lines(read_run(tmp_path / "cut")) == lines(play(experiment, tmp_path / "whole"))
