"""A program that keeps commands, and ends them with all they have started when its input closes.

`python keeper.py FOLDER`: whoever starts this holds the other end of its standard input and asks
there for commands, each in a line of JSON: `{"start": NAME, "argv": [...], "env": {...}, "log":
FILE, "nice": N}`. The answers, on standard output: `{"started": NAME, "pid": P}` or `{"refused":
NAME, "why": ...}`, and later `{"ended": NAME, "pid": P, "code": C}`, negative for a signal.

When the input closes, because it was closed or because its owner ended in whatever way, SIGKILL
included, nothing stays: no process of the commands', and not the folder.

It is run as a file and imports nothing of fedio, so that it costs next to nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any

import psutil

GRACE_S = 4.0
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STDIN = 0


class Keeper:
    """The commands that are kept, by process id."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}

    def serve(self, woken: int) -> None:
        """Do as the input asks until it closes.

        Args:
            woken: a descriptor that can be read when a child may have ended.
        """
        unread = b""
        while True:
            ready, _, _ = select.select([STDIN, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if STDIN in ready:
                read = os.read(STDIN, 65536)
                if not read:
                    return
                *lines, unread = (unread + read).split(b"\n")
                for line in lines:
                    self._start(json.loads(line))

    def end(self) -> None:
        """Ask the commands to end, then whatever they left behind, then kill what is left."""
        _signal([psutil.Process(pid) for pid in self._kept if psutil.pid_exists(pid)])
        number = signal.SIGTERM
        while family := psutil.Process().children(recursive=True):
            _signal(family, number)
            number = signal.SIGKILL

    def _start(self, asked: dict[str, Any]) -> None:
        name = asked["start"]
        try:
            with open(asked["log"], "ab") as log:  # noqa: PTH123 - lighter than pathlib
                child = subprocess.Popen(  # noqa: S603 - our owner's command
                    asked["argv"],
                    env=asked["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            os.setpriority(os.PRIO_PROCESS, child.pid, asked["nice"])
        except OSError as error:
            _say(refused=name, why=str(error))
        else:
            self._kept[child.pid] = name, child
            _say(started=name, pid=child.pid)

    def _reap(self) -> None:
        """Take leave of children that have ended, also of those that only were adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._kept:
                name, child = self._kept.pop(pid)
                child.returncode = os.waitstatus_to_exitcode(status)
                _say(ended=name, pid=pid, code=child.returncode)


def main() -> int:
    """Keep commands until the input closes."""
    (folder,) = sys.argv[1:]
    keeper = Keeper()
    _adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        keeper.serve(_woken_by_children())
    except BrokenPipeError:  # nobody is there to hear it
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        keeper.end()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end (Linux), so that none is lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _woken_by_children() -> int:
    """Return a descriptor that can be read when a child has ended."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    return woken


def _say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - the owner reads it


def _signal(processes: list[psutil.Process], number: int = signal.SIGTERM) -> None:
    """Send a signal, and wait a while for the processes to end."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=GRACE_S)


if __name__ == "__main__":
    sys.exit(main())
