"""What server and clients say to each other: message types, record names and their contents.

A reply to training has two channels. The *meter* holds true counts, which only the device runtime
writes and only the clock reads. The *claims* are what the client says of itself; selectors see
claims and arrival times, so a liar can mislead a claim but never the clock. By the wall clock the
device runtime also writes down the seconds that it took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from flwr.app import ConfigRecord

PROFILE = "query.profile"
STAGE = "query.stage"

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
METER = "meter"
WALL = "wall"
STAGED = "staged"
CLAIMS = "claims"

# Keys of the config record. Flower's strategies write the first.
SERVER_ROUND = "server-round"
LOCAL_STEPS = "local-steps"
DIGEST = "digest"
WINDOW_S = "window-s"
WRITE_LIMIT_BYTES = "write-limit-bytes"

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
    Skipped samples could not be read or decoded and were not trained; refused ones the store had no
    room for. Reading ran ahead with `readers`, `depth` batches at a time, the one in training
    included. The lists have an entry for each training step and add up to the totals; `step_reads`
    are reads from the cache, those of stand-ins too.
    """

    steps: int
    depth: int
    readers: int
    trained_samples: int
    unique_samples: int
    effective_samples: float
    skipped: int
    requests: int
    hits: int
    staged: int
    substituted: int
    misses: int
    corrupt: int
    hit_bytes: int
    origin_bytes: int
    decoded_samples: int
    decoded_bytes: int
    written_samples: int
    written_bytes: int
    evicted_samples: int
    refused: int
    step_samples: list[int]
    step_reads: list[int]
    step_hit_bytes: list[int]
    step_misses: list[int]
    step_origin_bytes: list[int]
    step_decoded: list[int]
    step_decoded_bytes: list[int]
    step_written: list[int]
    step_written_bytes: list[int]

    @property
    def totals(self) -> dict[str, int | float]:
        """The counts of the participation as a whole, by name."""
        named = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return {name: value for name, value in named if not isinstance(value, list)}

    def check(self) -> None:
        """Check that the counts can be true.

        Raises:
            ProtocolError: one is negative or not finite, or those of the steps do not add up.
        """
        least = {"depth": 1, "readers": 1}
        for name, count in self.totals.items():
            if not least.get(name, 0) <= count < math.inf:
                raise ProtocolError(f"meter.{name} is {count}")
        sums = {
            "step_samples": self.trained_samples,
            "step_reads": self.hits + self.substituted,
            "step_hit_bytes": self.hit_bytes,
            "step_misses": self.misses,
            "step_origin_bytes": self.origin_bytes,
            "step_decoded": self.decoded_samples,
            "step_decoded_bytes": self.decoded_bytes,
            "step_written": self.written_samples,
            "step_written_bytes": self.written_bytes,
        }
        for name, total in sums.items():
            counts = getattr(self, name)
            if len(counts) != self.steps or sum(counts) != total or min(counts, default=0) < 0:
                raise ProtocolError(
                    f"meter.{name} does not add up to {total} in {self.steps} steps"
                )


@dataclass(frozen=True, slots=True)
class Staged:
    """True counts of what a client staged for its participation in a round.

    Of `needed_samples`, the distinct ones that it will ask for, `held_samples` were there before
    and `staged_samples` came in. Bytes as in `Meter`.
    """

    partition: int
    server_round: int
    needed_samples: int
    held_samples: int
    staged_samples: int
    origin_samples: int
    origin_bytes: int
    decoded_samples: int
    decoded_bytes: int
    written_samples: int
    written_bytes: int
    evicted_samples: int

    def check(self) -> None:
        """Check that the counts can be true.

        Raises:
            ProtocolError: one is negative, or more is there than is needed.
        """
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 0:
                raise ProtocolError(f"staged.{name} is {getattr(self, name)}")
        if self.held_samples + self.staged_samples > self.needed_samples:
            raise ProtocolError(f"staged has more than the {self.needed_samples} needed samples")


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
    """What a client says of itself before its first round: data, cache, device figures.

    `mean_cached_bytes` is what a sample weighs in the form in which it is cached. The shares say
    how many of the samples from the origin, and from the cache, need decoding.
    """

    partition: int
    samples: int
    mean_size_bytes: float
    mean_cached_bytes: float
    decoded_share: float
    cached_decoded_share: float
    budget_bytes: int
    resident_samples: int
    resident_bytes: int
    compute_s: float
    step_s: float
    decode_sample_s: float
    decode_bytes_per_s: float
    readers: float
    depth: float
    buffer_bytes: float
    slowdown: float
    download_bytes_per_s: float
    upload_bytes_per_s: float
    memory_bytes: float
    origin_read_latency_s: float
    origin_read_bytes_per_s: float
    cache_read_latency_s: float
    cache_read_bytes_per_s: float
    cache_write_latency_s: float
    cache_write_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class WallSeconds:
    """Where the wall-clock time of a participation went on its device; written by its runtime.

    As `fedio.costs.Phases`: download, stall, compute and upload add up to all of it, and storage
    and decoding are busy meanwhile. Opening and saving the cache is part of the stall. `behind_s`
    is by how much the host took longer than the device it stands for: 0 if it kept up.
    """

    download_s: float
    origin_s: float
    cache_s: float
    decode_s: float
    write_s: float
    stall_s: float
    compute_s: float
    upload_s: float
    behind_s: float

    def check(self) -> None:
        """Check that they can be seconds.

        Raises:
            ProtocolError: one is negative or not finite.
        """
        for name in self.__dataclass_fields__:
            if not 0 <= getattr(self, name) < math.inf:
                raise ProtocolError(f"wall.{name} is {getattr(self, name)}")


Message = Meter | WallSeconds | Staged | Claims | ProfileClaims
Wire = TypeVar("Wire", Meter, WallSeconds, Staged, Claims, ProfileClaims)


def to_record(value: Message) -> ConfigRecord:
    """Return `value` as a record with one key per field."""
    return ConfigRecord({name: getattr(value, name) for name in value.__dataclass_fields__})


def from_record(kind: type[Wire], record: Any) -> Wire:
    """Return the `kind` that a record holds.

    Raises:
        ProtocolError: a field is missing or is not what it must be.
    """
    values: dict[str, int | float | list[int]] = {}
    for field in fields(kind):
        value = record.get(field.name) if isinstance(record, ConfigRecord) else None
        if not _FITS[str(field.type)](value):
            raise ProtocolError(f"{kind.__name__.lower()}.{field.name} is {value!r}")
        values[field.name] = float(value) if field.type == "float" else value  # type: ignore[arg-type, assignment]
    return kind(**values)  # type: ignore[arg-type]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


_FITS: dict[str, Callable[[object], bool]] = {
    "int": _is_whole,
    "float": lambda value: isinstance(value, float) or _is_whole(value),
    "list[int]": lambda value: isinstance(value, list) and all(map(_is_whole, value)),
}
