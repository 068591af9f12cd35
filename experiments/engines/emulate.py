"""The emulate engine: a SuperLink, a SuperNode and a device process for each client, real time.

All of them are processes of this machine, on its loopback interface. Flower starts a new Python for
each message, which only relays it to the device, so that the device's time is its own; and Flower's
processes give way to the devices.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import psutil

from experiments.engines.certificates import make_certificates
from experiments.engines.devices import Devices
from experiments.engines.flower import COMPLETED, failure, write_app
from experiments.engines.kept import keeping
from experiments.engines.superlink import NAME, SuperLink
from experiments.engines.supernodes import SuperNodes
from experiments.engines.supervision import DEVICE, NODE, Supervision
from experiments.telemetry import Telemetry, Watched
from experiments.units import size
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.flower_internals import check_version
from fedio.home import cleared
from fedio.runs import CONFIG_FILE, RunFolder

logger = logging.getLogger(__name__)

# Without the ServerApp beside it: a process that just started and only relays imports little.
CLIENT_APP = "clients.client_app:app"
# Flower's processes give way to devices, and look for work less often than they could.
NICE = 5
# As `experiments.logs` has it.
SERVER_WARNS = "WARNING strategies."
POLL_S = 0.5
# What a client's device, SuperNode and their helpers hold (PSS), without a ClientApp at work.
CLIENT_BYTES = 250_000_000


def run(
    experiment: Experiment,
    folder: RunFolder,
    *,
    tls: bool = False,
    say: Callable[[str], None] = logger.info,
) -> None:
    """Real processes on this machine, SuperLink, SuperNodes and devices, in real time.

    The results are in the run folder.

    Args:
        experiment: by the wall clock.
        folder: of the run.
        tls: whether connections are encrypted and nodes have to prove who they are.
        say: told what is being waited for.

    Raises:
        InputError: the experiment asks for something that is not here.
        RunError: the run failed.
    """
    check(experiment)
    check_memory(experiment.data.clients)
    inherited = [] if folder.lock is None else [folder.lock]
    with cleared(folder, keep_caches=experiment.cache.keep):
        with (
            keeping(inherited, POLL_S) as kept,
            Devices(folder.path / CONFIG_FILE, kept.folder / "sockets", inherited) as devices,
            # Flower ends before the devices: a server that is still there would take down that
            # they failed.
            closing(kept),
        ):
            link = SuperLink(kept, make_certificates(kept.folder / "tls") if tls else None)
            status, details, log = _play(experiment, folder, link, devices, say)
        if status != COMPLETED:
            raise failure(status, details, log)


def _play(
    experiment: Experiment,
    folder: RunFolder,
    link: SuperLink,
    devices: Devices,
    say: Callable[[str], None],
) -> tuple[str, str, str]:
    """Start everything and run the experiment; return Flower's status, details and log."""
    clients = experiment.data.clients
    nodes = SuperNodes(link, [devices.socket_of(client) for client in range(clients)], NICE)
    watched = partial(_watched, link, nodes, devices)
    with Telemetry(folder, watched, experiment.emulation) as telemetry:
        say("starting Flower's SuperLink" + (" with TLS" if link.certificates else ""))
        began_s = time.monotonic()
        link.open(simulation=False, nice=NICE)
        telemetry.started(NAME, None, link.pid, time.monotonic() - began_s)
        nodes.register()
        say(f"starting {clients} devices and SuperNodes")
        supervision = Supervision(link, nodes, devices, telemetry, clients)
        supervision.start()
        say("starting the run")
        app = write_app(link.folder / "app", folder.path / CONFIG_FILE, CLIENT_APP)
        return link.wait(link.start(app), supervision.look, _pass_on)


def _pass_on(line: str) -> None:
    """Say what the server warns of: its log is Flower's, which nobody reads."""
    _, marker, said = line.partition(SERVER_WARNS)
    if marker:
        logger.warning("server: %s", said.partition(": ")[2])


def check(experiment: Experiment) -> None:
    """Check that this engine can run the experiment.

    Raises:
        InputError: caches are to be in memory, or time is to be virtual.
        RunError: Flower is of another release than this engine knows.
    """
    if experiment.cache.store == "memory":
        raise InputError(
            "cache.store is memory, but in emulation a cache outlives its device; use "
            "cache.store=lmdb or --engine inline"
        )
    if experiment.engine.clock != "wall":
        raise InputError("emulation goes by the wall clock; set engine.clock=wall")
    check_version()


def check_memory(clients: int) -> None:
    """Check that the processes of so many clients fit into this machine.

    Raises:
        InputError: they do not, even if nothing else is there.
    """
    needed_bytes, there_bytes = clients * CLIENT_BYTES, psutil.virtual_memory().total
    if needed_bytes > there_bytes:
        raise InputError(
            f"{clients} clients as processes take about {size(needed_bytes)} of memory, and this "
            f"machine has {size(there_bytes)}; emulate fewer (data.clients)"
        )


def timed(experiment: Experiment) -> Experiment:
    """Return the experiment by the clock that emulation goes by."""
    engine = experiment.engine.model_copy(update={"clock": "wall"})
    return experiment.model_copy(update={"engine": engine})


def _watched(link: SuperLink, nodes: SuperNodes, devices: Devices) -> Iterator[Watched]:
    """Give the processes whose names and clients are known; others descend from them."""
    yield Watched(link.kept.pid, "keeper")
    yield Watched(devices.pid, "zygote")
    if link.pid:
        yield Watched(link.pid, NAME)
    for client, pid in list(nodes.pids.items()):
        yield Watched(pid, NODE, client)
        device = devices.pid_of(client)
        if device is not None:
            yield Watched(device, DEVICE, client)
