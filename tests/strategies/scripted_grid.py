"""A grid whose clients answer by script: what a server meets, without training anything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import numpy as np
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedio.flower_internals import assume_identity, set_message_id
from fedio.profiles import Speeds
from fedio.protocol import (
    ACCURACY,
    ARRAYS,
    CLAIMS,
    CONFIG,
    LOCAL_STEPS,
    LOSS,
    METRICS,
    NUM_EXAMPLES,
    ONE,
    PROFILE,
    SERVER_ROUND,
    STAGE,
    WINDOW_S,
    WRITE_LIMIT_BYTES,
    ProfileClaims,
    to_record,
)
from tests.strategies.replies import content, staged_content

# What a client does when asked to train: changes to a sound reply, an exception, or no answer.
Script = Callable[[int, int], dict[str, Any] | Exception | None]
# And when asked to stage, given client, round to come and window: counts, an exception, or nothing.
Stages = Callable[[int, int, float], dict[str, int] | Exception | None]


@dataclass(frozen=True)
class Asked:
    """A client that was asked to stage, and in what terms."""

    client: int
    server_round: int
    local_steps: int
    window_s: float
    write_limit_bytes: int


def speeds(clients: int, compute_s: Iterable[float]) -> Speeds:
    """Devices that differ in compute only; all else takes next to no time."""
    values = {field.name: np.full(clients, 1e12) for field in fields(Speeds)}
    free = {name: np.zeros(clients) for name in values if not name.endswith("_per_s")}
    own = {"compute_s": np.array(list(compute_s)), "memory_bytes": np.full(clients, 1e9)}
    return Speeds(**(values | free | own))


class ScriptedGrid(Grid):
    def __init__(
        self, devices: Speeds, script: Script, nodes: dict[int, int] | None = None
    ) -> None:
        assume_identity(1, 1)
        clients = len(devices.compute_s)
        self.partition_of = nodes or {977 * (i + 3) % 1009: i for i in range(clients)}
        self.devices, self.script = devices, script
        self.trained: list[tuple[int, int]] = []
        self.stages: Stages = lambda *_: {}
        self.staged: list[Asked] = []
        self.asked_steps: dict[int, int] = {}
        self.received: list[np.ndarray] = []
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def get_node_ids(self) -> Iterable[int]:
        return set(self.partition_of)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(str(next(self._numbers)))
            set_message_id(message, ids[-1])
            reply = self._answer(message)
            if reply is not None:
                self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(key) for key in list(message_ids) if key in self._replies]

    def _answer(self, message: Message) -> Message | None:
        client = self.partition_of[message.metadata.dst_node_id]
        if message.metadata.message_type == PROFILE:
            return Message(RecordDict({CLAIMS: to_record(self.profile(client))}), reply_to=message)
        if message.metadata.message_type == "evaluate":
            metrics = {NUM_EXAMPLES: client, ONE: 1, ACCURACY: client / 10, LOSS: 1.0}
            return Message(RecordDict({METRICS: MetricRecord(metrics)}), reply_to=message)
        config = message.content.config_records[CONFIG]
        server_round = int(config[SERVER_ROUND])
        if message.metadata.message_type == STAGE:
            given = (config[LOCAL_STEPS], config[WINDOW_S], config[WRITE_LIMIT_BYTES])
            self.staged.append(Asked(client, server_round, *given))
            does = self.stages(client, server_round, config[WINDOW_S])
        else:
            self.trained.append((server_round, client))
            self.asked_steps[client] = int(config[LOCAL_STEPS])
            self.received.append(message.content.array_records[ARRAYS]["w"].numpy())
            does = self.script(client, server_round)
        if does is None:
            return None
        if isinstance(does, Exception):
            return Message(Error(2, f"Traceback\n{does!r}"), reply_to=message)
        make = staged_content if message.metadata.message_type == STAGE else content
        return Message(make(client, server_round, **does), reply_to=message)

    def profile(self, client: int) -> ProfileClaims:
        one = self.devices.take(client)
        return ProfileClaims(
            partition=client,
            samples=20,
            mean_size_bytes=100.0,
            mean_cached_bytes=100.0,
            decoded_share=1.0,
            cached_decoded_share=1.0,
            budget_bytes=1000,
            resident_samples=0,
            resident_bytes=0,
            **{field.name: float(getattr(one, field.name)) for field in fields(Speeds)},
        )

    def set_run(self, run: object) -> NoReturn:
        raise NotImplementedError

    @property
    def run(self) -> NoReturn:
        raise NotImplementedError

    def create_message(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> NoReturn:
        raise NotImplementedError
