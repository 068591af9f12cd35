"""Replies of clients, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedio.flower_internals import assume_identity, set_message_id
from fedio.protocol import (
    ARRAYS,
    CLAIMS,
    METER,
    METRICS,
    NUM_EXAMPLES,
    ONE,
    TRAIN_LOSS,
    Claims,
    Meter,
    to_record,
)

METER_OF_NOTHING = Meter(
    steps=0,
    trained_samples=0,
    unique_samples=0,
    requests=0,
    hits=0,
    staged=0,
    substituted=0,
    misses=0,
    corrupt=0,
    hit_bytes=0,
    origin_bytes=0,
    written_samples=0,
    written_bytes=0,
    evicted_samples=0,
    decode_s=0.0,
)


def asked(node: int = 7, message_id: str = "1") -> Message:
    assume_identity(1, 1)
    message = Message(RecordDict(), node, "train")
    set_message_id(message, message_id)
    return message


def content(client: int, server_round: int, **changes: Any) -> RecordDict:
    """Return a sound reply's content; `changes` replaces parts of it."""
    arrays: Mapping[str, np.ndarray] = changes.get("arrays", {"w": np.ones((2, 3), np.float32)})
    metrics = {NUM_EXAMPLES: changes.get("weight", 5), ONE: changes.get("one", 1)}
    metrics[TRAIN_LOSS] = changes.get("loss", 0.5)
    claims = Claims(client, server_round, changes.get("utility", 2.0), 0, 0)
    return RecordDict(
        {
            ARRAYS: ArrayRecord({name: Array(values) for name, values in arrays.items()}),
            METRICS: MetricRecord(metrics),
            METER: to_record(replace(METER_OF_NOTHING, **changes.get("meter", {}))),
            CLAIMS: changes.get("claims", to_record(claims)),
        }
    )


def reply(client: int, server_round: int = 1, **changes: Any) -> Message:
    return Message(content(client, server_round, **changes), reply_to=asked())


def error(reason: str) -> Message:
    return Message(Error(2, reason), reply_to=asked())
