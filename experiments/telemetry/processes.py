"""Which processes belong to a run, and what each of them is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import psutil

OTHER = "other"

# What a word of a command line, its folder left out, says of a process.
_KINDS = {
    "flower-superlink": "superlink",
    "flower-supernode": "supernode",
    "flower-superexec": "superexec",
    "flwr-serverapp": "serverapp",
    "flwr-clientapp": "clientapp",
    "flwr": "flwr",
    "keeper.py": "keeper",
    "clients.zygote": "zygote",
    "fedio": "fedio",
}
_WORDS = 4  # of a command line that are looked at: interpreter, options, program


@dataclass(frozen=True, slots=True)
class Watched:
    """A process: what it is, such as `device` or `supernode`, and whose, where it is a client's."""

    pid: int
    kind: str
    client: int | None = None


class Family:
    """Those who are told of, this process, and all that descends from them.

    Short-lived processes that nobody tells of are known by the command line, and are of the client
    that their parent is of.
    """

    def __init__(self, told: Callable[[], Iterable[Watched]]) -> None:
        self._tell = told
        self._told: dict[int, Watched] = {}
        self._found: dict[int, Watched] = {}
        self._foreign: set[int] = set()
        self._unsure: set[int] = set()

    def living(self) -> list[Watched]:
        """Return those who live; some may be gone already."""
        own = Watched(os.getpid(), "fedio")
        told = {one.pid: one for one in (own, *self._tell())}
        if told.keys() - self._told.keys():
            self._foreign.clear()  # what was nobody's may descend from a newcomer
        alive = set(psutil.pids())
        self._told = told
        self._found = {pid: one for pid, one in (self._found | told).items() if pid in alive}
        self._foreign &= alive
        for pid in self._unsure & self._found.keys() - told.keys():
            self._found[pid] = replace(self._found[pid], kind=kind_of(pid))
        self._unsure.clear()
        for pid in alive - self._found.keys() - self._foreign:
            self._place(pid)
        return list(self._found.values())

    def _place(self, pid: int) -> Watched | None:
        """Return who a process is if it is of the family; only newcomers are looked at."""
        if pid in self._found or pid in self._foreign:
            return self._found.get(pid)
        self._foreign.add(pid)  # unless somebody above it is ours
        parent = _parent_of(pid)
        above = None if parent is None else self._place(parent)
        if above is None:
            return None
        self._foreign.discard(pid)
        self._found[pid] = Watched(pid, kind_of(pid), above.client)
        if self._found[pid].kind == above.kind:
            self._unsure.add(pid)  # it may be on its way from its parent's program to its own
        return self._found[pid]


def kind_of(pid: int) -> str:
    """Return what a process is by its command line."""
    try:
        words = psutil.Process(pid).cmdline()[:_WORDS]
    except psutil.Error:
        return OTHER
    return kind_by(words)


def kind_by(words: Sequence[str]) -> str:
    """Return what a command line runs: the first word of it that says so."""
    return next((_KINDS[name] for name in map(_program, words) if name in _KINDS), OTHER)


def _program(word: str) -> str:
    return PurePath(word).name


def _parent_of(pid: int) -> int | None:
    """Return the parent of a process, None if it has none, is gone or hidden."""
    try:
        return psutil.Process(pid).ppid() or None
    except psutil.Error:
        return None
