"""Emulations as processes of their own, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0


@contextmanager
def emulating(
    temporary: Path, *arguments: str, words: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `fedio emulate` as a process of its own.

    Args:
        temporary: where it and all it starts have their temporary files.
        arguments: of the command.
        words: the file that its standard error goes to.
    """
    command = "import sys, experiments.cli; sys.exit(experiments.cli.main())"
    with (
        open(os.devnull if words is None else words, "wb") as stderr,  # noqa: PTH123
        subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-c", command, "emulate", *arguments],
            env=os.environ | {"PYTHONPATH": str(CHECKOUT), "TMPDIR": str(temporary)},
            stderr=None if words is None else stderr,
            # Who runs the tests in the background may ignore it, and children inherit that.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> Any:
    """Wait until a condition holds while a process lives, and return what it gives."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def rounds_written(run: Path) -> int:
    """Return how many rounds a run has written, the initial one too."""
    file = run / "rounds.jsonl"
    return file.read_text().count("\n") if file.is_file() else 0


def family_of(process: subprocess.Popen[bytes]) -> dict[psutil.Process, str]:
    """Return the descendants of a process, and the command line of each."""
    found = {}
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            found[one] = " ".join(one.cmdline())
        except psutil.Error:
            continue
    return found


def client_apps(process: subprocess.Popen[bytes]) -> dict[int, psutil.Process]:
    """Return the ClientApps that run now, by the client whose SuperNode started them."""
    found = {}
    nodes = super_nodes(process)
    for one, command in family_of(process).items():
        if "flwr-clientapp" in command:
            ancestors = {parent.pid for parent in one.parents()}
            found |= {client: one for client, node in nodes.items() if node.pid in ancestors}
    return found


def super_nodes(process: subprocess.Popen[bytes]) -> dict[int, psutil.Process]:
    """Return the SuperNodes by client."""
    marked = {one: c for one, c in family_of(process).items() if "/flower-supernode " in c}
    return {int(c.split("partition-id=")[1].split()[0]): one for one, c in marked.items()}
