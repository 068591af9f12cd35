"""What the ClientApp and the process of its device say to each other, over a Unix socket.

A connection is for one request. While the device works on it, it says so now and then; the last
frame is what came of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from clients.frames import Frame, FrameError, to_bytes
from clients.records import RecordError, put_together, take_apart

DEVICE_SOCKET = "device-socket"
"""The key of Flower's node config that names the socket of the node's device."""

HEARTBEAT_S = 1.0
"""How often a device that works says so."""

HEARTBEAT_LIMIT_S = 300.0
"""A device that has said nothing for so long is given up."""


@dataclass(frozen=True, slots=True)
class Request:
    """A message for the device.

    Attributes:
        id: Flower's message id. The same asked again is the same request.
        type: Flower's message type.
        content: the records in it.
    """

    id: str
    type: str
    content: RecordDict


@dataclass(frozen=True, slots=True)
class Working:
    """The device is at it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The records that the device answers with."""

    content: RecordDict


@dataclass(frozen=True, slots=True)
class Failed:
    """The device could not do it.

    Attributes:
        message: why, in the words of the error.
        traceback: where, down to that error; empty where it says nothing.
        is_input: whether it is for the user to put right.
    """

    message: str
    traceback: str
    is_input: bool


Said = Request | Working | Answered | Failed


def encode(said: Said) -> bytes:
    """Return the frame that says it.

    Raises:
        FrameError: it is too large.
    """
    match said:
        case Request():
            plain, body = take_apart(said.content)
            header = {"kind": "request", "id": said.id, "type": said.type, "records": plain}
            return to_bytes(header, body)
        case Working():
            return to_bytes({"kind": "working"})
        case Answered():
            plain, body = take_apart(said.content)
            return to_bytes({"kind": "answered", "records": plain}, body)
        case Failed():
            return to_bytes(
                {
                    "kind": "failed",
                    "message": said.message,
                    "traceback": said.traceback,
                    "is_input": said.is_input,
                }
            )


def decode(frame: Frame) -> Said:
    """Return what a frame says.

    Raises:
        FrameError: nothing of this protocol.
    """
    header = frame.header
    try:
        match header["kind"]:
            case "request":
                records = put_together(header["records"], frame.body)
                return Request(_text(header["id"]), _text(header["type"]), records)
            case "working":
                return Working()
            case "answered":
                return Answered(put_together(header["records"], frame.body))
            case "failed":
                texts = _text(header["message"]), str(header["traceback"])
                return Failed(*texts, bool(header["is_input"]))
            case other:
                raise FrameError(f"a frame is of the kind {other!r}, which nobody knows")
    except KeyError as error:
        raise FrameError(f"a frame lacks {error}") from error
    except RecordError as error:
        raise FrameError(str(error)) from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise FrameError(f"a frame has {value!r} where a text should be")
    return value
