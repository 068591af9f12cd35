"""What each command does, once its arguments are read."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from clients.datasets import DATASETS
from clients.models import MODELS
from clients.prepare import describe, load_split, prepare
from clients.samplers import SAMPLERS
from experiments import doctor as checks
from experiments import plots, replays, results
from experiments import probe as probes
from experiments import report as reports
from experiments.bench import BENCHES
from experiments.bench import Row as BenchRow
from experiments.engines import ENGINES
from experiments.explain import print_round
from experiments.figures import compare_json
from experiments.probe.options import wanted_of
from experiments.running import experiment_of, present
from experiments.terminal import (
    check_file,
    out_console,
    print_facts,
    print_names,
    print_rows,
    progress_console,
    say,
    write_file,
    write_json,
)
from fedio.config import Experiment, Spec
from fedio.errors import InputError, RunError
from fedio.home import RUNS_FOLDER
from fedio.loading import find, load, presets
from fedio.output import make_folder
from fedio.plugins import unknown
from fedio.profiles import known_profiles, load_profile
from fedio.runs import (
    Row,
    find_runs,
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


def report(options: argparse.Namespace) -> None:
    """Make table, plots and report again from run folders, explain a round, export, or a page."""
    if options.markdown or options.words:
        _page(options)
        return
    check_file(options.json)
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
    present(runs, out, compare_json(runs, options.target), options.json)


def _page(options: argparse.Namespace) -> None:
    """Write the page of results."""
    if options.markdown is None:
        raise InputError("--words goes with --markdown FILE.md")
    for name in ("json", "round", "export", "target", "out"):
        if getattr(options, name) is not None:
            raise InputError(f"--markdown writes a page and its plots; leave --{name} out")
    check_file(options.markdown)
    if options.words is not None and options.words.resolve() == options.markdown.resolve():
        raise InputError(f"--words and --markdown are both {options.words}; name another page")
    words = {} if options.words is None else results.read_words(options.words)
    results.write(find_runs(options.runs), options.markdown, words)
    out_console.print(options.markdown, soft_wrap=True)


def plot(options: argparse.Namespace) -> None:
    """Draw the plots."""
    runs = [read_run(path) for path in find_runs(options.runs)]
    for path in plots.write(runs, _report_folder(options), compare_json(runs, options.target)):
        out_console.print(path, soft_wrap=True)


def data(options: argparse.Namespace) -> None:
    """List, fetch or describe data."""
    if options.action == "list":
        print_names(DATASETS)
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
        experiment = experiment_of(options).for_arm(None, options.seed)
        check_file(options.json)
        facts = describe(prepare(experiment))
        print_facts(facts)
        write_json(options.json, facts)


def replay(options: argparse.Namespace) -> None:
    """Replay a trace under policies."""
    check_file(options.json)
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
    write_json(options.json, {"schema": 1, "trace": replays.facts(trace), "rows": rows})
    if options.out:
        for path in replays.write_curves(rows, trace.name, options.out):
            out_console.print(path, soft_wrap=True)


def bench(options: argparse.Namespace) -> None:
    """Run benchmarks and print their rows."""
    check_file(options.json)
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
    write_json(options.json, {"schema": 1, "rows": [row.to_dict() for row in rows]})


def probe(options: argparse.Namespace) -> None:
    """Measure this machine, print what was found, and write its profile."""
    if options.out and options.out.suffix != ".toml":
        raise InputError(f"--out {options.out}: a profile's file is named *.toml")
    if options.out and options.json and options.out.resolve() == options.json.resolve():
        raise InputError(f"--out and --json are both {options.out}; name another file")
    check_file(options.json)
    check_file(options.out)
    if options.verify:
        _verify(options)
        return
    found = probes.probe(wanted_of(options), say)
    probes.print_probe(out_console, found)
    profile = probes.to_toml(found.profile)
    if options.out:
        write_file(options.out, profile)
        out_console.print(f"\nProfile: {options.out}", soft_wrap=True)
    else:
        out_console.print(f"\nProfile, which --out FILE.toml writes:\n{profile}", soft_wrap=True)
    write_json(options.json, {"schema": 1, "path": str(options.folder), **found.to_dict()})


def _verify(options: argparse.Namespace) -> None:
    """Compare the virtual clock with this machine."""
    if options.out:
        raise InputError("--verify writes no profile: leave --out away")
    found = probes.verify(options.folder, probes.Amount(), say)
    probes.print_verification(out_console, found)
    write_json(options.json, {**found, "path": str(options.folder)})


def list_names(options: argparse.Namespace) -> None:
    """List the names of a kind."""
    if options.kind == "profiles":
        print_rows((name, load_profile(name).description) for name in known_profiles())
    elif options.kind == "presets":
        print_rows((name, load(find(name)).description) for name in presets())
    else:
        print_names(TABLES[options.kind])


def doctor(options: argparse.Namespace) -> None:
    """Check the installation."""
    del options
    checks.check(out_console)


def _report_folder(options: argparse.Namespace) -> Path:
    """Return where a report goes: beside the runs if they are in one folder."""
    alone: Path = options.runs[0]
    return options.out or (alone if len(options.runs) == 1 else Path(RUNS_FOLDER) / "report")
