"""What a device answers: one function for each message, records in and records out."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from clients.device import Device
from clients.staging import Limits
from fedio.protocol import (
    ACCURACY,
    ARRAYS,
    CLAIMS,
    CONFIG,
    LOCAL_STEPS,
    LOSS,
    METER,
    METRICS,
    NUM_EXAMPLES,
    ONE,
    PROFILE,
    SERVER_ROUND,
    STAGE,
    STAGED,
    TRAIN_LOSS,
    WALL,
    WINDOW_S,
    WRITE_LIMIT_BYTES,
    to_record,
)

PROXIMAL_MU = "proximal-mu"  # Flower's FedProx writes this key into the config record


def profile(device: Device, content: RecordDict) -> RecordDict:
    """Answer what the device says of itself."""
    del content
    return RecordDict({CLAIMS: to_record(device.profile())})


def stage(device: Device, content: RecordDict) -> RecordDict:
    """Fill the cache for a round to come, within the idle window that the message names."""
    config = _config(content)
    limit_bytes = _whole(config, WRITE_LIMIT_BYTES)
    limits = Limits(
        window_s=_number(config, WINDOW_S),
        write_bytes=float("inf") if limit_bytes < 0 else limit_bytes,
    )
    fill = device.stage_in_real_time if device.in_real_time else device.stage
    staged = fill(_whole(config, SERVER_ROUND), _whole(config, LOCAL_STEPS), limits)
    return RecordDict({STAGED: to_record(staged)})


def train(device: Device, content: RecordDict) -> RecordDict:
    """Train the model that came with the message."""
    config = _config(content)
    done = device.train(
        _arrays(content),
        _whole(config, SERVER_ROUND),
        _whole(config, LOCAL_STEPS),
        _number(config, PROXIMAL_MU) if PROXIMAL_MU in config else 0.0,
    )
    metrics = MetricRecord({NUM_EXAMPLES: done.samples, ONE: 1, TRAIN_LOSS: done.train_loss})
    records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
        ARRAYS: done.arrays,
        METRICS: metrics,
        METER: to_record(done.meter),
        CLAIMS: to_record(done.claims),
    }
    if device.in_real_time:
        records[WALL] = to_record(done.wall.seconds)
    return RecordDict(records)


def evaluate(device: Device, content: RecordDict) -> RecordDict:
    """Evaluate the model that came with the message on the samples held out from training."""
    found = device.evaluate(_arrays(content))
    metrics = MetricRecord(
        {NUM_EXAMPLES: found.samples, ONE: 1, ACCURACY: found.accuracy, LOSS: found.loss}
    )
    return RecordDict({METRICS: metrics})


ANSWERS: dict[str, Callable[[Device, RecordDict], RecordDict]] = {
    PROFILE: profile,
    STAGE: stage,
    "train": train,
    "evaluate": evaluate,
}
"""By Flower's message type."""


def _arrays(content: RecordDict) -> ArrayRecord:
    arrays = content[ARRAYS]
    if not isinstance(arrays, ArrayRecord):
        raise TypeError(f"{ARRAYS} is a {type(arrays).__name__}, not an ArrayRecord")
    return arrays


def _config(content: RecordDict) -> ConfigRecord:
    config = content[CONFIG]
    if not isinstance(config, ConfigRecord):
        raise TypeError(f"{CONFIG} is a {type(config).__name__}, not a ConfigRecord")
    return config


def _number(config: ConfigRecord, key: str) -> float:
    value = config[key]
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is {value!r}, not a number")
    return float(value)


def _whole(config: ConfigRecord, key: str) -> int:
    value = config[key]
    if not isinstance(value, int):
        raise TypeError(f"{key} is {value!r}, not a whole number")
    return value
