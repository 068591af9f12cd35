"""Where runs come from: the commands, the code and the machine; and what they cost."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.units import seconds
from fedio.runs import Row, Run

PATHS = ("--out", "--json")
"""Options that say where results go, and change none."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the runs of an experiment come from, and what they cost."""

    commands: list[str]
    commits: str
    machines: str
    cost: str


def origin(runs: Sequence[Run]) -> Origin:
    """Return what was run where, and for how long."""
    wall_s = [run.summary["wall_s"] for run in runs if "wall_s" in run.summary]
    cost = f"{len(runs)} runs"
    if len(wall_s) == len(runs):
        cost += f", which took {seconds(sum(wall_s))} of wall-clock time when added up"
    return Origin(
        commands=list(dict.fromkeys(_told(run.env["command"]) for run in runs)),
        commits=", ".join(dict.fromkeys(run.env["commit"] or "unknown" for run in runs)),
        machines="; ".join(dict.fromkeys(_machine(run.env) for run in runs)),
        cost=f"{cost}.",
    )


def _told(command: str) -> str:
    """Return a command without the paths that it wrote to: they are its machine's business."""
    try:
        words = iter(shlex.split(command))
    except ValueError:  # of a version that did not quote
        return command
    told = []
    for word in words:
        if word in PATHS:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in PATHS)):
            told.append(word)
    return shlex.join(told)


def _machine(env: Row) -> str:
    """Return the machine and the versions that a run ran on."""
    cpus = env.get("cpus")
    parts = [
        f"instruction set {env['instruction_set']}",
        env.get("machine"),
        env.get("system"),
        None if cpus is None else f"{cpus} CPUs",
        f"Python {env['python']}" if "python" in env else None,
        *(f"{name} {version}" for name, version in env["versions"].items() if version),
    ]
    return ", ".join(part for part in parts if part)
