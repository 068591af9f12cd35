"""What each command does, once its arguments are read."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clients.datasets import DATASETS
from clients.models import MODELS
from clients.prepare import describe, load_split, prepare
from clients.samplers import SAMPLERS
from experiments import compare as comparison
from experiments import doctor as checks
from experiments import plots, replays, telemetry
from experiments import probe as probes
from experiments import report as reports
from experiments.bench import BENCHES
from experiments.bench import Row as BenchRow
from experiments.engines import ENGINES, emulate
from experiments.explain import print_round
from experiments.figures import compare_json
from experiments.fitting import fit
from experiments.probe.options import wanted_of
from experiments.progress import watch
from experiments.table import number, percent, print_table, seconds
from experiments.units import CLOCKS
from fedio.config import Experiment, Spec
from fedio.errors import FruitlessError, InputError, RunError
from fedio.home import RUNS_FOLDER, run_name
from fedio.loading import find, load, presets
from fedio.output import dumps, make_folder, reserved, write_text
from fedio.plugins import unknown
from fedio.profiles import known_profiles, load_profile
from fedio.runs import (
    CONFIG_FILE,
    FILES,
    SUMMARY_FILE,
    TELEMETRY_FILE,
    TRACE_FILE,
    Row,
    Run,
    RunFolder,
    check_reusable,
    find_runs,
    made_by_this_code,
    read_run,
)
from storage.policies import POLICIES
from strategies.aggregations import AGGREGATIONS
from strategies.selectors import SELECTORS

EXPORTS = reports.FORMATS

# What `fedio list KIND` lists: name -> one line.
TABLES: dict[str, Mapping[str, object] | list[str]] = {
    "policies": POLICIES,
    "selectors": SELECTORS,
    "aggregations": AGGREGATIONS,
    "samplers": SAMPLERS,
    "models": MODELS,
    "datasets": DATASETS,
    "engines": ENGINES,
    "profiles": known_profiles(),
    "presets": presets(),
}

out_console = Console(highlight=False, markup=False)
progress_console = Console(stderr=True, highlight=False, markup=False)

Engine = Callable[[Experiment, RunFolder], None]
EMULATE = "emulate"


def run(options: argparse.Namespace) -> None:
    """Run one arm; `fedio emulate` is this with another engine."""
    experiment = _experiment(options).for_arm(options.arm, options.seed)
    _check_clock(experiment, options.engine)
    out = options.out or Path(RUNS_FOLDER) / run_name(experiment)
    _check_file(options.json)
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
    _write_json(options.json, done.summary)


def _engine(options: argparse.Namespace) -> Engine:
    """Return what runs it."""
    if options.engine == EMULATE:
        return partial(emulate.run, tls=getattr(options, "tls", False), say=_say)
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
        with watch({name: folder.path}, experiment.rounds.rounds, progress_console):
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
    experiment = _experiment(options)
    _check_clock(experiment, "compare")
    out = options.out or Path(RUNS_FOLDER) / f"compare-{experiment.name}"
    _check_file(options.json)
    plan = comparison.plan(experiment, out, quick=options.quick, seeds=options.seeds)
    try:
        with reserved(out):
            folders = comparison.execute(
                plan, progress_console, workers=options.jobs, reuse=not options.no_cache
            )
    except KeyboardInterrupt:
        progress_console.print("the same command goes on where this one was")
        raise
    runs = [read_run(folder) for folder in folders]
    figures = compare_json(
        runs,
        target=experiment.compare.target_accuracy,
        reference=experiment.compare.reference or None,
    )
    _present(runs, out, figures, options.json)


def report(options: argparse.Namespace) -> None:
    """Make table, plots and report again from run folders, explain a round, or export."""
    _check_file(options.json)
    if options.json and (options.round is not None or options.export):
        raise InputError("--json goes with the table, not with --round or --export")
    runs = [read_run(path) for path in find_runs(options.runs)]
    if options.round is not None:
        if len(runs) != 1:
            raise InputError(f"--round explains one run, and these are {len(runs)}; name one")
        print_round(out_console, runs[0], options.round)
        return
    out = _report_folder(options)
    if options.export:
        for path in reports.export(runs, out, options.export):
            out_console.print(path, soft_wrap=True)
        return
    _present(runs, out, compare_json(runs, options.target), options.json)


def plot(options: argparse.Namespace) -> None:
    """Draw the plots."""
    runs = [read_run(path) for path in find_runs(options.runs)]
    target = options.target or runs[0].experiment.compare.target_accuracy
    for path in plots.write(runs, _report_folder(options), target):
        out_console.print(path, soft_wrap=True)


def data(options: argparse.Namespace) -> None:
    """List, fetch or describe data."""
    if options.action == "list":
        _print_names(DATASETS)
    elif options.action == "fetch":
        home = Experiment.model_validate(
            {"name": "x", "data": {"folder": options.folder}}
        ).data.home
        split = load_split(Spec(name=options.dataset), home)
        out_console.print(
            f"{options.dataset}: {len(split.train)} training and {len(split.test)} test samples "
            f"in {home}"
        )
    else:
        experiment = _experiment(options).for_arm(None, options.seed)
        _check_file(options.json)
        facts = describe(prepare(experiment))
        _print_facts(facts)
        _write_json(options.json, facts)


def replay(options: argparse.Namespace) -> None:
    """Replay a trace under policies."""
    _check_file(options.json)
    trace = replays.find_trace(options.trace, options.seed)
    file = replays.file_of(options.trace)
    if options.json and file and options.json.resolve() == file.resolve():
        raise InputError(f"--json {options.json} is the trace; name another file")
    capacities = replays.capacities_of(options.capacity, trace)
    contenders = replays.contenders_of(options.policies, trace)
    if options.out and len(capacities) < 2:
        raise InputError("--out draws curves, which need two values of --capacity or more")
    if options.out:
        make_folder(options.out)
    rows: list[Row] = []
    for row in replays.rows(trace, contenders, capacities):
        if not rows or row["policy"] != rows[-1]["policy"]:
            progress_console.print(f"replaying {row['policy']}", soft_wrap=True)
        rows.append(row)
    if not rows:
        raise RunError("nothing could be replayed")
    replays.print_table(out_console, trace, rows)
    _write_json(options.json, {"schema": 1, "trace": replays.facts(trace), "rows": rows})
    if options.out:
        for path in replays.write_curves(rows, trace.name, options.out):
            out_console.print(path, soft_wrap=True)


def bench(options: argparse.Namespace) -> None:
    """Run benchmarks and print their rows."""
    _check_file(options.json)
    for name in options.benches:
        if name not in BENCHES:
            raise InputError(unknown("bench", name, BENCHES))
    rows: list[BenchRow] = []
    table = Table(box=None, pad_edge=False)
    for title in ("name", "value", "unit", "reference", "ratio", "setting"):
        table.add_column(title, justify="right" if title in {"value", "ratio"} else "left")
    for row in (row for name in options.benches or BENCHES for row in BENCHES[name]()):
        rows.append(row)
        setting = ", ".join(f"{key} {value}" for key, value in row.setting.items())
        cells = (row.name, f"{row.value:.3g}", row.unit, row.reference, f"{row.ratio:.2f}x")
        table.add_row(*cells, setting)
        progress_console.print(
            f"{row.name} ({setting}): {row.ratio:.2f}x {row.reference}", soft_wrap=True
        )
    out_console.print(table)
    _write_json(options.json, {"schema": 1, "rows": [row.to_dict() for row in rows]})


def probe(options: argparse.Namespace) -> None:
    """Measure this machine, print what was found, and write its profile."""
    if options.out and options.out.suffix != ".toml":
        raise InputError(f"--out {options.out}: a profile's file is named *.toml")
    if options.out and options.json and options.out.resolve() == options.json.resolve():
        raise InputError(f"--out and --json are both {options.out}; name another file")
    _check_file(options.json)
    _check_file(options.out)

    def say(text: str) -> None:
        progress_console.print(text, soft_wrap=True)

    if options.verify:
        _verify(options, say)
        return
    found = probes.probe(wanted_of(options), say)
    probes.print_probe(out_console, found)
    profile = probes.to_toml(found.profile)
    if options.out:
        _write_text(options.out, profile)
        out_console.print(f"\nProfile: {options.out}", soft_wrap=True)
    else:
        out_console.print(f"\nProfile, which --out FILE.toml writes:\n{profile}", soft_wrap=True)
    _write_json(options.json, {"schema": 1, "path": str(options.folder), **found.to_dict()})


def _verify(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Compare the virtual clock with this machine."""
    if options.out:
        raise InputError("--verify writes no profile: leave --out away")
    found = probes.verify(options.folder, probes.Amount(), say)
    probes.print_verification(out_console, found)
    _write_json(options.json, {**found, "path": str(options.folder)})


def list_names(options: argparse.Namespace) -> None:
    """List the names of a kind."""
    if options.kind == "profiles":
        _print_rows((name, load_profile(name).description) for name in known_profiles())
    elif options.kind == "presets":
        _print_rows((name, load(find(name)).description) for name in presets())
    else:
        _print_names(TABLES[options.kind])


def doctor(options: argparse.Namespace) -> None:
    """Check the installation."""
    del options
    checks.check(out_console)


def _report_folder(options: argparse.Namespace) -> Path:
    """Return where a report goes: beside the runs if they are in one folder."""
    alone: Path = options.runs[0]
    return options.out or (alone if len(options.runs) == 1 else Path(RUNS_FOLDER) / "report")


def _experiment(options: argparse.Namespace) -> Experiment:
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
        # What the file has of cohorts is made to fit below.
        overrides.append(f"data.clients={10**6}")
    experiment = load(find(options.experiment), overrides)
    if clients is not None:
        experiment, changes = fit(experiment, clients)
        if changes:
            _say(f"with {clients} clients: {', '.join(changes)}")
    if getattr(options, "engine", None) == EMULATE:
        experiment = emulate.timed(experiment)
    checks.check_experiment(experiment)
    return experiment


def _check_clock(experiment: Experiment, engine: str) -> None:
    """Check that what is to run the experiment has its clock."""
    if experiment.engine.clock == "wall" and engine != EMULATE:
        raise InputError(
            "engine.clock is wall, which only emulation goes by; use fedio emulate, or "
            "--set engine.clock=virtual"
        )


def _present(runs: list[Run], out: Path, figures: Row, json_file: Path | None) -> None:
    """Print the table, and write plots, report and JSON."""
    print_table(out_console, figures)
    path = reports.write(runs, out, figures)
    out_console.print(f"\nReport with plots: {path}", soft_wrap=True)
    _write_json(json_file, figures)


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


def _say(text: str) -> None:
    progress_console.print(text, soft_wrap=True)


def _print_names(table: Mapping[str, object] | list[str]) -> None:
    rows = table.items() if isinstance(table, Mapping) else [(name, "") for name in table]
    _print_rows(
        (name, (getattr(thing, "__doc__", "") or "").split("\n")[0]) for name, thing in rows
    )


def _print_rows(rows: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(name, text)
    out_console.print(grid)


def _print_facts(facts: Row, indent: str = "") -> None:
    for key, value in facts.items():
        label = f"{indent}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            out_console.print(f"{label}:")
            _print_facts(dict(value), indent + "  ")
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            out_console.print(f"{label}: {shown}", markup=False)


def _check_file(path: Path | None) -> None:
    """Find out before the work that its figures could not be written."""
    if path is None:
        return
    try:
        file = path.resolve()
        if file.is_dir() or not file.parent.is_dir():
            raise InputError(f"cannot write {path}: it needs a file name in a folder that exists")
        if file.exists() and not file.is_file():
            raise InputError(f"cannot write {path}: it is no plain file, and would be replaced")
        if (
            file.name in {*FILES, TRACE_FILE, TELEMETRY_FILE}
            and (file.parent / CONFIG_FILE).exists()
        ):
            raise InputError(f"{path} is a file of a run; name another file")
        # With a name as long as the one that the figures are written under.
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}."):
            pass
    except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {path}: {why}") from error


def _write_json(path: Path | None, value: Row) -> None:
    if path is not None:
        _write_text(path, dumps(value, indent=2) + "\n")


def _write_text(path: Path, text: str) -> None:
    try:
        write_text(path, text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
