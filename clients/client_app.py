"""The ClientApp: Flower's messages in, a device's answers out."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from clients.answers import ANSWERS
from clients.device import Device, Host
from fedio.errors import InputError
from fedio.home import home_of
from fedio.loading import from_run_config

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
    except Exception:  # noqa: BLE001 - whatever a client raises, the server hears of it
        return Message(Error(FAILED, traceback.format_exc()), reply_to=message)


app = ClientApp(mods=[report_failure])


@app.query("profile")
@app.query("stage")
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Answer as the device of this node does."""
    reply = ANSWERS[message.metadata.message_type](_device(context), message.content)
    return Message(reply, reply_to=message)


def _device(context: Context) -> Device:
    """Return the device of this node: the partition-id is its identity, not Flower's node id."""
    partition = context.node_config.get("partition-id")
    if partition is None:
        raise InputError(
            'this node has no partition-id; start its SuperNode with --node-config "partition-id=I '
            'num-partitions=N"'
        )
    host = _host(str(context.run_config["experiment"]), str(context.run_config["overrides"]))
    clients = host.experiment.data.clients
    if not 0 <= int(partition) < clients:
        raise InputError(
            f"partition-id is {partition} but the experiment has clients 0..{clients - 1}"
        )
    return host.device(int(partition))


_hosts: dict[tuple[str, str], Host] = {}


def _host(experiment: str, overrides: str) -> Host:
    """Return what this process's devices share; another experiment replaces it."""
    key = experiment, overrides
    if key not in _hosts:
        forget()
        config = from_run_config({"experiment": experiment, "overrides": overrides})
        _hosts[key] = Host(config, home_of(experiment, config))
    return _hosts[key]


def forget() -> None:
    """Close the devices of this process: a run that starts or ends leaves nothing to the next."""
    while _hosts:
        _hosts.popitem()[1].close()
