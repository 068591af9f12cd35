"""Replies: each is checked before anything else happens to it; a bad one harms itself alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from fedio.arrays import unpack
from fedio.protocol import (
    ACCURACY,
    ARRAYS,
    CLAIMS,
    LOSS,
    METER,
    METRICS,
    NUM_EXAMPLES,
    ONE,
    TRAIN_LOSS,
    WALL,
    Claims,
    Meter,
    ProtocolError,
    WallSeconds,
    from_record,
)
from strategies.durations import Spent

LARGEST_WEIGHT = 2.0**53  # beyond it a float no longer counts in ones


class RejectedReplyError(ValueError):
    """A reply that must not reach the model; the message says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """A valid reply to training; `wall` is there where devices tell their own time."""

    client: int
    message: Message
    weight: float
    train_loss: float
    meter: Meter
    claims: Claims
    wall: WallSeconds | None = None

    @property
    def spent(self) -> Spent:
        """What is known of the work behind it."""
        return Spent(self.meter, self.wall)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a client's reply was not used, and what it is: `late` (none came), failed or rejected.

    `spent` is there where the client did work that can be timed all the same.
    """

    outcome: str
    reason: str
    spent: Spent | None = None


def sort_replies(
    replies: Mapping[int, Message],
    clients: Iterable[int],
    server_round: int,
    sent: ArrayRecord,
    *,
    by_wall: bool = False,
) -> tuple[list[Report], dict[int, Problem]]:
    """Return the valid reports, and what is wrong with all others, by partition.

    Args:
        replies: the replies that came, by the partition-id that was asked.
        clients: who was asked.
        server_round: the round that was asked for.
        sent: the global model.
        by_wall: whether each must tell its device's own time.
    """
    reports: list[Report] = []
    problems: dict[int, Problem] = {}
    for client in sorted(clients):
        reply = replies.get(client)
        if reply is None:
            problems[client] = Problem("late", "no reply in time")
        elif reply.has_error():
            problems[client] = Problem("failed", reply.error.reason or "no reason given")
        else:
            try:
                reports.append(check_reply(reply, client, server_round, sent, by_wall=by_wall))
            except RejectedReplyError as error:
                spent = _spent_of(reply, by_wall=by_wall)
                problems[client] = Problem("rejected", str(error), spent)
    return reports, problems


def check_reply(
    message: Message,
    client: int,
    server_round: int,
    sent: ArrayRecord,
    *,
    by_wall: bool = False,
) -> Report:
    """Return the report in a reply of `client`, if all of it is sound.

    Args:
        message: the reply; it has content.
        client: the partition-id that was asked.
        server_round: the round that was asked for.
        sent: the global model, whose names, types and shapes its arrays must have.
        by_wall: whether it must tell its device's own time.

    Raises:
        RejectedReplyError: wrong client or round, arrays that are not like those sent, unreadable
            or not finite, a weight that is not positive and finite, or records that do not hold
            what they must.
    """
    content = message.content
    spent = check_spent(message, by_wall=by_wall)
    try:
        claims = from_record(Claims, content.get(CLAIMS))
    except ProtocolError as error:
        raise RejectedReplyError(str(error)) from error
    if claims.partition != client:
        raise RejectedReplyError(f"it is from partition {claims.partition}, asked was {client}")
    if claims.server_round != server_round:
        raise RejectedReplyError(f"it is for round {claims.server_round}, asked was {server_round}")
    weight, train_loss = _metrics(content.get(METRICS))
    if list(content.array_records) != [ARRAYS]:
        raise RejectedReplyError(f"it must hold one array record, {ARRAYS!r}")
    _check_arrays(content.array_records[ARRAYS], sent)
    return Report(client, message, weight, train_loss, spent.meter, claims, spent.wall)


def check_spent(message: Message, *, by_wall: bool = False) -> Spent:
    """Return the meter in a reply, and its device's own time if the run's clock goes by that.

    Raises:
        RejectedReplyError: it lacks what it must have, or has what cannot be true.
    """
    try:
        meter = from_record(Meter, message.content.get(METER))
        meter.check()
        if not by_wall:
            return Spent(meter)
        wall = from_record(WallSeconds, message.content.get(WALL))
        wall.check()
    except ProtocolError as error:
        raise RejectedReplyError(str(error)) from error
    return Spent(meter, wall)


def check_evaluation(reply: Message) -> tuple[int, float]:
    """Return on how many samples a client evaluated, and how accurate the model was.

    Raises:
        RejectedReplyError: the reply does not say so, or it cannot be.
    """
    record = reply.content.get(METRICS)
    expected = {NUM_EXAMPLES, ONE, ACCURACY, LOSS}
    if not isinstance(record, MetricRecord) or set(record) != expected:
        raise RejectedReplyError(f"its metrics must be {sorted(expected)}")
    samples, accuracy = finite(record[NUM_EXAMPLES]), finite(record[ACCURACY])
    if samples is None or not 0 <= samples <= LARGEST_WEIGHT:
        raise RejectedReplyError(f"it says {record[NUM_EXAMPLES]} samples")
    if accuracy is None or not 0 <= accuracy <= 1 or finite(record[LOSS]) is None:
        raise RejectedReplyError(f"its accuracy is {record[ACCURACY]}, its loss {record[LOSS]}")
    return int(samples), accuracy


def _spent_of(reply: Message, *, by_wall: bool) -> Spent | None:
    try:
        return check_spent(reply, by_wall=by_wall)
    except RejectedReplyError:
        return None


def _metrics(record: object) -> tuple[float, float]:
    """Return weight and training loss."""
    expected = {NUM_EXAMPLES, ONE, TRAIN_LOSS}
    if not isinstance(record, MetricRecord) or set(record) != expected:
        raise RejectedReplyError(f"its metrics must be {sorted(expected)}")
    weight, loss = finite(record[NUM_EXAMPLES]), finite(record[TRAIN_LOSS])
    if weight is None or not 0 < weight <= LARGEST_WEIGHT:
        raise RejectedReplyError(f"its weight is {record[NUM_EXAMPLES]}, not a number of samples")
    if record[ONE] != 1:
        raise RejectedReplyError(f"its {ONE!r} is {record[ONE]}, not 1")
    if loss is None:
        raise RejectedReplyError(f"its training loss is {record[TRAIN_LOSS]}, not a finite number")
    return weight, loss


def finite(value: object) -> float | None:
    """Return what a metric says, None where it is no finite number."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _check_arrays(arrays: ArrayRecord, sent: ArrayRecord) -> None:
    if list(arrays) != list(sent):  # Flower goes by their order
        raise RejectedReplyError("its arrays are not those of the model, in that order")
    for name, array in arrays.items():
        like = sent[name]
        if (array.dtype, tuple(array.shape)) != (like.dtype, tuple(like.shape)):
            raise RejectedReplyError(
                f"{name} is {array.dtype} {tuple(array.shape)}, the model has {like.dtype} "
                f"{tuple(like.shape)}"
            )
        try:
            values = unpack(array)
        except Exception as error:  # what a client sends may be anything
            raise RejectedReplyError(f"{name} cannot be read: {error}") from error
        if values.shape != tuple(like.shape) or not np.isfinite(values).all():
            raise RejectedReplyError(f"{name} holds values that are not finite")
