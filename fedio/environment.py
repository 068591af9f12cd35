"""What a run depends on beside its configuration."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from fedio.config import Experiment, Spec

HOUSES = ("storage", "fedio", "clients", "strategies", "experiments")
EXPERIMENTS = {"presets", "examples"}
PACKAGES = ("fedio", "flwr", "torch", "torchvision", "numpy", "lmdb", "pillow", "flwr-datasets")


def environment(experiment: Experiment) -> dict[str, Any]:
    """Return what the run depends on beside its configuration."""
    import torch  # noqa: PLC0415 - a run has it loaded; a reader of runs need not

    return {
        "versions": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "commit": _commit(),
        "code": code_digest(experiment),
        "seed": experiment.seed,
        "digest": experiment.digest,
        "command": _command(),
    }


def _command() -> str:
    """Return the command that this process was started with.

    Flower's own programs, which run the ServerApp of a run started by hand, have secrets in theirs.
    """
    program = Path(sys.argv[0]).name
    return program if program.startswith("flwr") else shlex.join(["fedio", *sys.argv[1:]])


def code_digest(experiment: Experiment) -> str:
    """Return a hash of the source on which results depend.

    fedio's own, its device figures, and the user's own profiles and the plug-ins' modules.
    """
    digest = hashlib.sha256()
    top = Path(__file__).resolve().parent.parent
    for house in HOUSES:
        for path in sorted((top / house).rglob("*")):
            if path.suffix in {".py", ".toml"} and path.parent.name not in EXPERIMENTS:
                digest.update(str(path.relative_to(top)).encode() + path.read_bytes())
    fleet = experiment.fleet
    named = [*fleet.profiles, fleet.storage, fleet.capacity, experiment.availability.file]
    files = [Path(os.path.expanduser(name)) for name in named]  # noqa: PTH111 - takes any name
    own = [file for file in files if file.is_file()]
    for path in sorted([*own, *_plugin_files(experiment)]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _plugin_files(experiment: Experiment) -> Iterator[Path]:
    """Find the source files of plug-ins that are named package.module:Class."""
    arm = experiment.chosen
    specs: list[Spec] = [arm.selector, arm.policy, arm.sampler, arm.aggregation, experiment.model]
    for spec in [*specs, experiment.data.dataset]:
        module, colon, _ = spec.name.partition(":")
        found = importlib.util.find_spec(module) if colon and module else None
        if found is not None and found.origin is not None and Path(found.origin).is_file():
            yield Path(found.origin)


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
