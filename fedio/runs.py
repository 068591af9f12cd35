"""The run folder: what a run leaves behind, and all that reports read.

`config.toml` (the resolved experiment), `env.json` (what it ran on), `rounds.jsonl` (a line per
round), `clients.jsonl` (a line per participation), `summary.json` (written last, so that its
presence says that the run is complete). All seconds are virtual unless a key says `wall`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedio.config import Experiment, differing_keys, load
from fedio.errors import InputError

CONFIG_FILE = "config.toml"
ENV_FILE = "env.json"
ROUNDS_FILE = "rounds.jsonl"
CLIENTS_FILE = "clients.jsonl"
SUMMARY_FILE = "summary.json"
CACHES_FOLDER = "caches"
FILES = (CONFIG_FILE, ENV_FILE, ROUNDS_FILE, CLIENTS_FILE, SUMMARY_FILE)

Row = dict[str, Any]


class RunFolder:
    """A run being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, experiment: Experiment) -> RunFolder:
        """Make the folder for a run, or take the one an equal run left, whose files it replaces.

        Raises:
            InputError: the path is a file, cannot be written, or holds something else.
        """
        make_folder(path)
        check_reusable(path, experiment)
        for name in (SUMMARY_FILE, ROUNDS_FILE, CLIENTS_FILE):
            (path / name).unlink(missing_ok=True)
        try:
            write_text(path / CONFIG_FILE, experiment.to_toml())
            write_text(path / ENV_FILE, dumps(environment(experiment), indent=2))
        except OSError as error:
            raise InputError(
                f"cannot write to {path}: {error.strerror}; name another --out"
            ) from error
        return cls(path)

    def append_round(self, row: Row) -> None:
        """Add a line to `rounds.jsonl`."""
        self._append(ROUNDS_FILE, [row])

    def append_clients(self, rows: Iterable[Row]) -> None:
        """Add lines to `clients.jsonl`."""
        self._append(CLIENTS_FILE, rows)

    def finish(self, summary: Row) -> None:
        """Write `summary.json`: the run is complete."""
        write_text(self.path / SUMMARY_FILE, dumps(summary, indent=2))

    def _append(self, name: str, rows: Iterable[Row]) -> None:
        with (self.path / name).open("a") as file:
            file.writelines(dumps(row) + "\n" for row in rows)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run, read back."""

    path: Path
    experiment: Experiment
    env: Row
    rounds: list[Row]
    clients: list[Row]
    summary: Row


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
            f"the run in {path} did not finish: it has no {', '.join(missing)}; run it again"
        )
    try:
        return Run(
            path=path,
            experiment=load(path / CONFIG_FILE),
            env=json.loads((path / ENV_FILE).read_text()),
            rounds=_lines(path / ROUNDS_FILE),
            clients=_lines(path / CLIENTS_FILE),
            summary=json.loads((path / SUMMARY_FILE).read_text()),
        )
    except json.JSONDecodeError as error:
        raise InputError(f"{path} holds a damaged run: {error}; run it again") from error


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders among `paths` and below them, sorted.

    Raises:
        InputError: a path holds none.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted(file.parent for file in path.rglob(CONFIG_FILE)) if path.is_dir() else []
        if not inside:
            raise InputError(f"no run in {path}: name a folder that fedio run or compare wrote")
        found += [run for run in inside if run not in found]
    return found


def make_folder(path: Path) -> None:
    """Make a folder, and its parents, to write to.

    Raises:
        InputError: it is a file, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise InputError(f"{path} is a file; name a folder with --out") from error
    except OSError as error:
        raise _unwritable(path, error.strerror) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unwritable(path, "permission denied")


def check_reusable(path: Path, experiment: Experiment) -> None:
    """Check that `path` may take this experiment: it is empty, or holds an equal one.

    Raises:
        InputError: it holds something else, which would be lost.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; name a folder with --out")
    if not any(path.iterdir()):
        return
    if not (path / CONFIG_FILE).is_file():
        raise InputError(f"{path} is not empty and holds no run; name another --out")
    other = load(path / CONFIG_FILE)
    if other.digest != experiment.digest:
        differing = ", ".join(differing_keys(other, experiment)[:4])
        raise InputError(
            f"{path} holds another experiment (it differs in {differing}); name another --out"
        )


def environment(experiment: Experiment) -> Row:
    """Return what the run depends on beside its configuration."""
    import torch  # noqa: PLC0415 - a run has it loaded; a reader of runs need not

    packages = ("fedio", "flwr", "torch", "torchvision", "numpy", "lmdb", "pillow", "flwr-datasets")
    return {
        "versions": {name: _version(name) for name in packages},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "commit": _commit(),
        "code": code_digest(),
        "seed": experiment.seed,
        "digest": experiment.digest,
        "command": " ".join(["fedio", *sys.argv[1:]]),
    }


def code_digest() -> str:
    """Return a hash of fedio's own source and device figures, on which results depend."""
    digest = hashlib.sha256()
    top = Path(__file__).resolve().parent.parent
    for house in ("storage", "fedio", "clients", "strategies", "experiments"):
        for path in sorted((top / house).rglob("*")):
            if path.suffix in {".py", ".toml"} and path.parent.name != "presets":
                digest.update(str(path.relative_to(top)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of named arrays: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def dumps(value: object, indent: int | None = None) -> str:
    """Return `value` as JSON, with NumPy's numbers and arrays as plain ones and NaN as null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that no reader ever sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def _unwritable(path: Path, why: str | None) -> InputError:
    return InputError(f"cannot write to {path}: {why}; name another folder with --out")


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout this runs from, read from git's own files."""
    git = Path(__file__).resolve().parent.parent / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        ref = head.removeprefix("ref: ")
        if (git / ref).is_file():
            return (git / ref).read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(ref)), None)
    except OSError:
        return None
