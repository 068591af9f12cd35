"""The service of a device process: it takes requests from a socket, and answers one at a time.

Whoever serves answers in its own thread, where the model and the cache are. Threads of their own
listen, and keep those who wait informed.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from flwr.app import RecordDict

from clients.device_protocol import HEARTBEAT_S, Answered, Failed, Request, Working, decode, encode
from clients.frames import FrameError, receive
from fedio.errors import InputError

logger = logging.getLogger(__name__)

REMEMBERED = 2
"""So many answers are kept, for those who ask again."""

PATIENCE_S = 60.0
"""For so long a request may be under way to us, or an answer to whoever asked."""

LONGEST_PATH_BYTES = 107
"""Of a Unix socket, on Linux."""

Answer = Callable[[str, RecordDict], RecordDict]


@dataclass(slots=True)
class _Task:
    """A request that is known: being worked on, or answered with a frame."""

    done: threading.Event = field(default_factory=threading.Event)
    frame: bytes = b""


class Service:
    """Listens on a Unix socket that only its user may connect to."""

    def __init__(self, path: Path, heartbeat_s: float = HEARTBEAT_S) -> None:
        """Listen from now on; a socket that somebody left there is replaced.

        Args:
            path: of the socket.
            heartbeat_s: how often those who wait hear that it is being worked on.

        Raises:
            InputError: there can be no socket of that name.
        """
        self._heartbeat_s = heartbeat_s
        self._tasks: dict[str, _Task] = {}
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[_Task, Request]] = queue.SimpleQueue()
        self._listener = _listen(path)
        threading.Thread(target=self._accept, name="listening", daemon=True).start()

    def serve(self, answer: Answer) -> NoReturn:
        """Answer requests, one after the other, until an exception that is no error ends it.

        Args:
            answer: returns the records for a message type and its content. If it fails, that is
                the answer.
        """
        while True:
            self._answer_next(answer)

    def close(self) -> None:
        """Listen no more. Whoever still waits hears that the connection has ended."""
        with suppress(OSError):  # closing alone would not wake the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answer_next(self, answer: Answer) -> None:
        """Answer the next request, if one comes soon.

        Waiting has an end, since a signal to end may reach another thread, and this one acts on it
        only when it wakes.
        """
        try:
            task, request = self._waiting.get(timeout=self._heartbeat_s)
        except queue.Empty:
            return
        task.frame = _answer(answer, request)
        task.done.set()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(
                target=self._attend, args=(connection,), name="attending", daemon=True
            ).start()

    def _attend(self, connection: socket.socket) -> None:
        """Take a request, and stay with whoever asks until it is answered."""
        with connection:
            connection.settimeout(PATIENCE_S)
            try:
                try:
                    task = self._task_for(decode(receive(connection)))
                except FrameError as error:
                    logger.warning("a request is refused: %s", error)
                    connection.sendall(encode(Failed(str(error), "", is_input=False)))
                    return
                while not task.done.wait(self._heartbeat_s):
                    connection.sendall(encode(Working()))
                connection.sendall(task.frame)
            except (EOFError, OSError) as error:
                logger.info("who asked has gone: %s", error)

    def _task_for(self, request: object) -> _Task:
        """Return the task of a request: a new one, unless that request is known."""
        if not isinstance(request, Request):
            raise FrameError(f"a {type(request).__name__} is no request")
        with self._lock:
            if request.id not in self._tasks:
                done = [key for key, task in self._tasks.items() if task.done.is_set()]
                for key in done[: max(0, len(done) - REMEMBERED + 1)]:
                    del self._tasks[key]
                self._tasks[request.id] = _Task()
                self._waiting.put((self._tasks[request.id], request))
            return self._tasks[request.id]


def _listen(path: Path) -> socket.socket:
    if len(bytes(path)) > LONGEST_PATH_BYTES:
        raise InputError(
            f"the path of a device's socket may have {LONGEST_PATH_BYTES} bytes, but "
            f"{path} is longer: choose a shorter folder"
        )
    # Under another name until it listens: nobody meets one that refuses, or that others may use.
    early = path.with_suffix(".new")
    early.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(early))
        early.chmod(0o600)
        listener.listen()
        early.rename(path)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {path}: {error.strerror}") from error
    return listener


def _answer(answer: Answer, request: Request) -> bytes:
    try:
        return encode(Answered(answer(request.type, request.content)))
    except Exception as error:  # noqa: BLE001 - whatever fails, who asked hears of it
        message = str(error) or type(error).__name__
        is_input = isinstance(error, InputError)
        return encode(Failed(message, traceback.format_exc(), is_input))
