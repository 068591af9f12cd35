"""Records and frames: what is sent arrives exactly, and what is none is refused in one line."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import example, given
from hypothesis import strategies as st

from clients import frames
from clients.device_protocol import Answered, Failed, Request, Said, Working, decode, encode
from clients.frames import Frame, FrameError, receive
from clients.records import RecordError, put_together, take_apart

whole = st.integers(-(2**63), 2**64 - 1)
scalars: list[st.SearchStrategy[Any]] = [whole, st.floats()]
more_scalars = [*scalars, st.booleans(), st.text(), st.binary()]
arrays = st.builds(
    lambda dtype, shape, stype, data: Array(dtype=dtype, shape=shape, stype=stype, data=data),
    st.text(),
    st.lists(st.integers(0, 10**9)).map(tuple),
    st.text(),
    st.binary(max_size=300),
)


def values(kinds: list[st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    return st.one_of([*kinds, *(st.lists(kind, max_size=5) for kind in kinds)])


records = st.one_of(
    st.dictionaries(st.text(), arrays, max_size=5).map(ArrayRecord),
    st.dictionaries(st.text(), values(scalars), max_size=5).map(MetricRecord),
    st.dictionaries(st.text(), values(more_scalars), max_size=5).map(ConfigRecord),
)
contents = st.dictionaries(st.text(), records, max_size=4).map(RecordDict)


def in_full(content: RecordDict) -> list[Any]:
    """Return all there is to know of records, also what equality overlooks."""
    return [
        (key, type(record), [(name, type(value), repr(value)) for name, value in record.items()])
        for key, record in content.items()
    ]


@given(contents)
@example(RecordDict())
@example(RecordDict({"a": ConfigRecord({"z": True, "a": 1, "n": float("nan"), "l": [b"", b"x"]})}))
@example(RecordDict({"a": MetricRecord({"i": -0.0, "e": [], "x": [float("-inf"), 1e-323]})}))
def test_records_come_back_exactly(content: RecordDict) -> None:
    plain, body = take_apart(content)
    assert in_full(put_together(json.loads(json.dumps(plain)), b"".join(body))) == in_full(content)


nothing = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.just("bytes") | st.text(), inner)
    ),
    max_leaves=10,
)
entry = st.lists(nothing, max_size=5) | st.tuples(
    st.text(max_size=2), st.text(), st.lists(nothing), st.text(), st.integers(-2, 9)
).map(list)
kind = st.sampled_from(["arrays", "metrics", "config", "other"])
nearly = st.lists(st.tuples(st.text(max_size=2), kind, st.lists(entry) | nothing).map(list))


@given(nothing | nearly, st.binary(max_size=20))
@example([["a", "arrays", [["w", "f", [True], "s", 1]]]], b"x")
@example([["a", "arrays", [["w", "f", [1], "s", -1]]]], b"x")
@example([["a", "config", [["w", {"bytes": 2**70}]]]], b"x")
@example([["a", "config", [["w", {"bytes": 0.5}]]]], b"x")
def test_what_is_no_record_is_refused(plain: Any, body: bytes) -> None:
    try:
        content = put_together(plain, body)
    except RecordError:
        return
    again, parts = take_apart(content)
    assert b"".join(parts) == body
    assert len(again) == len({key for key, *_ in plain})


def test_bytes_too_many_are_refused() -> None:
    with pytest.raises(RecordError, match="1 bytes belong to no record"):
        put_together([["a", "config", [["b", {"bytes": 2}]]]], b"123")


def arrived(sent: bytes) -> Frame:
    """Return the frame that the other end gets, which closes after it."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(sent)
        here.shutdown(socket.SHUT_WR)
        return receive(there)


TENSOR = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"12345678")
RECORDS = RecordDict({"arrays": ArrayRecord({"w": TENSOR}), "config": ConfigRecord({"b": b"9"})})


@pytest.mark.parametrize(
    "said",
    [
        Request("7", "train", RECORDS),
        Working(),
        Answered(RECORDS),
        Answered(RecordDict()),
        Failed("bad", "Traceback:\nbad", is_input=False),
        Failed("bad \udc80 ü", "", is_input=True),
    ],
)
def test_what_is_said_arrives(said: Said) -> None:
    assert decode(arrived(encode(said))) == said


def frame(header: bytes, body: bytes = b"", magic: bytes = b"fdio") -> bytes:
    return struct.pack(">4sIQ", magic, len(header), len(body)) + header + body


def version(number: int) -> bytes:
    return json.dumps({"version": number, "kind": "working"}).encode()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n", "no frame: something else than fedio"),
        (b"\0" * 100, "no frame"),
        (frame(version(2)), "version 2 of the device protocol, this one version 1: start both"),
        (frame(b'{"kind": "working"}'), "speaks version None"),
        (frame(b"{"), "not JSON"),
        (frame(b"\xff\xff"), "not JSON"),
        (frame(b"[" * 100_000), "not JSON"),
        (frame(b"[]"), "no table"),
        (struct.pack(">4sIQ", b"fdio", 2**32 - 1, 0), "over the limit"),
        (struct.pack(">4sIQ", b"fdio", 2, 2**63), "over the limit"),
    ],
)
def test_what_is_no_frame_is_refused(sent: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why) as failed:
        arrived(sent)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({}, "lacks 'kind'"),
        ({"kind": "order"}, "the kind 'order', which nobody knows"),
        ({"kind": ["request"]}, "which nobody knows"),
        ({"kind": "request", "type": "train", "records": []}, "lacks 'id'"),
        ({"kind": "request", "id": 7, "type": "train", "records": []}, "7 where a text should be"),
        ({"kind": "request", "id": "", "type": "train", "records": []}, "'' where a text"),
        ({"kind": "request", "id": "7", "type": "train", "records": 5}, "these are no records"),
        ({"kind": "answered", "records": [[]]}, "these are no records"),
        ({"kind": "failed", "message": "x", "is_input": True}, "lacks 'traceback'"),
    ],
)
def test_what_says_nothing_is_refused(header: dict[str, Any], why: str) -> None:
    with pytest.raises(FrameError, match=why):
        decode(Frame(header))


def test_who_is_refused_has_been_heard_out() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(frame(version(2), b"12345678") + encode(Working()))
        with pytest.raises(FrameError):
            receive(there)
        assert decode(receive(there)) == Working()


@pytest.mark.parametrize("cut", [0, 1, 15, 20, -1])
def test_a_frame_cut_short_is_the_end(cut: int) -> None:
    with pytest.raises(EOFError):
        arrived(encode(Answered(RECORDS))[:cut])


def test_a_frame_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = len(encode(Answered(RECORDS)))
    monkeypatch.setattr(frames, "BODY_LIMIT_BYTES", 9)
    assert len(encode(Answered(RECORDS))) == size_bytes
    monkeypatch.setattr(frames, "BODY_LIMIT_BYTES", 8)
    with pytest.raises(FrameError, match=r"over the limit .* use a smaller model"):
        encode(Answered(RECORDS))
