"""Records as bytes: Flower's `RecordDict` taken apart into plain values and raw bytes, and back.

Exactly: keys keep their order, numbers and truth values their types, NaN and infinity are floats
like others. Unlike pickle it makes nothing but records, whatever the bytes say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

BYTES = "bytes"
"""Stands for so many bytes of the body: the key of an object in JSON."""

Record = ArrayRecord | MetricRecord | ConfigRecord

_NAMES = {ArrayRecord: "arrays", MetricRecord: "metrics", ConfigRecord: "config"}


class RecordError(ValueError):
    """What should be records is none."""


def take_apart(content: RecordDict) -> tuple[list[Any], list[bytes]]:
    """Return records as values for JSON, and the bytes that those refer to, one after the other."""
    body: list[bytes] = []
    plain = []
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            entries = [[name, *_of_array(array, body)] for name, array in record.items()]
        else:
            entries = [[name, _of_value(value, body)] for name, value in record.items()]
        plain.append([key, _NAMES[type(record)], entries])
    return plain, body


def put_together(plain: Any, body: bytes) -> RecordDict:
    """Return the records that `take_apart` made this of.

    Raises:
        RecordError: it made no such thing.
    """
    rest = _Rest(body)
    try:
        records = RecordDict({key: _record(kind, entries, rest) for key, kind, entries in plain})
    except (TypeError, ValueError, KeyError) as error:
        raise RecordError(f"these are no records: {error!r}") from error
    if rest.at != len(body):
        raise RecordError(f"{len(body) - rest.at} bytes belong to no record")
    return records


def _of_array(array: Array, body: list[bytes]) -> tuple[str, list[int], str, int]:
    body.append(array.data)
    return array.dtype, list(array.shape), array.stype, len(array.data)


def _of_value(value: Any, body: list[bytes]) -> Any:
    if isinstance(value, list):
        return [_of_value(one, body) for one in value]
    if isinstance(value, bytes):
        body.append(value)
        return {BYTES: len(value)}
    return value


class _Rest:
    """A body, from which bytes are taken in order."""

    def __init__(self, body: bytes) -> None:
        self._body, self.at = memoryview(body), 0

    def take(self, size_bytes: Any) -> bytes:
        begin, self.at = self.at, self.at + size_bytes
        if not begin <= self.at <= len(self._body):
            raise ValueError(f"{size_bytes} bytes are not there")
        return bytes(self._body[begin : self.at])


def _record(kind: str, entries: Any, rest: _Rest) -> Record:
    match kind:
        case "arrays":
            return ArrayRecord(dict(_arrays(entries, rest)))
        case "metrics":
            return MetricRecord({name: _value(value, rest) for name, value in entries})
        case "config":
            return ConfigRecord({name: _value(value, rest) for name, value in entries})
    raise ValueError(f"there are no {kind!r}")


def _arrays(entries: Any, rest: _Rest) -> Iterator[tuple[str, Array]]:
    for name, dtype, shape, stype, size_bytes in entries:
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"{shape} is no shape")
        yield name, Array(dtype=dtype, shape=tuple(shape), stype=stype, data=rest.take(size_bytes))


def _value(value: Any, rest: _Rest) -> Any:
    if isinstance(value, list):
        return [_value(one, rest) for one in value]
    if isinstance(value, dict):
        (size_bytes,) = (value[BYTES],)
        return rest.take(size_bytes)
    return value
