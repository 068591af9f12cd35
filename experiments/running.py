"""Running an experiment: one arm, or a comparison of several."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from experiments import compare as comparison
from experiments import doctor as checks
from experiments import report as reports
from experiments import telemetry
from experiments.engines import ENGINES, emulate
from experiments.figures import compare_json
from experiments.fitting import fit
from experiments.interrupts import ended_like_interrupts
from experiments.progress import Watched, watch
from experiments.table import number, percent, print_table, seconds
from experiments.terminal import check_file, out_console, progress_console, say, write_json
from experiments.units import CLOCKS
from fedio.config import Experiment
from fedio.errors import FruitlessError, InputError
from fedio.home import RUNS_FOLDER, run_name
from fedio.loading import find, load
from fedio.output import reserved
from fedio.runs import (
    SUMMARY_FILE,
    TRACE_FILE,
    Row,
    Run,
    RunFolder,
    check_reusable,
    made_by_this_code,
    read_run,
)

Engine = Callable[[Experiment, RunFolder], None]
EMULATE = "emulate"
MOST_CLIENTS = 10**6


def run(options: argparse.Namespace) -> None:
    """Run one arm; `fedio emulate` is this with another engine."""
    experiment = experiment_of(options).for_arm(options.arm, options.seed)
    check_clock(experiment, options.engine)
    if options.engine == EMULATE:
        emulate.check(experiment)
    out = options.out or Path(RUNS_FOLDER) / run_name(experiment)
    check_file(options.json)
    check_reusable(out, experiment)
    if options.resume and not out.is_dir():
        raise InputError(f"there is no run in {out} to resume; leave --resume out")
    if options.resume and (out / SUMMARY_FILE).is_file():
        progress_console.print(f"the run in {out} is complete already", soft_wrap=True)
        RunFolder(out).tidy(keep_caches=experiment.cache.keep)
    else:
        with reserved(out) as lock:
            open_folder = RunFolder.again if options.resume else RunFolder.create
            folder = open_folder(out, experiment)
            folder.lock = lock
            if options.resume and not folder.is_begun:
                progress_console.print(
                    f"there is no checkpoint in {out}: it begins anew", soft_wrap=True
                )
            _run(experiment, folder, _engine(options))
    done = read_run(out)
    _print_summary(done)
    write_json(options.json, done.summary)


def _engine(options: argparse.Namespace) -> Engine:
    """Return what runs it."""
    if options.engine == EMULATE:
        return partial(emulate.run, tls=getattr(options, "tls", False), say=say)
    return ENGINES[options.engine]


def _run(experiment: Experiment, folder: RunFolder, engine: Engine) -> None:
    """Run an experiment to its end; one that stops before can be resumed from its last round."""
    name, goes_on = f"{experiment.arm}, seed {experiment.seed}", folder.is_begun
    if goes_on and not made_by_this_code(folder.path, experiment):
        progress_console.print(
            "fedio or the machine has changed since this run began: from here on its results may "
            "differ from those of a run that was not interrupted"
        )
    try:
        with (
            ended_like_interrupts(),
            watch({name: Watched(folder.path, experiment.rounds.rounds)}, progress_console),
        ):
            engine(experiment, folder)
    except InputError:
        if not goes_on:
            folder.abandon()
        raise
    except FruitlessError:
        raise
    except (Exception, KeyboardInterrupt):
        if folder.is_begun:
            progress_console.print(
                f"its rounds so far are kept in {folder.path}; the same command with --resume goes "
                "on from there",
                soft_wrap=True,
            )
        raise


def compare(options: argparse.Namespace) -> None:
    """Run a comparison, then make its table, plots and report."""
    experiment = experiment_of(options)
    check_clock(experiment, "compare")
    out = options.out or Path(RUNS_FOLDER) / f"compare-{experiment.name}"
    check_file(options.json)
    plan = comparison.plan(experiment, out, quick=options.quick, seeds=options.seeds)
    runs = [read_run(folder) for folder in carry_out(plan, options)]
    figures = compare_json(
        runs,
        target=experiment.compare.target_accuracy,
        reference=experiment.compare.reference or None,
    )
    present(runs, out, figures, options.json)


def carry_out(plan: comparison.Plan, options: argparse.Namespace) -> list[Path]:
    """Run what is missing of a plan and return its run folders."""
    try:
        with reserved(plan.file.parent):
            return comparison.execute(
                plan, progress_console, workers=options.jobs, reuse=not options.no_cache
            )
    except KeyboardInterrupt:
        progress_console.print("the same command goes on where this one was")
        raise


def experiment_of(options: argparse.Namespace) -> Experiment:
    """Load the experiment and check that what it names is there."""
    overrides = list(options.overrides)
    if getattr(options, "target", None) is not None:
        overrides.append(f"compare.target_accuracy={options.target}")
    if getattr(options, "record_trace", False):
        overrides.append("engine.record_trace=true")
    if getattr(options, "pace", None) is not None:
        overrides.append(f"emulation.pace={options.pace}")
    clients = getattr(options, "clients", None)
    if clients is not None:
        if clients > MOST_CLIENTS:
            raise InputError(f"--clients {clients}: there can be at most {MOST_CLIENTS}")
        # What the file has of cohorts is made to fit below.
        overrides.append(f"data.clients={MOST_CLIENTS}")
    experiment = load(find(options.experiment), overrides)
    if clients is not None:
        experiment, changes = fit(experiment, clients)
        if changes:
            say(f"with {clients} clients: {', '.join(changes)}")
    if getattr(options, "engine", None) == EMULATE:
        experiment = emulate.timed(experiment)
    checks.check_experiment(experiment)
    return experiment


def check_clock(experiment: Experiment, engine: str) -> None:
    """Check that what is to run the experiment has its clock."""
    if experiment.engine.clock == "wall" and engine != EMULATE:
        raise InputError(
            "engine.clock is wall, which only emulation goes by; use fedio emulate, or "
            "--set engine.clock=virtual"
        )


def present(runs: list[Run], out: Path, figures: Row, json_file: Path | None) -> None:
    """Print the table, and write plots, report and JSON."""
    print_table(out_console, figures)
    path = reports.write(runs, out, figures)
    out_console.print(f"\nReport with plots: {path}", soft_wrap=True)
    write_json(json_file, figures)


def _print_summary(done: Run) -> None:
    summary = done.summary
    out_console.print(
        f"{summary['arm']}, seed {summary['seed']}: {summary['rounds']} rounds in "
        f"{seconds(done.clock_s)} of {CLOCKS[done.clock]} ({summary['wall_s']:.1f} wall-clock s), "
        f"final accuracy {percent(summary['final_accuracy'])}, "
        f"I/O : compute {number(summary['io_to_compute'])}\nRun folder: {done.path}",
        soft_wrap=True,
    )
    if done.experiment.engine.record_trace:
        out_console.print(f"Trace: {done.path / TRACE_FILE}", soft_wrap=True)
    used = telemetry.summarise(telemetry.read(done.path))
    for line in [] if used is None else telemetry.lines(used):
        out_console.print(line, soft_wrap=True)
