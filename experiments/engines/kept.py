"""Commands that a keeper process keeps for this one, in a temporary folder that goes with them."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import IO, Any, cast

import psutil

from experiments.engines import hermetic, keeper
from fedio.errors import RunError

END_TIMEOUT_S = 30.0
LAST_WORDS_BYTES = 2000

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended.

    Attributes:
        name: as it was started.
        pid: its process.
        code: its exit code, or the negative number of the signal that ended it.
    """

    name: str
    pid: int
    code: int


class Kept:
    """Commands that run until this object is closed, or this process ends in whatever way.

    Attributes:
        folder: the temporary folder of the commands; it goes with them.
        environment: theirs.
    """

    def __init__(self, folder: Path, environment: dict[str, str], inherited: Sequence[int]) -> None:
        self.folder, self.environment = folder, environment
        self._keeper = subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-P", keeper.__file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            pass_fds=inherited,
        )
        self._stdin = cast("IO[bytes]", self._keeper.stdin)
        self._stdout = cast("IO[bytes]", self._keeper.stdout)
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._endings: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._known: list[psutil.Process] = []
        self._told_bytes: dict[str, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The keeper's process, whose descendants all commands are."""
        return self._keeper.pid

    def start(self, name: str, command: Sequence[str], *, nice: int = 0) -> int:
        """Start a command and return its process id; it has no input, and prints to a file.

        Args:
            name: what to call it from now on.
            command: the program and its arguments.
            nice: by how much it gives way to others.

        Raises:
            RunError: the system does not start it.
        """
        asked = {
            "start": name,
            "argv": list(command),
            "env": self.environment,
            "log": str(self._log(name)),
            "nice": nice,
        }
        self._log(name).unlink(missing_ok=True)  # of one of that name that has ended
        self._told_bytes.pop(name, None)
        answer = None
        with suppress(BrokenPipeError, queue.Empty):
            self._stdin.write(json.dumps(asked).encode() + b"\n")
            self._stdin.flush()
            answer = self._answers.get(timeout=END_TIMEOUT_S)
        if answer is None:
            raise self._lost()
        if "refused" in answer:
            raise RunError(f"cannot start {command[0]}: {answer['why']}")
        with suppress(psutil.NoSuchProcess):
            self._known.append(psutil.Process(answer["pid"]))
        return int(answer["pid"])

    def ended(self) -> list[Ended]:
        """Return the commands that have ended since this was last asked.

        Raises:
            RunError: the keeper itself has.
        """
        found = []
        with suppress(queue.Empty):
            while True:
                answer = self._endings.get_nowait()
                if answer is None:
                    raise self._lost()
                found.append(Ended(answer["ended"], answer["pid"], answer["code"]))
        return found

    def news(self, name: str) -> list[str]:
        """Return the whole lines that a command has printed since this was last asked."""
        with self._log(name).open("rb") as log:
            log.seek(self._told_bytes.get(name, 0))
            whole, newline, _ = log.read().rpartition(b"\n")
        self._told_bytes[name] = self._told_bytes.get(name, 0) + len(whole) + len(newline)
        return _plain(whole).split("\n") if newline else []

    def printed(self, name: str) -> str:
        """Return all that a command has printed."""
        return _plain(self._log(name).read_bytes())

    def last_words(self, name: str) -> str:
        """Return the end of what a command has printed; it may still be at it."""
        with self._log(name).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LAST_WORDS_BYTES))
            return _plain(log.read()).strip()

    def close(self) -> None:
        """End all that was started, remove the folder, and wait until that is done.

        Raises:
            RunError: some do not end.
        """
        with suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._keeper.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"Flower's processes do not end; process {self.pid} is at it") from error
        self._listener.join()
        self._stdout.close()
        if self._keeper.returncode < 0:
            self._end_what_is_known()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _listen(self) -> None:
        """Sort the keeper's answers until there are no more."""
        for line in self._stdout:
            answer = json.loads(line)
            (self._endings if "ended" in answer else self._answers).put(answer)
        self._answers.put(None)
        self._endings.put(None)

    def _lost(self) -> RunError:
        with suppress(subprocess.TimeoutExpired):
            code = self._keeper.wait(END_TIMEOUT_S)
            return RunError(f"the process that keeps Flower's processes ended ({how(code)})")
        return RunError(f"the process that keeps Flower's processes, {self.pid}, does not answer")

    def _end_what_is_known(self) -> None:
        """End by force what a keeper that was killed has left."""
        left = []
        for process in self._known:
            with suppress(psutil.NoSuchProcess):
                left += [process, *process.children(recursive=True)]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=END_TIMEOUT_S)
        rmtree(self.folder, ignore_errors=True)


@contextmanager
def keeping(inherited: Sequence[int] = (), poll_s: float = 0.1) -> Iterator[Kept]:
    """Keep Flower's commands within the block; when it ends, all that they started is gone.

    Args:
        inherited: descriptors that are open until everything is gone, even if this process ends
            before that.
        poll_s: how often Flower looks for work to start.

    Raises:
        InputError: Flower's programs are not installed beside this Python.
    """
    hermetic.program("flwr")
    folder = hermetic.short_folder()
    kept = Kept(folder, hermetic.environment(folder, poll_s), inherited)
    try:
        yield kept
    finally:
        kept.close()


def how(code: int) -> str:
    """Return in words how a process ended, by its exit code or the negative of a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _plain(text: bytes) -> str:
    return _COLOUR.sub("", text.decode(errors="replace"))
