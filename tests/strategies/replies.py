"""Replies of clients, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
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
    STAGED,
    TRAIN_LOSS,
    WALL,
    Claims,
    Meter,
    Staged,
    WallSeconds,
    to_record,
)

NOTHING = {"steps": 1, "depth": 1, "readers": 1, "effective_samples": 0.0}


def meter_of(**counts: Any) -> Meter:
    """Return a meter that says so: all in the first step; counts that are not named are 0."""
    totals = {f.name: 0 for f in fields(Meter) if f.type == "int"} | NOTHING | counts
    in_first = {
        "step_samples": totals["trained_samples"],
        "step_reads": totals["hits"] + totals["substituted"],
        "step_hit_bytes": totals["hit_bytes"],
        "step_misses": totals["misses"],
        "step_origin_bytes": totals["origin_bytes"],
        "step_decoded": totals["decoded_samples"],
        "step_decoded_bytes": totals["decoded_bytes"],
        "step_written": totals["written_samples"],
        "step_written_bytes": totals["written_bytes"],
    }
    rest = [0] * (totals["steps"] - 1)
    return Meter(**({name: [count, *rest] for name, count in in_first.items()} | totals))


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
    records = {
        ARRAYS: ArrayRecord({name: Array(values) for name, values in arrays.items()}),
        METRICS: MetricRecord(metrics),
        METER: to_record(meter_of(**changes.get("meter", {}))),
        CLAIMS: changes.get("claims", to_record(claims)),
    }
    if "wall" in changes:
        nothing = dict.fromkeys((field.name for field in fields(WallSeconds)), 0.0)
        records[WALL] = to_record(WallSeconds(**(nothing | changes["wall"])))
    return RecordDict(records)


def staged_content(client: int, server_round: int, **counts: int) -> RecordDict:
    """Return a sound reply of a client that staged; counts that are not named are 0."""
    nothing = dict.fromkeys((field.name for field in fields(Staged)), 0)
    whose = {"partition": client, "server_round": server_round}
    return RecordDict({STAGED: to_record(Staged(**(nothing | whose | counts)))})


def reply(client: int, server_round: int = 1, **changes: Any) -> Message:
    return Message(content(client, server_round, **changes), reply_to=asked())


def error(reason: str) -> Message:
    return Message(Error(2, reason), reply_to=asked())
