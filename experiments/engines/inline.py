"""The inline engine: both apps in this process, or clients in N worker processes, virtual time.

Flower's apps run unchanged; only the grid between them is ours. A client belongs to one worker
for the whole run, so that its cache in memory is always where its next message goes.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import secrets
import shutil
import time
import traceback
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import NoReturn, Protocol

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from clients.client_app import forget
from experiments.apps import server_app
from experiments.logs import quiet
from fedio.config import Experiment
from fedio.errors import RunError
from fedio.flower_internals import assume_identity, set_message_id
from fedio.runs import CACHES_FOLDER, CONFIG_FILE, RunFolder

RUN_ID = 1
SERVER_NODE = 1
CLIENT_FAILED = 2
CLIENT_APP = "experiments.apps:client_app"


def run(experiment: Experiment, folder: RunFolder) -> None:
    """Run one arm of an experiment; the results are in the run folder.

    Raises:
        InputError: the experiment asks for something that is not here.
        RunError: the run failed.
    """
    caches = folder.path / CACHES_FOLDER
    forget()
    shutil.rmtree(caches, ignore_errors=True)
    config: UserConfig = {"experiment": str(folder.path / CONFIG_FILE), "overrides": ""}
    nodes = node_ids(experiment.data.clients)
    assume_identity(RUN_ID, SERVER_NODE)
    pool = _pool(experiment.engine.workers, nodes, config)
    try:
        context = Context(RUN_ID, SERVER_NODE, {}, RecordDict(), config)
        server_app(InlineGrid(list(nodes), pool), context)
    finally:
        pool.close()
        forget()
        if not experiment.cache.keep:
            shutil.rmtree(caches, ignore_errors=True)


class Pool(Protocol):
    """Where clients live."""

    def send(self, messages: Sequence[Message]) -> None:
        """Take messages to answer."""

    def receive(self) -> list[Message]:
        """Return answers that are ready; wait for one if none is."""

    def close(self) -> None:
        """End all that was started."""


class InlineGrid(Grid):
    """A Flower grid whose nodes are in this process or its workers."""

    def __init__(self, nodes: list[int], pool: Pool) -> None:
        self._nodes = nodes
        self._pool = pool
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}

    def set_run(self, run: object) -> NoReturn:
        """Refuse: there is only one run."""
        raise NotImplementedError("the inline engine has one run")

    @property
    def run(self) -> NoReturn:
        """Refuse: Flower's record of a run belongs to its SuperLink."""
        raise NotImplementedError("the inline engine keeps no record of runs")

    def create_message(self, *_: object, **__: object) -> NoReturn:
        """Refuse: Flower deprecates it in favour of Message."""
        raise NotImplementedError("use flwr.app.Message")

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids, in no particular order, as Flower does."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids, in the same order."""
        sent = list(messages)
        for message in sent:
            set_message_id(message, str(next(self._numbers)))
        self._pool.send(sent)
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there; wait for one if none is."""
        wanted = list(message_ids)
        while True:
            ready = [self._replies.pop(key) for key in wanted if key in self._replies]
            if ready or not wanted:
                return ready
            for reply in self._pool.receive():
                self._replies[reply.metadata.reply_to_message_id] = reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return all replies; a timeout has no meaning in virtual time."""
        del timeout
        pending = set(self.push_messages(messages))
        replies: list[Message] = []
        while pending:
            pulled = list(self.pull_messages(pending))
            pending -= {reply.metadata.reply_to_message_id for reply in pulled}
            replies += pulled
        return replies


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
        context.set_forkserver_preload([__name__])
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


def _pool(workers: int, nodes: dict[int, int], config: UserConfig) -> Pool:
    return Workers(workers, nodes, config) if workers else ThisProcess(nodes, config)


def node_ids(clients: int) -> dict[int, int]:
    """Return a random node id for each partition, in random order: nothing may rely on either."""
    ids: set[int] = set()
    while len(ids) < clients:
        ids.add(secrets.randbits(63))
    return {node: partition for partition, node in enumerate(ids)}
