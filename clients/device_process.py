"""A device in a process of its own: it holds its data, its cache and its model, and is asked."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from flwr.app import ConfigRecord, RecordDict

from clients.answers import ANSWERS
from clients.device import Device, Host
from clients.service import Service
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.protocol import CONFIG, DIGEST, PROFILE

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run(
    experiment: Experiment,
    home: Path,
    partition: int,
    path: Path,
    listening: Callable[[float], None],
) -> NoReturn:
    """Be a device until this process is told to end.

    Args:
        experiment: what it takes part in.
        home: the folder under which it keeps its cache.
        partition: which device it is.
        path: of the socket to listen on.
        listening: told when it does, and after how many seconds.

    Raises:
        InputError: the experiment asks for something that is not here, or the data is bad.
        SystemExit: it was told to end, by SIGTERM.
    """
    began_s = time.monotonic()
    _end_when_told()
    with closing(Host(experiment, home, alone=True)) as host:
        device = host.device(partition)
        with closing(Service(path)) as service:
            listening(time.monotonic() - began_s)
            service.serve(
                lambda message_type, content: _answer(device, message_type, content, experiment)
            )


def end_with(parent: int) -> None:
    """Have this process killed as soon as its parent is gone (Linux).

    Killed, because one that is stopped would not notice anything else. What a cache has saved
    survives that.

    Args:
        parent: the process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was faster
            os.kill(os.getpid(), signal.SIGKILL)


def _end_when_told() -> None:
    """Leave by an exception on SIGTERM, so that everything is closed."""

    def leave(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    # From a terminal it reaches everybody; whoever started us decides what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answer(
    device: Device, message_type: str, content: RecordDict, experiment: Experiment
) -> RecordDict:
    if message_type not in ANSWERS:
        raise ValueError(f"a device does not answer to {message_type!r}")
    if message_type == PROFILE:
        _check_same(experiment, content.get(CONFIG))
    return ANSWERS[message_type](device, content)


def _check_same(experiment: Experiment, config: object) -> None:
    """Check that the server runs the experiment that this device takes part in, if it says so."""
    asked = config.get(DIGEST) if isinstance(config, ConfigRecord) else None
    if asked and asked != experiment.digest:
        raise InputError(
            f"this device takes part in another experiment ({experiment.digest}) than the server "
            f"runs ({asked!s}): give both the same file, overrides, arm and pace"
        )
