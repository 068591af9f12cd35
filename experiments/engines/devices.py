"""Devices as processes: a zygote that forks them, and what becomes of them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

END_TIMEOUT_S = 20.0

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment: a zygote must not have threads, and a device trains on one."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote has imported what devices need, and forks at once from now on."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A device answers from now on; it took so long from being forked."""

    partition: int
    pid: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A device cannot be built; it ends. The message is one line."""

    partition: int
    message: str
    is_input: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A device has ended, with an exit code or the negative of the signal that ended it."""

    partition: int
    pid: int
    code: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The zygote has ended, and with it all devices."""

    code: int


Event = Ready | Listening | Failed | Ended | Gone


class Devices:
    """The devices of a run, each a process.

    They live until this object is closed or this process ends in whatever way.
    """

    def __init__(
        self,
        config_file: Path,
        folder: Path,
        inherited: Sequence[int] = (),
        log: IO[bytes] | None = None,
    ) -> None:
        """Start the zygote.

        Args:
            config_file: that of the run folder, in which the devices keep their caches.
            folder: for their sockets; made if it is not there, for this user only.
            inherited: descriptors that are open until all devices are gone.
            log: where devices print, each line with the device's name before it; else where this
                process prints its errors.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._pids: dict[int, int] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._zygote = subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-P", "-m", "clients.zygote", str(config_file), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": _modules()},
            start_new_session=True,
            pass_fds=inherited,
        )
        self._input = cast("IO[bytes]", self._zygote.stdin)
        self._listener = threading.Thread(target=self._listen, name="devices", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The process of the zygote; the devices are its children."""
        return self._zygote.pid

    def pid_of(self, partition: int) -> int | None:
        """Return the process of a device, if it listens."""
        return self._pids.get(partition)

    def socket_of(self, partition: int) -> Path:
        """Return the socket that a device listens on: Flower's node config names it."""
        return self._folder / f"{partition}.sock"

    def start(self, partition: int) -> None:
        """Start a device, for the first time or again; events say what comes of it."""
        with suppress(BrokenPipeError):  # it is gone, and an event says so
            self._input.write(json.dumps({"start": partition}).encode() + b"\n")
            self._input.flush()

    def events(self, timeout_s: float = 0.0) -> list[Event]:
        """Return what has happened since this was last asked.

        Args:
            timeout_s: how long to wait if nothing has.
        """
        found: list[Event] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=timeout_s))
            while True:
                found.append(self._events.get(block=False))
        return found

    def close(self) -> None:
        """End all devices and the zygote, and wait until they are gone."""
        with suppress(BrokenPipeError):
            self._input.close()
        try:
            self._zygote.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._zygote.kill()  # and the kernel kills the devices
        self._listener.join(END_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        """Turn lines of the zygote into events until there are no more."""
        with cast("IO[bytes]", self._zygote.stdout) as lines:
            for line in lines:
                event = _event(json.loads(line))
                if isinstance(event, Listening):
                    self._pids[event.partition] = event.pid
                elif isinstance(event, Ended):
                    self._pids.pop(event.partition, None)
                self._events.put(event)
        self._events.put(Gone(self._zygote.wait()))


def _event(said: dict[str, Any]) -> Event:
    match said:
        case {"listening": partition, "pid": pid, "took_s": took_s}:
            return Listening(partition, pid, took_s)
        case {"failed": partition, "message": message, "input_error": is_input}:
            return Failed(partition, message, is_input)
        case {"ended": partition, "pid": pid, "code": code}:
            return Ended(partition, pid, code)
    return Ready()


def _modules() -> str:
    """Return where Python looks for modules: last of all the current directory, for plug-ins."""
    return os.pathsep.join(dict.fromkeys([*filter(None, sys.path), str(Path.cwd())]))
