"""The hosts of this process: where devices live that have no process of their own."""

from __future__ import annotations

from flwr.app import Context, RecordDict

from clients.answers import ANSWERS
from clients.device import Host
from fedio.errors import InputError
from fedio.home import home_of
from fedio.loading import from_run_config

_hosts: dict[tuple[str, str], Host] = {}


def answer(message_type: str, content: RecordDict, context: Context, partition: int) -> RecordDict:
    """Answer a message as the device with that partition-id does.

    Raises:
        InputError: the experiment has no such client.
    """
    host = _host(str(context.run_config["experiment"]), str(context.run_config["overrides"]))
    clients = host.experiment.data.clients
    if not 0 <= partition < clients:
        raise InputError(
            f"partition-id is {partition} but the experiment has clients 0..{clients - 1}"
        )
    return ANSWERS[message_type](host.device(partition), content)


def forget() -> None:
    """Close the devices of this process: a run that starts or ends leaves nothing to the next."""
    while _hosts:
        _hosts.popitem()[1].close()


def _host(experiment: str, overrides: str) -> Host:
    """Return what this process's devices share; another experiment replaces it."""
    key = experiment, overrides
    if key not in _hosts:
        forget()
        config = from_run_config({"experiment": experiment, "overrides": overrides})
        _hosts[key] = Host(config, home_of(experiment, config))
    return _hosts[key]
