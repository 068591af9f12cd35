"""Sending messages through Flower's grid and collecting the replies, with a deadline."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

logger = logging.getLogger(__name__)

POLL_S = 0.1


class Post:
    """Sends messages and brings their replies.

    Replies are matched by message id, because the source of an error reply is not always the node
    it was meant for. One that comes after its deadline is of no use any more, but until then its
    node is known to owe it.

    Attributes:
        took_s: wall-clock seconds from sending to the reply, of each node's last one.
    """

    def __init__(self, grid: Grid) -> None:
        """Send through Flower's grid."""
        self._grid = grid
        self._owed: dict[str, int] = {}  # message id -> node
        self.took_s: dict[int, float] = {}

    @property
    def silent(self) -> set[int]:
        """The nodes that have not answered yet."""
        return set(self._owed.values())

    def nodes(self) -> set[int]:
        """Return the ids of the nodes that are connected."""
        return set(self._grid.get_node_ids())

    def exchange(
        self, messages: Sequence[Message], timeout_s: float | None
    ) -> list[Message | None]:
        """Push messages and pull their replies.

        Args:
            messages: what to send.
            timeout_s: wall-clock seconds to wait for all replies; None waits until they are there.

        Returns:
            The reply to each message, in the order of the messages; None where none came in time.
        """
        ids = list(self._grid.push_messages(messages))
        node_of = {
            key: message.metadata.dst_node_id for key, message in zip(ids, messages, strict=True)
        }
        replies: dict[str, Message] = {}
        pending, sent_s = set(ids), time.monotonic()
        deadline = math.inf if timeout_s is None else sent_s + timeout_s
        while pending and time.monotonic() < deadline:
            pulled = self._pull(pending)
            for key, reply in pulled.items():
                replies[key] = reply
                self.took_s[node_of[key]] = time.monotonic() - sent_s
            pending -= replies.keys()
            if pending and not pulled:
                time.sleep(POLL_S)
        self._owed |= {key: node_of[key] for key in pending}
        return [replies.get(message_id) for message_id in ids]

    def look_for_late(self) -> None:
        """See whether what is owed has come; where replies are waited for, wait for one."""
        if self._owed:
            self._pull(set())

    def _pull(self, pending: set[str]) -> dict[str, Message]:
        """Return the replies that are there, by message id; what comes too late goes away."""
        pulled = list(self._grid.pull_messages(pending | self._owed.keys()))
        found = {reply.metadata.reply_to_message_id: reply for reply in pulled}
        for key in found.keys() & self._owed.keys():
            logger.info("node %d has answered too late", self._owed.pop(key))
        return {key: found[key] for key in found.keys() & pending}


def last_line(reason: str | None) -> str:
    """Return the last line of a traceback, which says what happened."""
    lines = [line for line in (reason or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
