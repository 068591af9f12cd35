"""The zygote: it has imported everything that a device needs, and forks devices on command.

`python -m clients.zygote CONFIG_FILE FOLDER`: the config of a run folder, in which devices keep
their caches, and a folder of its user alone for their sockets, `PARTITION.sock`. Commands are lines
of JSON on the standard input, events lines of JSON on the standard output:

    {"start": 3}
    {"ready": true}
    {"listening": 3, "pid": 123, "took_s": 0.4}
    {"failed": 3, "message": "why it cannot be built", "input_error": true}
    {"ended": 3, "pid": 123, "code": -9}

When its input closes it ends all devices, and itself. What they print goes to the standard error,
each line with the device's name before it.

It forks, so it stays at one thread: it opens no cache and no data, and calls nothing of PyTorch,
whose threads a child would wait for in vain.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from clients.device_process import end_with, run
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.loading import load

GRACE_S = 5.0
"""For so long devices that are told to end may take to close their caches."""

LONGEST_MESSAGE = 900  # an event is written in one piece, up to 4 KiB of UTF-8

INPUT, OUTPUT, ERRORS = 0, 1, 2

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Child:
    """A device that was forked: who it is, and what it prints."""

    partition: int
    pipe: int
    unfinished: bytes = b""


class Zygote:
    """Forks devices, passes on what they print, and says when they end."""

    def __init__(self, experiment: Experiment, home: Path, folder: Path) -> None:
        """Get ready.

        Args:
            experiment: what the devices take part in.
            home: the folder under which they keep their caches.
            folder: for their sockets.
        """
        self._experiment, self._home, self._folder = experiment, home, folder
        self._children: dict[int, _Child] = {}
        self._commands = b""
        self._is_over = False
        # Events have a way of their own, which nobody prints into by mistake.
        self._events = os.dup(OUTPUT)
        os.dup2(ERRORS, OUTPUT)
        self._selector = selectors.DefaultSelector()
        self._selector.register(INPUT, selectors.EVENT_READ, self._obey)
        self._wake = _wake_on_signals(self._end)
        self._selector.register(self._wake[0], selectors.EVENT_READ, self._reap)

    def run(self) -> None:
        """Obey commands until the input closes; then end all devices."""
        gc.collect()
        gc.freeze()  # or the children's own collections would copy all that they share
        self._tell({"ready": True})
        while not self._is_over:
            self._wait()
        for number in (signal.SIGTERM, signal.SIGCONT):  # one that is stopped goes on, to end
            self._signal(number)
        deadline = time.monotonic() + GRACE_S
        while self._children and time.monotonic() < deadline:
            self._wait(deadline - time.monotonic())
        self._signal(signal.SIGKILL)
        while self._children:
            self._wait()

    def _wait(self, timeout_s: float | None = None) -> None:
        for key, _ in self._selector.select(timeout_s):
            if self._selector.get_map().get(key.fileobj) is key:  # those before may have closed it
                key.data()

    def _obey(self) -> None:
        """Read commands from the input."""
        received = os.read(INPUT, 65536)
        if not received:
            self._selector.unregister(INPUT)
            self._end()
        *lines, self._commands = (self._commands + received).split(b"\n")
        for line in lines:
            self._start(int(json.loads(line)["start"]))

    def _end(self, *_: object) -> None:
        self._is_over = True

    def _start(self, partition: int) -> None:
        clients = self._experiment.data.clients
        wrong = ""
        if not 0 <= partition < clients:
            wrong = f"partition-id is {partition} but the experiment has clients 0..{clients - 1}"
        elif any(child.partition == partition for child in self._children.values()):
            wrong = f"device {partition} is there already"
        if wrong:
            self._tell({"failed": partition, "message": wrong, "input_error": True})
            return
        reading, printing = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._be_device(partition, parent, printing)
        os.close(printing)
        os.set_blocking(reading, False)
        self._children[pid] = child = _Child(partition, reading)
        self._selector.register(reading, selectors.EVENT_READ, lambda: self._pass_on(child))

    def _reap(self) -> None:
        """See which devices have ended."""
        with suppress(BlockingIOError):
            os.read(self._wake[0], 65536)
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self._children.pop(pid)
            while self._pass_on(child):
                pass
            if child.unfinished:
                self._print(child, child.unfinished)
            self._ignore(child)
            os.close(child.pipe)
            code = os.waitstatus_to_exitcode(status)
            self._tell({"ended": child.partition, "pid": pid, "code": code})

    def _pass_on(self, child: _Child) -> bool:
        """Print what a device has printed, line by line; returns whether there may be more."""
        try:
            printed = os.read(child.pipe, 65536)
        except BlockingIOError:
            return False
        if not printed:  # nor will there be
            self._ignore(child)
            return False
        *lines, child.unfinished = (child.unfinished + printed).split(b"\n")
        for line in lines:
            self._print(child, line)
        return True

    def _print(self, child: _Child, line: bytes) -> None:
        with suppress(OSError):  # whoever read it is gone
            os.write(ERRORS, b"device %d: %s\n" % (child.partition, line))

    def _ignore(self, child: _Child) -> None:
        with suppress(KeyError):  # it is ignored already
            self._selector.unregister(child.pipe)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._children:  # not waited for yet, so the number is still theirs
            os.kill(pid, number)

    def _tell(self, event: dict[str, Any]) -> None:
        line = json.dumps(event, ensure_ascii=False).encode(errors="backslashreplace")
        try:
            os.write(self._events, line + b"\n")
        except BrokenPipeError:  # whoever listened is gone
            self._end()

    def _be_device(self, partition: int, parent: int, printing: int) -> NoReturn:
        """Make this process, just forked, a device; it never goes back to what the parent did."""
        code = 1
        try:
            self._leave_parent(parent, printing)
            pid, path = os.getpid(), self._folder / f"{partition}.sock"

            def listening(took_s: float) -> None:
                self._tell({"listening": partition, "pid": pid, "took_s": took_s})

            run(self._experiment, self._home, partition, path, listening)
        except SystemExit:
            code = 0
        except BaseException as error:
            is_input = isinstance(error, InputError)
            if not is_input:
                logger.exception("it fails")
            message = str(error) if is_input else f"{type(error).__name__}: {error}"
            shown = " ".join(message.split())[:LONGEST_MESSAGE]
            self._tell({"failed": partition, "message": shown, "input_error": is_input})
        finally:
            with suppress(BaseException):
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _leave_parent(self, parent: int, printing: int) -> None:
        """Give up what is the parent's: its signals, its input, its pipes."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_with(parent)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, INPUT)
        os.dup2(printing, OUTPUT)
        os.dup2(printing, ERRORS)
        self._selector.close()
        others = [child.pipe for child in self._children.values()]
        for pipe in (nothing, printing, *self._wake, *others):
            os.close(pipe)


def _wake_on_signals(end: Any) -> tuple[int, int]:
    """Return a pipe that becomes readable when a child ends, or this process is told to end."""
    reading, writing = os.pipe()
    for pipe in (reading, writing):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, end)
    # From a terminal it reaches everybody; whoever started us decides what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return reading, writing


def main() -> int:
    """Run a zygote; returns its exit code."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m clients.zygote CONFIG_FILE FOLDER")
    config, folder = map(Path, sys.argv[1:])
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.captureWarnings(capture=True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        if folder.stat().st_mode & 0o077:
            raise InputError(f"others may enter {folder}: chmod 700 it")
        Zygote(load(config), config.parent, folder).run()
    except InputError as error:
        logger.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
