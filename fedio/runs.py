"""The run folder: what a run leaves behind, and all that reports read.

`config.toml` (the resolved experiment), `env.json` (what it ran on), `rounds.jsonl` (a line per
round), `clients.jsonl` (a line per participation), `trace.npz` if it was asked for,
`telemetry.jsonl` of an emulation (what its processes used), `summary.json` (written last, so that
its presence says that the run is complete). Until then `checkpoint/` has what it takes to go on
after the last whole round. Seconds are of the run's clock, virtual or its devices' own, unless a
key says `wall`, `virtual` or `flower`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

import numpy as np

from fedio.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from fedio.config import Experiment
from fedio.environment import environment
from fedio.errors import InputError, RunError
from fedio.loading import differing_keys, load
from fedio.output import LOCK_FILE, dumps, is_empty, make_folder, unwritable, write_text
from fedio.traces import check_recorded, collect
from storage.lmdb_store import INDEX_FILE

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.toml"
ENV_FILE = "env.json"
ROUNDS_FILE = "rounds.jsonl"
CLIENTS_FILE = "clients.jsonl"
SUMMARY_FILE = "summary.json"
TRACE_FILE = "trace.npz"
TELEMETRY_FILE = "telemetry.jsonl"
CACHES_FOLDER = "caches"
TRACE_FOLDER = "trace-parts"
CHECKPOINT_FOLDER = "checkpoint"
CHECKPOINT_FILE = f"{CHECKPOINT_FOLDER}/state.safetensors"
SUMMARY_KEYS = {"rounds", "io_to_compute", "holdout"}
CLOCK_KEYS = {"virtual": "virtual_s", "wall": "device_s"}
"""Where a summary has the seconds of a run, by its clock."""
ENV_KEYS = {"command", "commit", "instruction_set", "versions"}
HELD_EVALUATIONS = 3
"""So many evaluations in a row must have an accuracy for it to be reached, at the first of them."""
FILES = (CONFIG_FILE, ENV_FILE, ROUNDS_FILE, CLIENTS_FILE, SUMMARY_FILE)

Row = dict[str, Any]


class RunFolder:
    """A run being written.

    Attributes:
        path: the folder.
        lock: the descriptor that keeps others from writing to it; see `fedio.output.reserved`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = None

    @classmethod
    def create(cls, path: Path, experiment: Experiment) -> RunFolder:
        """Make the folder for a run, or take the one an equal run left, whose files it replaces.

        Raises:
            InputError: the path is a file, cannot be written, or holds something else.
        """
        make_folder(path)
        check_reusable(path, experiment)
        for name in (SUMMARY_FILE, ROUNDS_FILE, CLIENTS_FILE, TRACE_FILE, TELEMETRY_FILE):
            (path / name).unlink(missing_ok=True)
            # What a writer leaves that is ended by force.
            for leftover in path.glob(f".{name}.*"):
                leftover.unlink()
        for folder in (TRACE_FOLDER, CHECKPOINT_FOLDER):
            rmtree(path / folder, ignore_errors=True)
        try:
            if experiment.engine.record_trace:
                (path / TRACE_FOLDER).mkdir()
            write_text(path / CONFIG_FILE, experiment.to_toml())
            write_text(path / ENV_FILE, dumps(environment(experiment), indent=2))
        except OSError as error:
            raise unwritable(path, error.strerror) from error
        return cls(path)

    @classmethod
    def again(cls, path: Path, experiment: Experiment) -> RunFolder:
        """Return the folder of an interrupted run, to go on where it was.

        One in which no round was over, or that keeps no checkpoints, begins anew.

        Raises:
            InputError: it cannot be written, or it is of another experiment.
        """
        check_reusable(path, experiment)
        begun = cls(path)
        if not begun.is_begun:
            return cls.create(path, experiment)
        if not (path / ENV_FILE).is_file():
            raise InputError(f"{path} lacks {ENV_FILE}; run again without --resume")
        if experiment.engine.record_trace != load(path / CONFIG_FILE).engine.record_trace:
            began = "without" if experiment.engine.record_trace else "with"
            raise InputError(f"the run in {path} began {began} recording a trace, and goes on so")
        return begun

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.path / CHECKPOINT_FILE).is_file()

    def keep(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, with how much is written down by now."""
        written = {name: (self.path / name).stat().st_size for name in (ROUNDS_FILE, CLIENTS_FILE)}
        notes = checkpoint.notes | {"written_bytes": written}
        write_checkpoint(self.path / CHECKPOINT_FILE, Checkpoint(checkpoint.arrays, notes))

    def go_back(self) -> Checkpoint:
        """Return the checkpoint, and take back what was written down after it.

        Raises:
            InputError: it is damaged, or what was written down before it is gone.
        """
        checkpoint = read_checkpoint(self.path / CHECKPOINT_FILE)
        for name in (ROUNDS_FILE, CLIENTS_FILE):
            file, size_bytes = self.path / name, checkpoint.notes["written_bytes"][name]
            if not file.is_file() or file.stat().st_size < size_bytes:
                raise InputError(f"{file} lacks what was in it; run again without --resume")
            try:
                os.truncate(file, size_bytes)
            except OSError as error:
                raise unwritable(self.path, error.strerror) from error
        return checkpoint

    def tidy(self, *, keep_caches: bool) -> None:
        """Remove what a run needs only until it is complete, unless it still is to go on."""
        if (self.path / SUMMARY_FILE).is_file():
            rmtree(self.path / CHECKPOINT_FOLDER, ignore_errors=True)
        if not self.is_begun:
            rmtree(self.path / TRACE_FOLDER, ignore_errors=True)
            if not keep_caches:
                rmtree(self.path / CACHES_FOLDER, ignore_errors=True)

    def check_caches(self) -> None:
        """Check that all who trained before the checkpoint still have their caches here.

        Raises:
            InputError: some are gone, so that the run cannot go on as it was.
        """
        size_bytes = read_checkpoint(self.path / CHECKPOINT_FILE).notes["written_bytes"]
        text = (self.path / CLIENTS_FILE).read_bytes()[: size_bytes[CLIENTS_FILE]]
        rows = [json.loads(line) for line in text.splitlines()]
        caches = self.path / CACHES_FOLDER
        trained = {row["client"] for row in rows if "requests" in row}
        gone = [client for client in trained if not (caches / f"{client}" / INDEX_FILE).is_file()]
        if gone:
            raise InputError(
                f"the caches of {len(gone)} clients in {caches} are gone, so the run cannot go on "
                "as it was; run again without --resume"
            )

    def abandon(self) -> None:
        """Take back a folder in which nothing ran, so that it does not stand in the way."""
        if not (self.path / ROUNDS_FILE).exists():
            for name in (CONFIG_FILE, ENV_FILE, TELEMETRY_FILE, LOCK_FILE):
                (self.path / name).unlink(missing_ok=True)
            rmtree(self.path / TRACE_FOLDER, ignore_errors=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def append_round(self, row: Row) -> None:
        """Add a line to `rounds.jsonl`."""
        self._append(ROUNDS_FILE, [row])

    def append_clients(self, rows: Iterable[Row]) -> None:
        """Add lines to `clients.jsonl`.

        Raises:
            RunError: it cannot be written, or a participation could not be recorded: without it
                neither the trace nor the results would be those of this experiment.
        """
        written = list(rows)
        self._append(CLIENTS_FILE, written)
        for row in written:
            check_recorded(row.get("problem"))

    def finish(self, summary: Row) -> None:
        """Put the trace together if there is to be one, and write `summary.json`: it is complete.

        Raises:
            RunError: a file cannot be written, or the trace would not be whole.
        """
        if (self.path / TRACE_FOLDER).exists():
            rows = _lines(self.path / CLIENTS_FILE)
            metered = {(row["client"], row["round"]) for row in rows if "requests" in row}
            collect(self.path / TRACE_FOLDER, metered, self.path / TRACE_FILE)
        try:
            write_text(self.path / SUMMARY_FILE, dumps(summary, indent=2))
        except OSError as error:
            raise RunError(f"cannot write {self.path / SUMMARY_FILE}: {error.strerror}") from error
        rmtree(self.path / CHECKPOINT_FOLDER, ignore_errors=True)

    def _append(self, name: str, rows: Iterable[Row]) -> None:
        try:
            with (self.path / name).open("a") as file:
                file.writelines(dumps(row) + "\n" for row in rows)
        except OSError as error:
            raise RunError(f"cannot write {self.path / name}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run, read back."""

    path: Path
    experiment: Experiment
    env: Row
    rounds: list[Row]
    clients: list[Row]
    summary: Row

    @property
    def clock(self) -> Literal["virtual", "wall"]:
        """By which clock its seconds are: the cost model's, or its devices' own."""
        return self.experiment.engine.clock

    @property
    def clock_s(self) -> float:
        """How long it took on its clock."""
        return float(self.summary[CLOCK_KEYS[self.clock]])


def read_run(path: Path) -> Run:
    """Read a run folder.

    Raises:
        InputError: it is not a run folder, or the run did not finish.
    """
    missing = [name for name in FILES if not (path / name).is_file()]
    if CONFIG_FILE in missing:
        raise InputError(f"{path} is not a run folder: it has no {CONFIG_FILE}")
    if missing:
        raise InputError(
            f"the run in {path} did not finish: it has no {', '.join(missing)}; "
            "the command that began it goes on with it when it is given --resume"
        )
    try:
        run = Run(
            path=path,
            experiment=load(path / CONFIG_FILE),
            env=json.loads((path / ENV_FILE).read_text()),
            rounds=_lines(path / ROUNDS_FILE),
            clients=_lines(path / CLIENTS_FILE),
            summary=json.loads((path / SUMMARY_FILE).read_text()),
        )
        _check_whole(run)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} holds a damaged run ({error}); run it again") from error
    return run


def _check_whole(run: Run) -> None:
    """Check that each round was written once, and no participation twice.

    Raises:
        ValueError: some are missing or doubled.
    """
    clock_key = CLOCK_KEYS[run.clock]
    for part, keys in ((run.summary, SUMMARY_KEYS | {clock_key}), (run.env, ENV_KEYS)):
        if missing := keys - part.keys():
            raise ValueError(f"it lacks {min(missing)}")
    if len(run.summary["holdout"]["accuracy"]) != run.experiment.data.clients:
        raise ValueError("its summary is of another number of clients")
    numbers = [row["round"] for row in run.rounds]
    if numbers != list(range(run.summary["rounds"] + 1)):
        raise ValueError(f"its rounds are not 0 to {run.summary['rounds']}, each once")
    participations = {(row["round"], row["client"]) for row in run.clients}
    if len(participations) < len(run.clients):
        raise ValueError("it has a participation twice")


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders among `paths`, and the finished ones below them, sorted.

    Raises:
        InputError: a path holds none.
    """
    found: dict[Path, None] = {}
    for path in paths:
        top = path.resolve()
        inside = sorted(file.parent for file in top.rglob(CONFIG_FILE)) if top.is_dir() else []
        finished = [run for run in inside if run == top or (run / SUMMARY_FILE).is_file()]
        if not finished:
            raise InputError(f"no finished run in {path}; name what fedio run or compare wrote")
        if len(finished) < len(inside):
            logger.warning("%d unfinished runs in %s left out", len(inside) - len(finished), path)
        found |= dict.fromkeys(finished)
    return list(found)


def check_reusable(path: Path, experiment: Experiment) -> None:
    """Check that `path` may take this experiment: it is empty, or holds an equal one.

    Raises:
        InputError: it holds something else, which would be lost.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; name a folder with --out")
    if is_empty(path):
        return
    if not (path / CONFIG_FILE).is_file():
        raise InputError(f"{path} is not empty and holds no run; name another --out")
    other = load(path / CONFIG_FILE)
    if other.digest != experiment.digest:
        differing = ", ".join(differing_keys(other, experiment)[:4])
        raise InputError(
            f"{path} holds another experiment (it differs in {differing}); name another --out"
        )


def made_by_this_code(path: Path, experiment: Experiment) -> bool:
    """Tell whether a run folder is of this experiment, this very code and instruction set."""
    try:
        env = json.loads((path / ENV_FILE).read_text())
    except (OSError, ValueError):
        return False
    now = environment(experiment)
    return all(env.get(key) == now[key] for key in ("digest", "code", "instruction_set"))


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of named arrays: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _lines(path: Path) -> list[Row]:
    # As one array: then the rows share their keys, which halves their memory.
    rows: list[Row] = json.loads(f"[{','.join(path.read_text().splitlines())}]")
    return rows
