"""Sending messages through Flower's grid and collecting the replies, with a deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

POLL_S = 0.1


def exchange(
    grid: Grid, messages: Sequence[Message], timeout_s: float | None
) -> list[Message | None]:
    """Push messages and pull their replies.

    Replies are matched by message id, because the source of an error reply is not always the node
    it was meant for. Whatever arrives after the deadline is left in the grid.

    Args:
        grid: Flower's grid.
        messages: what to send.
        timeout_s: wall-clock seconds to wait for all replies; None waits until they are there.

    Returns:
        The reply to each message, in the order of the messages; None where none came in time.
    """
    ids = list(grid.push_messages(messages))
    replies: dict[str, Message] = {}
    pending = set(ids)
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while pending and time.monotonic() < deadline:
        pulled = list(grid.pull_messages(pending))
        for reply in pulled:
            replies[reply.metadata.reply_to_message_id] = reply
        pending -= replies.keys()
        if pending and not pulled:
            time.sleep(POLL_S)
    return [replies.get(message_id) for message_id in ids]


def last_line(reason: str | None) -> str:
    """Return the last line of a traceback, which says what happened."""
    lines = [line for line in (reason or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
