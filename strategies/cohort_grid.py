"""A grid that shows only some nodes, so that any Flower strategy asks exactly those."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NoReturn

from flwr.app import Message
from flwr.serverapp import Grid


class CohortGrid(Grid):
    """Flower's strategies choose nodes themselves; from this grid they can only choose these."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._nodes = list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Return the cohort's nodes."""
        return list(self._nodes)

    def set_run(self, run: object) -> NoReturn:
        """Refuse, as everything but looking."""
        raise NotImplementedError("a cohort is only looked at")

    @property
    def run(self) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("a cohort is only looked at")

    def create_message(self, *_: object, **__: object) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("a cohort is only looked at")

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("a cohort is only looked at")

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("a cohort is only looked at")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> NoReturn:
        """Refuse."""
        raise NotImplementedError("a cohort is only looked at")


def messages_in_order(
    configure: Callable[[Grid], Iterable[Message]], nodes: list[int]
) -> list[Message]:
    """Return the messages that a Flower strategy makes for `nodes`, in the order of `nodes`.

    Flower shuffles nodes with Python's global generator; its state is as before afterwards.
    """
    state = random.getstate()
    try:
        messages = list(configure(CohortGrid(nodes)))
    finally:
        random.setstate(state)
    position = {node: i for i, node in enumerate(nodes)}
    return sorted(messages, key=lambda message: position[message.metadata.dst_node_id])
