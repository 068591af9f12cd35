"""Comparisons: the arms of an experiment, each with the same seeds, in folders of their own."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from rich.console import Console

from experiments.engines import inline
from experiments.logs import quiet
from experiments.progress import Watched, watch
from fedio.config import Arm, Experiment
from fedio.errors import InputError, RunError
from fedio.loading import differing_keys, load
from fedio.output import is_empty, reserved, write_text
from fedio.runs import (
    SUMMARY_FILE,
    TRACE_FILE,
    RunFolder,
    check_reusable,
    made_by_this_code,
    read_run,
)

COMPARISON_FILE = "comparison.toml"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a comparison."""

    experiment: Experiment
    folder: Path

    @property
    def name(self) -> str:
        """What progress calls it."""
        cell = f"{self.experiment.cell}: " if self.experiment.cell else ""
        return f"{cell}{self.experiment.arm}, seed {self.experiment.seed}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of a comparison, or of the several of a map, in order.

    Attributes:
        experiment: what they are runs of.
        jobs: the runs; each has its own folder.
        file: keeps the experiment, and tells what the folder that it is in holds.
    """

    experiment: Experiment
    jobs: list[Job]
    file: Path


def plan(experiment: Experiment, out: Path, *, quick: bool, seeds: int | None) -> Plan:
    """Return the runs that a comparison needs; nothing is written yet.

    Args:
        experiment: arms, reference and seeds are in its `compare` section.
        out: the folder for all of it.
        quick: take the short list of arms and seeds.
        seeds: how many seeds every arm has, instead of what the section says.

    Raises:
        InputError: the folder holds something else, or `jobs_of` finds something wrong.
    """
    section = experiment.compare
    names = (section.quick_arms if quick else section.arms) or list(experiment.arms)
    few = section.quick_seeds if quick else None
    made = Plan(experiment, jobs_of(experiment, names, out, seeds or few), out / COMPARISON_FILE)
    check_folders(made)
    return made


def jobs_of(
    experiment: Experiment, names: Sequence[str], out: Path, seeds: int | None
) -> list[Job]:
    """Return a run for each seed and arm: all arms with the first seed, then with the next.

    Args:
        experiment: seeds are counted from its own.
        names: the arms to run.
        out: the folder that gets one for each arm.
        seeds: how many seeds every arm has; none: as many as the `compare` section gives it.

    Raises:
        InputError: the reference is not among the arms, or arms differ in the form of cached
            samples and in something else.
    """
    section = experiment.compare
    if section.reference and section.reference not in names:
        raise InputError(
            f"compare.reference is {section.reference}, which is not among the arms to run: "
            f"{', '.join(names)}"
        )
    _check_forms({name: experiment.arms[name] for name in names})
    counts = {name: seeds or section.arm_seeds.get(name, section.seeds) for name in names}
    return [
        Job(experiment.for_arm(name, seed), out / name / f"seed-{seed}")
        for seed in range(experiment.seed, experiment.seed + max(counts.values()))
        for name in names
        if seed < experiment.seed + counts[name]
    ]


def check_folders(plan: Plan) -> None:
    """Check that the folders of a plan are new, or hold runs of what it is to run.

    Raises:
        InputError: one holds something else, which would be lost.
    """
    _check_folder(plan.experiment, plan.file)
    for job in plan.jobs:
        check_reusable(job.folder, job.experiment)


def _check_forms(arms: Mapping[str, Arm]) -> None:
    """Check that where the form of cached samples differs, it is what is compared.

    So each form has the same arms, but for their names.

    Raises:
        InputError: an arm has no counterpart of another form.
    """
    named: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, arm in arms.items():
        values = arm.model_dump(mode="json", exclude={"form", "kind"})
        named[arm.form][json.dumps(values, sort_keys=True)] = name
    for form, other in itertools.permutations(named, 2):
        for rest, name in named[form].items():
            if rest not in named[other]:
                raise InputError(
                    f"arm {name} has form {form!r}, and none with form {other!r} is like it in all "
                    "else: give all arms one form, or add that arm"
                )


def execute(plan: Plan, console: Console, *, workers: int, reuse: bool) -> list[Path]:
    """Run what is missing and return the run folders, in the order of the plan.

    Args:
        plan: what to run.
        console: where progress goes.
        workers: how many runs at a time, each in a process of its own; 1 stays in this process.
        reuse: take a complete run of the same experiment and the same code as it is.

    Raises:
        RunError: a run failed.
    """
    write_text(plan.file, plan.experiment.to_toml())
    jobs = [job for job in plan.jobs if not (reuse and _is_complete(job))]
    if len(jobs) < len(plan.jobs):
        console.print(f"{len(plan.jobs) - len(jobs)} of {len(plan.jobs)} runs are there already")
    folders = [(job, _folder_of(job, reuse=reuse)) for job in jobs]
    watched = {job.name: Watched(job.folder, job.experiment.rounds.rounds) for job in jobs}
    with watch(watched, console):
        _run_all(folders, workers)
    return [job.folder for job in plan.jobs]


def _run_all(folders: list[tuple[Job, RunFolder]], workers: int) -> None:
    """Run every job; the first failure ends it."""
    if workers == 1:
        for job, folder in folders:
            _run_one(job.experiment, folder)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([inline.__name__])
    with ProcessPoolExecutor(workers, mp_context=context, initializer=begin_job) as pool:
        runs = [pool.submit(_run_one, job.experiment, folder) for job, folder in folders]
        try:
            for run in as_completed(runs):
                run.result()
        except BrokenProcessPool as error:
            raise RunError("a job's process was ended from outside; compare again") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _run_one(experiment: Experiment, folder: RunFolder) -> None:
    with reserved(folder.path):
        inline.run(experiment, folder)


def begin_job() -> None:
    """Set up a process that runs jobs: it ends when the one that started it does."""
    quiet()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """Wait for another process to end, however that happens, and end this one at once."""
    wait([sentinel])
    os._exit(1)


def _is_complete(job: Job) -> bool:
    """Tell whether the job's folder holds all that it asks for, from this very code."""
    if not (job.folder / SUMMARY_FILE).is_file():
        return False
    if job.experiment.engine.record_trace and not (job.folder / TRACE_FILE).is_file():
        return False
    try:
        read_run(job.folder)
    except InputError:
        return False
    return made_by_this_code(job.folder, job.experiment)


def _folder_of(job: Job, *, reuse: bool) -> RunFolder:
    """Return the folder to run a job into: one that an interrupted run left, if it may go on."""
    begun = RunFolder(job.folder)
    if reuse and begun.is_begun and made_by_this_code(job.folder, job.experiment):
        return begun
    return RunFolder.create(job.folder, job.experiment)


def _check_folder(experiment: Experiment, file: Path) -> None:
    """Check that the folder is new, or has such a file, of the same setting."""
    out = file.parent
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} is a file; name a folder with --out")
    if is_empty(out):
        return
    if not file.is_file():
        raise InputError(f"{out} is not empty and holds no {file.stem}; name another --out")
    other = load(file)
    if other.setting != experiment.setting:
        differing = ", ".join(differing_keys(other, experiment)[:4])
        raise InputError(
            f"{out} holds another experiment (it differs in {differing}); name another --out"
        )
