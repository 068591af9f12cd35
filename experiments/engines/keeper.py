"""A program that keeps a command, and ends it with all it has started when its own input closes.

`python keeper.py FOLDER COMMAND...`: whoever starts this holds the other end of its standard input.
When that end closes, because it was closed or because its owner ended in whatever way, SIGKILL
included, nothing stays: no process of the command's, and not the folder.

It is run as a file and imports nothing of fedio, so that it costs next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

import psutil

GRACE_S = 4.0
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> int:
    """Run the command until it ends or the input closes; return its exit code."""
    folder, *command = sys.argv[1:]
    _adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our caller's command
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    try:
        child.wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_family(child)
        shutil.rmtree(folder, ignore_errors=True)
    return child.returncode


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end (Linux), so that none is lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_input(child: subprocess.Popen[bytes]) -> None:
    """Ask the command to end as soon as nobody holds the other end of the input."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _end_family(child: subprocess.Popen[bytes]) -> None:
    """Ask every descendant to end, then kill what is left."""
    number = signal.SIGTERM
    while family := psutil.Process().children(recursive=True):
        for process in family:
            _signal(process, number)
        psutil.wait_procs(family, timeout=GRACE_S)
        number = signal.SIGKILL
    child.wait()


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    sys.exit(main())
