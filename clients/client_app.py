"""The ClientApp: Flower's messages in, a device's answers out.

What a device does is done in this process, or, where the node config names the socket of a device,
in the process of that device. Then this one imports nothing that is slow to import.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.device_protocol import DEVICE_SOCKET, Request
from clients.relay import DeviceError, relay
from fedio.errors import InputError

FAILED = 2


def report_failure(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answer a failure with its traceback, which Flower's own error replies do not carry.

    What the user has to put right goes on as it is.
    """
    try:
        return call_next(message, context)
    except InputError:
        raise
    except DeviceError as error:
        return Message(Error(FAILED, str(error)), reply_to=message)
    except Exception:  # noqa: BLE001 - whatever a client raises, the server hears of it
        return Message(Error(FAILED, traceback.format_exc()), reply_to=message)


app = ClientApp(mods=[report_failure])


@app.query("profile")
@app.query("stage")
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Answer as the device of this node does."""
    partition = context.node_config.get("partition-id")
    if partition is None:
        raise InputError(
            'this node has no partition-id; start its SuperNode with --node-config "partition-id=I '
            'num-partitions=N"'
        )
    return Message(_answer(message, context, int(partition)), reply_to=message)


def _answer(message: Message, context: Context, partition: int) -> RecordDict:
    message_type = message.metadata.message_type
    path = context.node_config.get(DEVICE_SOCKET)
    if path is not None:
        request = Request(message.metadata.message_id, message_type, message.content)
        return relay(request, Path(str(path)), partition)
    from clients import hosts  # noqa: PLC0415 - PyTorch, which who relays has no use for

    return hosts.answer(message_type, message.content, context, partition)
