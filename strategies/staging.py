"""Staging: who is named for the next round fills its cache while it is idle in this one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from fedio.config import Experiment
from fedio.costs import staging_s
from fedio.profiles import Speeds
from fedio.protocol import (
    CONFIG,
    LOCAL_STEPS,
    SERVER_ROUND,
    STAGE,
    STAGED,
    WINDOW_S,
    WRITE_LIMIT_BYTES,
    Meter,
    ProtocolError,
    Staged,
    from_record,
)
from fedio.runs import Row
from strategies.contact import Contact
from strategies.ledger import RoundRecord
from strategies.presence import Presence
from strategies.transport import last_line

logger = logging.getLogger(__name__)

DAY_S = 86_400.0
NO_LIMIT = -1


class Stager:
    """Asks clients to stage, within what a round left them of time and a day of writes.

    A client's window is what it was idle in the round, and there; so staging takes nobody's time,
    and is in nobody's way. A day is one of the virtual clock. What trains counts as written on the
    day on which it ends, and what is staged on the day on which the round does.
    """

    def __init__(
        self, experiment: Experiment, speeds: Speeds, presence: Presence | None = None
    ) -> None:
        """Start with nothing written.

        Args:
            experiment: the experiment, of one arm.
            speeds: the devices' true figures.
            presence: when they are there; None is always.
        """
        self._presence = presence
        self._local_steps = experiment.training.local_steps
        self._daily_write_bytes = experiment.cache.daily_write_bytes
        self._speeds = speeds
        clients = experiment.data.clients
        self._day = np.full(clients, -1, dtype=np.int64)
        self._written_bytes = np.zeros(clients, dtype=np.int64)  # on that day

    def state(self) -> dict[str, np.ndarray]:
        """Return what was written, and on which day."""
        return {"day": self._day, "written_bytes": self._written_bytes}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there."""
        self._day[:], self._written_bytes[:] = state["day"], state["written_bytes"]

    def trained(self, meters: Mapping[int, Meter], ended_s: np.ndarray) -> None:
        """Count what training wrote.

        Args:
            meters: of clients, by partition.
            ended_s: when the work of each client of the fleet ends, on the clock.
        """
        for client, meter in meters.items():
            self._wrote(client, ended_s[client], meter.written_bytes)

    def stage(
        self,
        contact: Contact,
        done: RoundRecord,
        ended_s: np.ndarray,
        timeout_s: float | None,
    ) -> list[Row]:
        """Have the clients that a round named stage for the one after it.

        Args:
            contact: through which clients are asked.
            done: the round, which has ended.
            ended_s: when the work of each client of the fleet ends, on the clock.
            timeout_s: wall-clock seconds to wait for all replies; None waits until they are there.

        Returns:
            A row for each client that staged: its window, the seconds it took, and all counts.
        """
        windows = windows_s(done, ended_s, self._presence)
        end_s, server_round = done.outcome.end_s, done.server_round + 1
        messages = []
        windows = {client: s for client, s in windows.items() if not contact.owes(client)}
        for client, window_s in windows.items():
            config = ConfigRecord({SERVER_ROUND: server_round, LOCAL_STEPS: self._local_steps})
            config[WINDOW_S] = window_s
            config[WRITE_LIMIT_BYTES] = self._write_limit_bytes(client, end_s)
            (node,) = contact.nodes([client])
            messages.append(Message(RecordDict({CONFIG: config}), node, STAGE))
        rows = []
        replies = contact.by_client(contact.exchange(messages, timeout_s))
        for client, window_s in windows.items():
            try:
                staged = check_staged(replies.get(client), client, server_round)
            except ProtocolError as error:
                logger.warning(
                    "partition %d did not stage for round %d: %s", client, server_round, error
                )
                continue
            self._wrote(client, end_s, staged.written_bytes)
            rows.append(self._row(staged, window_s))
        return rows

    def _write_limit_bytes(self, client: int, now_s: float) -> int:
        """Return what may still be written today."""
        if self._daily_write_bytes is None:
            return NO_LIMIT
        is_today = self._day[client] == now_s // DAY_S
        written_bytes = int(self._written_bytes[client]) if is_today else 0
        return max(self._daily_write_bytes - written_bytes, 0)

    def _wrote(self, client: int, time_s: float, size_bytes: int) -> None:
        """Count what a client wrote; its own work has an order, so no day comes back."""
        day = int(time_s // DAY_S)
        if self._day[client] != day:
            self._day[client], self._written_bytes[client] = day, 0
        self._written_bytes[client] += size_bytes

    def _row(self, staged: Staged, window_s: float) -> Row:
        """Return what is written down of a client that staged."""
        counts = asdict(staged)
        client, _ = counts.pop("partition"), counts.pop("server_round")
        seconds = staging_s(
            (staged.origin_samples, staged.origin_bytes),
            (staged.decoded_samples, staged.decoded_bytes),
            (staged.written_samples, staged.written_bytes),
            self._speeds.take(client),
        )
        return {"client": client, "window_s": window_s, "seconds": float(seconds), **counts}


def windows_s(
    done: RoundRecord, ended_s: np.ndarray, presence: Presence | None = None
) -> dict[int, float]:
    """Return how long each client named for the next round was idle in this one, if it was.

    Of a client that failed nobody knows when it was done: it has no window.

    Args:
        done: the round.
        ended_s: when the work of each client of the fleet ends, on the clock.
        presence: when clients are there; None is always.
    """
    lost = {client for client, problem in done.problems.items() if problem.spent is None}
    named, end_s = done.cohort.next, done.outcome.end_s
    idle_s = np.minimum(np.maximum(ended_s[named], done.start_s), end_s)
    window_s = end_s - idle_s
    if presence is not None:
        window_s = presence.availability.there_s(named, idle_s, end_s)
    pairs = zip(named.tolist(), window_s.tolist(), strict=True)
    return {client: one_s for client, one_s in pairs if one_s > 0 and client not in lost}


def check_staged(reply: Message | None, client: int, server_round: int) -> Staged:
    """Return what a client staged.

    Raises:
        ProtocolError: it did not answer, failed, answered for another, or says what cannot be.
    """
    if reply is None:
        raise ProtocolError("no reply in time")
    if reply.has_error():
        raise ProtocolError(last_line(reply.error.reason))
    staged = from_record(Staged, reply.content.get(STAGED))
    if (staged.partition, staged.server_round) != (client, server_round):
        raise ProtocolError(
            f"it is from partition {staged.partition} for round {staged.server_round}"
        )
    staged.check()
    return staged
