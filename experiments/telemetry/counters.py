"""What a process has used since it began, and what it holds, as the system tells."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import psutil

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BOOTED_S = psutil.boot_time()
ON_LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class Counters:
    """What a process has used since it began; None where the system does not tell.

    Attributes:
        born_s: when it began, seconds since the epoch.
        user_s, system_s: its own CPU seconds.
        children_s: CPU seconds of its children that have ended, and of theirs.
        threads, rss_bytes: what it has now.
        read_bytes, written_bytes: what storage was asked for, page cache not counted.
        read_calls, write_calls: system calls that read and write, whatever the page cache does.
    """

    born_s: float
    user_s: float
    system_s: float
    children_s: float | None
    threads: int
    rss_bytes: int
    read_bytes: int | None
    written_bytes: int | None
    read_calls: int | None
    write_calls: int | None


@dataclass(frozen=True, slots=True)
class Seldom:
    """What takes longer to find out, None where the system does not tell.

    Attributes:
        pss_bytes: memory, where each shared page counts by its share.
        voluntary_switches, involuntary_switches: context switches of the threads that it has now.
    """

    pss_bytes: int | None
    voluntary_switches: int | None
    involuntary_switches: int | None


def counters(pid: int) -> Counters:
    """Return what a process has used.

    Raises:
        ProcessLookupError: there is no such process any more, or it is not ours to look at.
    """
    return _from_proc(pid) if ON_LINUX else from_psutil(pid)


def seldom(pid: int) -> Seldom:
    """Return what takes longer to find out.

    Raises:
        ProcessLookupError: there is no such process any more, or it is not ours to look at.
    """
    return _seldom_from_proc(pid) if ON_LINUX else seldom_from_psutil(pid)


def _from_proc(pid: int) -> Counters:
    """Read two files of /proc (proc(5)); psutil reads more of them, and takes ten times as long."""
    # The name in brackets may hold anything; from the state on, fields are numbered from 3.
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    try:
        pairs = (line.split(b":") for line in _read(f"/proc/{pid}/io").splitlines())
        io = {name: int(value) for name, value in pairs}
    except ProcessLookupError:
        io = {}
    return Counters(
        born_s=_BOOTED_S + int(fields[19]) / _TICKS_PER_S,
        user_s=int(fields[11]) / _TICKS_PER_S,
        system_s=int(fields[12]) / _TICKS_PER_S,
        children_s=(int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        read_bytes=io.get(b"read_bytes"),
        written_bytes=io.get(b"write_bytes"),
        read_calls=io.get(b"syscr"),
        write_calls=io.get(b"syscw"),
    )


def _seldom_from_proc(pid: int) -> Seldom:
    """Read the memory of a process, and the switches of its threads: /proc counts by thread."""
    pss_kib = _kib(_read(f"/proc/{pid}/smaps_rollup"), b"\nPss:")
    switches = {b"\nvoluntary_ctxt_switches:": 0, b"\nnonvoluntary_ctxt_switches:": 0}
    for thread in _listing(f"/proc/{pid}/task"):
        try:
            status = _read(f"/proc/{pid}/task/{thread}/status")
        except ProcessLookupError:
            continue
        for name in switches:
            switches[name] += _kib(status, name) or 0
    return Seldom(None if pss_kib is None else pss_kib * 1024, *switches.values())


def _kib(text: bytes, name: bytes) -> int | None:
    """Return the number behind a name at the start of a line, if it is there."""
    _, found, rest = text.partition(name)
    return int(rest.split(None, 1)[0]) if found else None


def _read(path: str) -> bytes:
    """Return a file of /proc; it comes whole in one read or two.

    Raises:
        ProcessLookupError: the process is gone, or not ours to look at.
    """
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 1 << 16)
        finally:
            os.close(file)
    except OSError as error:
        raise ProcessLookupError(path) from error


def _listing(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - names only, some hundred a second
    except OSError as error:
        raise ProcessLookupError(path) from error


def from_psutil(pid: int) -> Counters:
    """Return what psutil tells of a process, on whatever system."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu, told = process.cpu_times(), getattr(process, "io_counters", None)
            io = told() if told else None
            return Counters(
                born_s=process.create_time(),
                user_s=cpu.user,
                system_s=cpu.system,
                children_s=None,
                threads=process.num_threads(),
                rss_bytes=process.memory_info().rss,
                read_bytes=getattr(io, "read_bytes", None),
                written_bytes=getattr(io, "write_bytes", None),
                read_calls=getattr(io, "read_count", None),
                write_calls=getattr(io, "write_count", None),
            )
    except psutil.Error as error:
        raise ProcessLookupError(pid) from error


def seldom_from_psutil(pid: int) -> Seldom:
    """Return what psutil tells on whatever system; its switches are of one thread on some."""
    try:
        process = psutil.Process(pid)
        pss_bytes = getattr(process.memory_full_info(), "pss", None)
        return Seldom(pss_bytes, *process.num_ctx_switches())
    except psutil.Error as error:
        raise ProcessLookupError(pid) from error
