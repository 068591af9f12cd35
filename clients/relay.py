"""The relay: a message goes to the process of the node's device, and its answer comes back.

Flower starts a new Python for each message. That one relays, and imports as little as it can.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from flwr.app import RecordDict

from clients.device_protocol import (
    HEARTBEAT_LIMIT_S,
    Answered,
    Failed,
    Request,
    Working,
    decode,
    encode,
)
from clients.frames import FrameError, receive
from fedio.errors import InputError, RunError

CONNECT_LIMIT_S = 30.0
"""For so long a device may be missing: it may be starting again."""

POLL_S = 0.1

_DOING = {
    "train": "trained",
    "evaluate": "evaluated",
    "query.profile": "was asked for its profile",
    "query.stage": "staged",
}


class DeviceError(RunError):
    """The device failed, or is not there; the message is the whole story."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a device that is missing, and for one that says nothing."""

    connect_s: float = CONNECT_LIMIT_S
    silence_s: float = HEARTBEAT_LIMIT_S


def relay(
    request: Request, path: Path, partition: int, patience: Patience | None = None
) -> RecordDict:
    """Have the device answer a request.

    Args:
        request: what it is to do.
        path: of its socket.
        partition: which device it is.
        patience: how long to wait.

    Raises:
        InputError: the device says so.
        DeviceError: it failed, and the message is its traceback; or one line: it is not there, it
            ended, it says nothing any more, or it speaks another version.
    """
    patience = patience or Patience()
    who = f"device {partition}"
    with _connect(path, who, patience) as connection:
        try:
            connection.sendall(encode(request))
            while isinstance(said := decode(receive(connection)), Working):
                pass
        except FrameError as error:
            raise DeviceError(f"{who} is not understood: {error}") from error
        except TimeoutError as error:
            raise DeviceError(
                f"{who} has said nothing for {patience.silence_s:g} s: has it stopped?"
            ) from error
        except (EOFError, OSError) as error:
            doing = _DOING.get(request.type, f"answered {request.type}")
            raise DeviceError(f"{who} ended while it {doing}") from error
    match said:
        case Answered():
            return said.content
        case Failed(is_input=True):
            raise InputError(said.message)
        case Failed():
            raise DeviceError(said.traceback or f"{who}: {said.message}")
    raise DeviceError(f"{who} answers with a {type(said).__name__}")


def _connect(path: Path, who: str, patience: Patience) -> socket.socket:
    deadline = time.monotonic() + patience.connect_s
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(patience.silence_s)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise DeviceError(
                    f"{who} is not there: {path}: {error.strerror or error}"
                ) from error
            time.sleep(POLL_S)
        else:
            return connection
