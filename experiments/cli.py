"""The command line: `fedio COMMAND ...`.

Exit code 0: done; 1: the run failed; 2: the input is wrong. Errors are one line that says what to
do; `--debug` shows the traceback.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from experiments import board, commands, mapping, running
from experiments.logs import quiet
from experiments.probe.options import add_options as add_probe
from fedio.errors import InputError, RunError
from storage.errors import StorageError

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `InputError`s: one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    quiet()
    # Plug-ins beside the experiment: named package.module:Class, found as `python -m` finds them.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        options = _parser().parse_args(given)
        command: Callable[[argparse.Namespace], None] = options.command
        command(options)
    except KeyboardInterrupt:
        errors.print("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever happens, the user gets a line
        if "--debug" in given:
            traceback.print_exc()
        errors.print(f"error: {_line(error)}")
        return WRONG_INPUT if isinstance(error, InputError) else FAILED
    return DONE


def _line(error: Exception) -> str:
    said = " ".join(filter(None, map(str.strip, str(error).splitlines())))
    if isinstance(error, InputError | RunError | StorageError):
        return said
    return f"{type(error).__name__}: {said} (unexpected; --debug shows where)"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fedio", description="A testbed for federated learning where storage matters."
    )
    parser.set_defaults(debug=False)
    commands_of = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], None], text: str) -> _Parser:
        made: _Parser = commands_of.add_parser(name, help=text, description=text)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(command=command)
        return made

    _add_run(add("run", running.run, "Run one arm of an experiment."))
    _add_emulate(
        add("emulate", running.run, "Run one arm as real processes on this machine, in real time.")
    )
    device = add("device", board.run, "Be one client alone, for a SuperLink on another machine.")
    _add_experiment(device)
    board.add_options(device)
    _add_compare(add("compare", running.compare, "Run the arms of an experiment and compare them."))
    _add_map(add("map", mapping.run, "Run the comparisons in all cells of an experiment's map."))
    _add_report(add("report", commands.report, "Make the table and the report from run folders."))
    _add_plot(add("plot", commands.plot, "Draw the plots from run folders."))
    _add_data(
        add("data", commands.data, "Look at data sets, get them, or describe an experiment's data.")
    )
    _add_replay(add("replay", commands.replay, "Replay a trace under policies, beside the bound."))
    bench = add("bench", commands.bench, "Measure speeds beside named references.")
    bench.add_argument("benches", nargs="*", metavar="BENCH", help="which (all)")
    _add_json(bench)
    add_probe(add("probe", commands.probe, "Measure this machine and write its device profile."))
    listing = add("list", commands.list_names, "List what can be named in an experiment.")
    listing.add_argument(
        "kind",
        choices=sorted(commands.TABLES),
        metavar="KIND",
        help=f"one of {', '.join(sorted(commands.TABLES))}",
    )
    add("doctor", commands.doctor, "Check this installation and say what is missing.")
    return parser


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="PRESET|FILE", help="a preset's name or a TOML file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a key, as in rounds.cohort=5 (may be repeated)",
    )


def _add_out(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"folder for the results ({default})"
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_experiment(parser)
    parser.add_argument(
        "--engine",
        default="inline",
        choices=sorted(commands.TABLES["engines"]),
        help="what runs it (inline)",
    )
    _add_one_run(parser)


def _add_emulate(parser: argparse.ArgumentParser) -> None:
    _add_experiment(parser)
    parser.set_defaults(engine=running.EMULATE)
    parser.add_argument(
        "--clients",
        type=_count,
        metavar="N",
        help="how many, each with processes of its own (the experiment's data.clients)",
    )
    parser.add_argument(
        "--tls", action="store_true", help="encrypt connections, and have nodes prove who they are"
    )
    parser.add_argument(
        "--pace",
        choices=["profile", "none"],
        help="how fast devices are: as in their profile, or as they can (the experiment's own)",
    )
    _add_one_run(parser)


def _add_one_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arm", metavar="NAME", help="which arm (the experiment's own, or the first)"
    )
    parser.add_argument("--record-trace", action="store_true", help="keep what caches were asked")
    parser.add_argument(
        "--seed", type=_seed, metavar="N", help="the run's seed (the experiment's own)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the interrupted run in that folder"
    )
    _add_out(parser, "runs/NAME-ARM-SEED-HASH")
    _add_json(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    _add_experiment(parser)
    parser.add_argument("--quick", action="store_true", help="the short list of arms and seeds")
    parser.add_argument("--target", type=_accuracy, metavar="ACC", help="accuracy to reach, 0 to 1")
    _add_many_runs(parser)
    _add_out(parser, "runs/compare-NAME")
    _add_json(parser)


def _add_map(parser: argparse.ArgumentParser) -> None:
    _add_experiment(parser)
    parser.add_argument(
        "--axis",
        action="append",
        default=[],
        metavar="NAME",
        dest="axes",
        help="which axis (all; may be repeated)",
    )
    _add_many_runs(parser)
    _add_out(parser, "runs/map-NAME")
    _add_json(parser)


def _add_many_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=_count, metavar="N", help="how many seeds per arm")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="runs at a time (1)")
    parser.add_argument("--no-cache", action="store_true", help="run again what is there already")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that hold some"
    )
    parser.add_argument("--round", type=int, metavar="R", help="explain one round of one run")
    parser.add_argument("--target", type=_accuracy, metavar="ACC", help="accuracy to reach, 0 to 1")
    parser.add_argument(
        "--export", choices=commands.EXPORTS, help="write rounds and participations"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE.md", help="write the page of results, of any runs"
    )
    parser.add_argument(
        "--words", type=Path, metavar="FILE.md", help="conclusions for it, below headings ## NAME"
    )
    _add_out(parser, "the folder of RUN")
    _add_json(parser)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that hold some"
    )
    parser.add_argument("--target", type=_accuracy, metavar="ACC", help="accuracy to mark, 0 to 1")
    _add_out(parser, "the folder of RUN")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        nargs="?",
        default="zipf",
        metavar="TRACE",
        help="a trace, a run folder that has one, or a pattern such as zipf(samples=500) (zipf)",
    )
    parser.add_argument(
        "--capacity",
        action="append",
        default=[],
        metavar="SAMPLES,...",
        help="of each cache: samples, a share as in 10%%, or recorded (several)",
    )
    parser.add_argument(
        "--policies",
        action="append",
        default=[],
        metavar="NAME,...",
        help="names, name(key=value), module:Class, libcachesim[:NAME], or all (all)",
    )
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="what a pattern draws from (0)"
    )
    _add_out(parser, "no curves")
    _add_json(parser)


def _add_data(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    actions.add_parser("list", help="list the data sets")
    fetch = actions.add_parser("fetch", help="get a data set and keep it")
    fetch.add_argument("dataset", metavar="NAME", help="the data set's name")
    fetch.add_argument("--folder", default="", metavar="DIR", help="where to keep it")
    describe = actions.add_parser("describe", help="describe who has which samples")
    _add_experiment(describe)
    describe.add_argument("--seed", type=_seed, metavar="N", help="the seed of the partition")
    _add_json(describe)


def _seed(text: str) -> int:
    return _whole(text, 0)


def _count(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"needs a whole number from {least} on, got {text!r}")
    return int(text)


def _accuracy(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"needs a share between 0 and 1, got {text!r}")
    return value
