"""The ClientApp: Flower's messages in, a device's answers out."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.device import Device, Host
from clients.staging import Limits
from fedio.errors import InputError
from fedio.home import home_of
from fedio.loading import from_run_config
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
    SERVER_ROUND,
    STAGED,
    TRAIN_LOSS,
    WINDOW_S,
    WRITE_LIMIT_BYTES,
    to_record,
)

FAILED = 2
PROXIMAL_MU = "proximal-mu"  # Flower's FedProx writes this key into the config record


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
def profile(message: Message, context: Context) -> Message:
    """Answer what the device says of itself."""
    claims = to_record(_device(context).profile())
    return Message(RecordDict({CLAIMS: claims}), reply_to=message)


@app.query("stage")
def stage(message: Message, context: Context) -> Message:
    """Fill the cache for a round to come, within the idle window that the message names."""
    config = _config(message)
    limit_bytes = _whole(config, WRITE_LIMIT_BYTES)
    limits = Limits(
        window_s=_number(config, WINDOW_S),
        write_bytes=float("inf") if limit_bytes < 0 else limit_bytes,
    )
    staged = _device(context).stage(
        _whole(config, SERVER_ROUND), _whole(config, LOCAL_STEPS), limits
    )
    return Message(RecordDict({STAGED: to_record(staged)}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came with the message."""
    config = _config(message)
    done = _device(context).train(
        _arrays(message),
        _whole(config, SERVER_ROUND),
        _whole(config, LOCAL_STEPS),
        _number(config, PROXIMAL_MU) if PROXIMAL_MU in config else 0.0,
    )
    metrics = MetricRecord({NUM_EXAMPLES: done.samples, ONE: 1, TRAIN_LOSS: done.train_loss})
    content: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
        ARRAYS: done.arrays,
        METRICS: metrics,
        METER: to_record(done.meter),
        CLAIMS: to_record(done.claims),
    }
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model that came with the message on the samples held out from training."""
    found = _device(context).evaluate(_arrays(message))
    metrics = MetricRecord(
        {NUM_EXAMPLES: found.samples, ONE: 1, ACCURACY: found.accuracy, LOSS: found.loss}
    )
    return Message(RecordDict({METRICS: metrics}), reply_to=message)


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


def _arrays(message: Message) -> ArrayRecord:
    arrays = message.content[ARRAYS]
    if not isinstance(arrays, ArrayRecord):
        raise TypeError(f"{ARRAYS} is a {type(arrays).__name__}, not an ArrayRecord")
    return arrays


def _config(message: Message) -> ConfigRecord:
    config = message.content[CONFIG]
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
