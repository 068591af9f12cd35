"""The inline engine: both apps in this process, or clients in N worker processes, virtual time.

Flower's apps run unchanged; only the grid between them is ours. A client belongs to one worker
for the whole run, so that its cache in memory is always where its next message goes.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable
from typing import NoReturn

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.serverapp import Grid

from clients.hosts import forget
from experiments.apps import server_app
from experiments.engines.pools import RUN_ID, SERVER_NODE, Pool, ThisProcess, Workers
from fedio.config import Experiment
from fedio.flower_internals import assume_identity, set_message_id
from fedio.home import cleared
from fedio.runs import CONFIG_FILE, RunFolder


def run(experiment: Experiment, folder: RunFolder) -> None:
    """This process, or worker processes, in virtual time; the results are in the run folder.

    Raises:
        InputError: the experiment asks for something that is not here.
        RunError: the run failed.
    """
    forget()
    config: UserConfig = {"experiment": str(folder.path / CONFIG_FILE), "overrides": ""}
    nodes = node_ids(experiment.data.clients)
    assume_identity(RUN_ID, SERVER_NODE)
    with cleared(folder, keep_caches=experiment.cache.keep):
        pool = _pool(experiment.engine.workers, nodes, config)
        try:
            context = Context(RUN_ID, SERVER_NODE, {}, RecordDict(), config)
            server_app(InlineGrid(list(nodes), pool), context)
        finally:
            pool.close()
            forget()


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


def _pool(workers: int, nodes: dict[int, int], config: UserConfig) -> Pool:
    return Workers(workers, nodes, config) if workers else ThisProcess(nodes, config)


def node_ids(clients: int) -> dict[int, int]:
    """Return a random node id for each partition, in random order: nothing may rely on either."""
    ids: set[int] = set()
    while len(ids) < clients:
        ids.add(secrets.randbits(63))
    return {node: partition for partition, node in enumerate(ids)}
