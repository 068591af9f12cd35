"""Frames on a socket: how long they are, a header in JSON, and raw bytes behind it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 1

HEADER_LIMIT_BYTES = 2**24
BODY_LIMIT_BYTES = 2**31
CHUNK_BYTES = 1 << 20

_MAGIC = b"fdio"
_PREFIX = struct.Struct(">4sIQ")  # the magic, and how long header and body are


class FrameError(ValueError):
    """What came is no frame of this protocol, or one too large; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is sent at a time.

    Attributes:
        header: plain values, for JSON.
        body: raw bytes that the header refers to.
    """

    header: dict[str, Any]
    body: bytes = b""


def to_bytes(header: dict[str, Any], body: Sequence[bytes] = ()) -> bytes:
    """Return a frame as it is sent; its body in parts.

    Raises:
        FrameError: it is too large.
    """
    text = json.dumps({"version": VERSION} | header).encode()
    size_bytes = sum(map(len, body))
    _check_size(len(text), size_bytes)
    return b"".join([_PREFIX.pack(_MAGIC, len(text), size_bytes), text, *body])


def receive(connection: socket.socket) -> Frame:
    """Return the next frame.

    Raises:
        FrameError: what comes is none, or of another version.
        EOFError: the other side has closed the connection.
        OSError: the connection is broken; TimeoutError when nothing comes.
    """
    magic, header_bytes, body_bytes = _PREFIX.unpack(_receive(connection, _PREFIX.size))
    if magic != _MAGIC:
        raise FrameError("what came is no frame: something else than fedio is at the other end")
    _check_size(header_bytes, body_bytes)
    # The body too before the header is judged: who is refused has sent all, and can listen.
    text, body = _receive(connection, header_bytes), _receive(connection, body_bytes)
    return Frame(_header(text), body)


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header of a frame is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FrameError("the header of a frame is no table")
    if header.get("version") != VERSION:
        raise FrameError(
            f"the other end speaks version {header.get('version')!r} of the device protocol, this "
            f"one version {VERSION}: start both from the same fedio"
        )
    return header


def _check_size(header_bytes: int, body_bytes: int) -> None:
    if header_bytes > HEADER_LIMIT_BYTES or body_bytes > BODY_LIMIT_BYTES:
        raise FrameError(
            f"a frame of {header_bytes} + {body_bytes} bytes is over the limit of "
            f"{HEADER_LIMIT_BYTES} + {BODY_LIMIT_BYTES}: use a smaller model"
        )


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    # It grows with what comes: who only announces a lot takes no memory.
    received = bytearray()
    while len(received) < size_bytes:
        some = connection.recv(min(size_bytes - len(received), CHUNK_BYTES))
        if not some:
            raise EOFError("the other end closed the connection")
        received += some
    return bytes(received)
