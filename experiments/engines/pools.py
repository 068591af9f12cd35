"""Pools: where the clients of the inline engine live and answer, here or in worker processes."""

from __future__ import annotations

import importlib
import multiprocessing
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Protocol

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from experiments.logs import quiet
from fedio.errors import RunError
from fedio.flower_internals import assume_identity

RUN_ID = 1
SERVER_NODE = 1
CLIENT_FAILED = 2
CLIENT_APP = "experiments.apps:client_app"


class Pool(Protocol):
    """Where clients live."""

    def send(self, messages: Sequence[Message]) -> None:
        """Take messages to answer."""

    def receive(self) -> list[Message]:
        """Return answers that are ready; wait for one if none is."""

    def close(self) -> None:
        """End all that was started."""


class _Clients:
    """Clients of this process: a Flower context for each, and answers to their messages."""

    def __init__(self, nodes: dict[int, int], config: UserConfig, app: str) -> None:
        self._app = _load(app)
        self._contexts = {
            node: Context(
                RUN_ID,
                node,
                {"partition-id": partition, "num-partitions": len(nodes)},
                RecordDict(),
                config,
            )
            for node, partition in nodes.items()
        }

    def answer(self, message: Message) -> Message:
        """Run the ClientApp on a message; a failure becomes an error reply with its traceback."""
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception:  # noqa: BLE001 - whatever a client raises must not end the server
            reply = Message(Error(CLIENT_FAILED, traceback.format_exc()), reply_to=message)
        return reply


class ThisProcess:
    """Zero workers: a message is answered when its reply is asked for."""

    def __init__(self, nodes: dict[int, int], config: UserConfig, app: str = CLIENT_APP) -> None:
        self._clients = _Clients(nodes, config, app)
        self._waiting: list[Message] = []

    def send(self, messages: Sequence[Message]) -> None:
        """Take messages to answer."""
        self._waiting += messages

    def receive(self) -> list[Message]:
        """Return answers that are ready; wait for one if none is."""
        return [self._clients.answer(self._waiting.pop(0))]

    def close(self) -> None:
        """End all that was started."""
        self._waiting.clear()


class Workers:
    """N worker processes; a partition is always with the same one."""

    def __init__(
        self, count: int, nodes: dict[int, int], config: UserConfig, app: str = CLIENT_APP
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        # The app brings PyTorch along: imported once, before the workers fork.
        context.set_forkserver_preload([app.partition(":")[0]])
        self._worker_of = {node: partition % count for node, partition in nodes.items()}
        self._pipes: list[Connection] = []
        self._processes: list[ForkServerProcess] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, nodes, config, app),
                name=f"fedio-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def send(self, messages: Sequence[Message]) -> None:
        """Take messages to answer."""
        # One pickle for each worker's share: the model, which all messages refer to, goes once.
        for number, pipe in enumerate(self._pipes):
            share = [m for m in messages if self._worker_of[m.metadata.dst_node_id] == number]
            if share:
                pipe.send(share)

    def receive(self) -> list[Message]:
        """Return answers that are ready; wait for one if none is."""
        replies: list[Message] = []
        for ready in wait(self._pipes):
            number = self._pipes.index(ready)  # type: ignore[arg-type]
            try:
                replies.append(self._pipes[number].recv())
            except (EOFError, ConnectionResetError) as error:
                self._processes[number].join(timeout=5)
                code = self._processes[number].exitcode
                raise RunError(
                    f"worker process {number} ended with exit code {code}; see its last messages, "
                    "or run with engine.workers=0"
                ) from error
        return replies

    def close(self) -> None:
        """End all that was started."""
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + 5
        for process in self._processes:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.terminate()
                process.join()


def _serve(pipe: Connection, nodes: dict[int, int], config: UserConfig, app: str) -> None:
    """Answer messages until the pipe closes, as it does when the parent process ends."""
    quiet()
    assume_identity(RUN_ID, SERVER_NODE)
    clients = _Clients(nodes, config, app)
    try:
        while True:
            for message in pipe.recv():
                pipe.send(clients.answer(message))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


def _load(app: str) -> ClientApp:
    """Return the ClientApp that `module:attribute` names."""
    module, _, attribute = app.partition(":")
    loaded: ClientApp = getattr(importlib.import_module(module), attribute)
    return loaded
