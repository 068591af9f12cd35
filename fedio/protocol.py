"""What server and clients say to each other: message types, record names and their contents.

A reply to training has two channels. The *meter* holds true counts, which only the device runtime
writes and only the clock reads. The *claims* are what the client says of itself; selectors see
claims and arrival times, so a liar can mislead a claim but never the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from flwr.app import ConfigRecord

PROFILE = "query.profile"

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
METER = "meter"
CLAIMS = "claims"

# Keys of the config record. Flower's strategies write the first.
SERVER_ROUND = "server-round"
LOCAL_STEPS = "local-steps"

# Keys of the metric records; the first is the weight in Flower's averages.
NUM_EXAMPLES = "num-examples"
ONE = "one"  # the weight of an unweighted mean
TRAIN_LOSS = "train-loss"
ACCURACY = "accuracy"
LOSS = "loss"


class ProtocolError(ValueError):
    """A record that is missing, or does not hold what it must."""


@dataclass(frozen=True, slots=True)
class Meter:
    """True counts of one participation.

    requests = hits + substituted + misses; staged hits are hits counted apart too, corrupt reads
    are misses counted apart too. Bytes are charged sizes (nominal where a data set is inflated).
    `decode_s` is the declared seconds of decoding all that was trained.
    """

    steps: int
    trained_samples: int
    unique_samples: int
    requests: int
    hits: int
    staged: int
    substituted: int
    misses: int
    corrupt: int
    hit_bytes: int
    origin_bytes: int
    written_samples: int
    written_bytes: int
    evicted_samples: int
    decode_s: float


@dataclass(frozen=True, slots=True)
class Claims:
    """What a client says after training: its utility (Oort's formula) and its cache content."""

    partition: int
    server_round: int
    utility: float
    resident_samples: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class ProfileClaims:
    """What a client says of itself before its first round: data, cache, device figures."""

    partition: int
    samples: int
    mean_size_bytes: float
    mean_decode_s: float
    budget_bytes: int
    resident_samples: int
    resident_bytes: int
    compute_s: float
    download_bytes_per_s: float
    upload_bytes_per_s: float
    memory_bytes: float
    origin_read_latency_s: float
    origin_read_bytes_per_s: float
    cache_read_latency_s: float
    cache_read_bytes_per_s: float
    cache_write_latency_s: float
    cache_write_bytes_per_s: float


Wire = TypeVar("Wire", Meter, Claims, ProfileClaims)


def to_record(value: Meter | Claims | ProfileClaims) -> ConfigRecord:
    """Return `value` as a record with one key per field."""
    return ConfigRecord({name: getattr(value, name) for name in value.__dataclass_fields__})


def from_record(kind: type[Wire], record: Any) -> Wire:
    """Return the `kind` that a record holds.

    Raises:
        ProtocolError: a field is missing or is not a number.
    """
    values: dict[str, int | float] = {}
    for field in fields(kind):
        value = record.get(field.name) if isinstance(record, ConfigRecord) else None
        whole = field.type == "int"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise ProtocolError(f"{kind.__name__.lower()}.{field.name} is {value!r}")
        values[field.name] = value if whole else float(value)
    return kind(**values)  # type: ignore[arg-type]
