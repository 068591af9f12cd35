"""SIGKILL in any round, then --resume: all that follows is as in a run that was not interrupted."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.cli import main
from experiments.engines import inline
from fedio.config import Experiment
from fedio.loading import load
from fedio.runs import CACHES_FOLDER, CHECKPOINT_FOLDER, Run, RunFolder, read_run
from strategies.selectors import SELECTORS

pytestmark = pytest.mark.slow

# Where a run may be when it is killed: the function that does not return, as module and name.
PLACES = {
    "training": ("clients.trainer", "Trainer.train"),
    "cache": ("storage.cache", "SampleCache.offer"),
    "saved": ("storage.index_file", "_write"),
    "written": ("fedio.runs", "RunFolder.append_round"),
    "checkpoint": ("fedio.checkpoints", "save_file"),
    "kept": ("fedio.runs", "RunFolder.keep"),
}
ARMS = {name: {"selector": name} for name in SELECTORS}
ARMS["fedcase"] = {"selector": {"name": "fedcase", "args": {"share": 0.5}}, "sampler": "pads"}


def experiment(file: Path, arm: dict[str, Any], **sections: dict[str, Any]) -> Experiment:
    """The tiny experiment with one arm, on ten clients that keep being late."""
    values = load(file).model_dump(mode="json", exclude_none=True)
    values |= {"arm": "", "compare": {}, "arms": {"arm": {"policy": "lru"} | arm}}
    values["data"]["clients"] = 10
    values["rounds"] |= {"rounds": 7, "cohort": 3, "over_commitment": 1.4}
    for name, section in sections.items():
        values[name] |= section
    return Experiment.model_validate(values).for_arm()


def run_whole(chosen: Experiment, path: Path) -> Run:
    inline.run(chosen, RunFolder.create(path, chosen))
    return read_run(path)


def run_until_killed(chosen: Experiment, path: Path, place: str, calls: int) -> None:
    """Run in another process that ends itself, as `kill -9` would, at the n-th call of a place."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([inline.__name__])
    process = context.Process(target=_end_at, args=(chosen, path, place, calls))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it ended before it came there"


def _end_at(chosen: Experiment, path: Path, place: str, calls: int) -> None:
    module, name = PLACES[place]
    counter = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        target = f"{module}.{name}"
        original = _attribute(module, name)

        def ending(*args: Any, **kwargs: Any) -> Any:
            if next(counter) == calls:
                if place in {"cache", "kept"}:  # done, and nobody hears of it any more
                    original(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        patch.setattr(target, ending)
        inline.run(chosen, RunFolder.create(path, chosen))


def _attribute(module: str, name: str) -> Callable[..., Any]:
    found: Any = __import__(module, fromlist=["_"])
    for part in name.split("."):
        found = getattr(found, part)
    made: Callable[..., Any] = found
    return made


def assert_equal_runs(resumed: Run, whole: Run) -> None:
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (resumed.path / name).read_text() == (whole.path / name).read_text()
    clock = {"wall_s"}
    assert {k: v for k, v in resumed.summary.items() if k not in clock} == {
        k: v for k, v in whole.summary.items() if k not in clock
    }
    assert not (resumed.path / CACHES_FOLDER).exists()
    assert not (resumed.path / CHECKPOINT_FOLDER).exists()


def resume(path: Path, *more: str) -> Run:
    """Go on as a user does, from the command line."""
    assert main(["run", str(path / "config.toml"), "--out", str(path), "--resume", *more]) == 0
    return read_run(path)


@pytest.mark.parametrize("aggregation", ["fedavg", "fedadam", "fedbuff"])
@pytest.mark.parametrize("name", ARMS)
def test_every_selector_and_aggregation(
    tiny_file: Path, tmp_path: Path, name: str, aggregation: str
) -> None:
    chosen = experiment(tiny_file, ARMS[name] | {"aggregation": aggregation})
    whole = run_whole(chosen, tmp_path / "whole")
    # Somewhere among the 35 participations, but for those of the first round; its own in each case.
    calls = int(np.random.default_rng([*name.encode(), *aggregation.encode()]).integers(8, 30))
    run_until_killed(chosen, tmp_path / "cut", "training", calls)
    assert_equal_runs(resume(tmp_path / "cut"), whole)
    assert sum(row["hits"] for row in whole.clients) > 0


@pytest.mark.parametrize("store", ["lmdb", "memory"])
@pytest.mark.parametrize("place", PLACES)
def test_every_place(tiny_file: Path, tmp_path: Path, place: str, store: str) -> None:
    arm = {"policy": "experience", "sampler": "pads", "selector": "oort"}
    chosen = experiment(tiny_file, arm, cache={"store": store, "share": 0.4})
    whole = run_whole(chosen, tmp_path / "whole")
    per_round = {"training": 5, "cache": 20, "saved": 5, "written": 1, "checkpoint": 1, "kept": 1}
    for rounds in (0, 2, 5):
        path = tmp_path / f"cut-{rounds}"
        run_until_killed(chosen, path, place, rounds * per_round[place] + 1)
        assert_equal_runs(resume(path), whole)


@pytest.mark.parametrize("policy", ["next_use", "importance"])
def test_staging(tiny_file: Path, tmp_path: Path, policy: str) -> None:
    arm = {"selector": "uniform", "policy": policy, "staging": True}
    chosen = experiment(tiny_file, arm, cache={"share": 0.5, "daily_write_bytes": 300_000})
    whole = run_whole(chosen, tmp_path / "whole")
    assert any(one["staged_samples"] for row in whole.rounds[1:] for one in row["staged"])
    for calls in (7, 18):
        path = tmp_path / f"cut-{calls}"
        run_until_killed(chosen, path, "saved", calls)
        assert_equal_runs(resume(path), whole)


def test_killed_twice_and_with_other_numbers_of_workers(tiny_file: Path, tmp_path: Path) -> None:
    chosen = experiment(tiny_file, {"selector": "io_aware"})
    whole, path = run_whole(chosen, tmp_path / "whole"), tmp_path / "cut"
    run_until_killed(experiment(tiny_file, {"selector": "io_aware"}, engine={"workers": 2}), path,
                     "written", 3)  # fmt: skip
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_go_on_until, args=(chosen, path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert_equal_runs(resume(path, "--set", "engine.workers=2"), whole)


def _go_on_until(chosen: Experiment, path: Path) -> None:
    counter = itertools.count(1)
    original = RunFolder.keep

    def ending(*args: Any) -> None:
        if next(counter) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "keep", ending)
        inline.run(chosen, RunFolder.again(path, chosen))


def test_a_recorded_trace_is_whole_after_it(tiny_file: Path, tmp_path: Path) -> None:
    chosen = experiment(tiny_file, {"selector": "oort"}, engine={"record_trace": True})
    whole = run_whole(chosen, tmp_path / "whole")
    run_until_killed(chosen, tmp_path / "cut", "training", 17)
    resumed = resume(tmp_path / "cut")
    assert_equal_runs(resumed, whole)
    traces = [np.load(run.path / "trace.npz") for run in (resumed, whole)]
    assert traces[0].files == traces[1].files
    for name in traces[0].files:
        np.testing.assert_array_equal(traces[0][name], traces[1][name])


def test_flowers_own_runtime_goes_on_with_what_another_engine_began(
    tiny_file: Path, tmp_path: Path
) -> None:
    chosen = experiment(tiny_file, {"selector": "oort", "aggregation": "fedyogi"})
    whole = run_whole(chosen, tmp_path / "whole")
    run_until_killed(chosen, tmp_path / "cut", "training", 13)
    assert_equal_runs(resume(tmp_path / "cut", "--engine", "flower"), whole)
