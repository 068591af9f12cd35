"""One client alone, on a board of its own: a device process and a SuperNode, for a SuperLink.

Both end together: when this process is told to, and when one of them ends by itself, for whoever
looks after this process to start it again. The cache stays in the home folder.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from clients.device_protocol import DEVICE_SOCKET
from experiments.doctor import check_experiment
from experiments.engines import hermetic
from experiments.engines.devices import Devices, Ended, Failed, Gone, Listening
from experiments.engines.emulate import check
from experiments.engines.kept import Kept, how, keeping
from fedio.config import Experiment
from fedio.errors import InputError, RunError
from fedio.home import RUNS_FOLDER, run_name
from fedio.loading import find, load
from fedio.output import reserved, write_text
from fedio.runs import CONFIG_FILE, check_reusable

NODE = "supernode"
CONNECTED = "SuperNode ID: "
POLL_S = 0.2

console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
# How Flower ends a SuperNode that the SuperLink does not let in.
REFUSED = ("302", "303", "305")


class _Told(BaseException):
    """This process is told to end."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedio device` to those that name the experiment."""
    parser.add_argument(
        "--partition", type=int, required=True, metavar="I", help="which client this is, from 0 on"
    )
    parser.add_argument(
        "--superlink", required=True, metavar="HOST:PORT", help="where Flower's SuperLink listens"
    )
    parser.add_argument(
        "--root-certificates", type=Path, metavar="FILE", help="the authority that it is trusted by"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="this node's private key, if the SuperLink asks"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="without TLS: for tests, on a network you trust"
    )
    parser.add_argument(
        "--home",
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the cache (runs/device-I-NAME-ARM-SEED-HASH)",
    )
    parser.add_argument(
        "--pace",
        choices=["profile", "none"],
        default="none",
        help="take the time of the device's profile, or as little as this board can (none)",
    )


def run(options: argparse.Namespace) -> None:
    """Be one client until told to end.

    Raises:
        InputError: an argument is wrong.
        RunError: the device or its SuperNode has ended.
    """
    connection = connection_of(options)
    experiment = experiment_of(options)
    home = options.home or Path(RUNS_FOLDER) / f"device-{options.partition}-{run_name(experiment)}"
    with reserved(home) as lock, _until_told():
        check_reusable(home, experiment)
        config_file = home / CONFIG_FILE
        write_text(config_file, experiment.to_toml())
        with (
            keeping([lock]) as kept,
            Devices(config_file.absolute(), kept.folder / "sockets", [lock]) as devices,
        ):
            board = Board(kept, devices, options.partition)
            board.start(connection, experiment.data.clients)
            board.watch()


def connection_of(options: argparse.Namespace) -> list[str]:
    """Return the options that tell Flower's SuperNode how to connect.

    Raises:
        InputError: they are wrong, or leave open whether the connection is to be encrypted.
    """
    host, _, port = options.superlink.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(
            f"--superlink takes HOST:PORT, as in fl.example.org:8000; got {options.superlink!r}"
        )
    given = ["--superlink", options.superlink]
    if options.insecure:
        for name in ("root_certificates", "key"):
            if getattr(options, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} is for TLS, and --insecure is without: leave one out")
        return [*given, "--insecure"]
    if options.root_certificates is None:
        raise InputError(
            "TLS needs --root-certificates FILE, the authority that the SuperLink's certificate "
            "is from; without TLS, say --insecure"
        )
    given += ["--root-certificates", str(_file(options.root_certificates, "BEGIN CERTIFICATE"))]
    if options.key is not None:
        key = _file(options.key, "PRIVATE KEY")
        if key.stat().st_mode & 0o077:
            raise InputError(f"others can read the private key {key}: chmod 600 it")
        given += ["--auth-supernode-private-key", str(key)]
    return given


def experiment_of(options: argparse.Namespace) -> Experiment:
    """Return the experiment as this board takes part in it: in real time.

    Raises:
        InputError: it is wrong, has no such client, or asks for something that is not here.
    """
    overrides = [*options.overrides, "engine.clock=wall", f"emulation.pace={options.pace}"]
    experiment = load(find(options.experiment), overrides).for_arm()
    clients = experiment.data.clients
    if not 0 <= options.partition < clients:
        raise InputError(
            f"--partition is {options.partition} but the experiment has clients 0..{clients - 1}"
        )
    check(experiment)
    check_experiment(experiment)
    return experiment


class Board:
    """A device and its SuperNode."""

    def __init__(self, kept: Kept, devices: Devices, partition: int) -> None:
        """Take what they are started with.

        Args:
            kept: keeps the SuperNode.
            devices: start the device.
            partition: which client it is.
        """
        self._kept, self._devices, self._partition = kept, devices, partition

    def start(self, connection: Sequence[str], clients: int) -> None:
        """Start the device, and then its SuperNode.

        Args:
            connection: the options that tell the SuperNode how to connect.
            clients: how many there are in the fleet.

        Raises:
            InputError: the experiment asks for something that is not here.
            RunError: one of them does not start.
        """
        self._devices.start(self._partition)
        while not self._is_listening():
            pass
        # Flower's values in quotes may hold anything but their quote.
        config = (
            f"partition-id={self._partition} num-partitions={clients} "
            f"{DEVICE_SOCKET}='{self._devices.socket_of(self._partition)}'"
        )
        place = ["--host", hermetic.HOST, "--port", str(hermetic.free_port())]
        program = hermetic.program("flower-supernode")
        self._kept.start(NODE, [program, *connection, *place, "--node-config", config])
        console.print(f"device {self._partition} is ready; its SuperNode connects")

    def watch(self) -> NoReturn:
        """Wait until one of them ends.

        Raises:
            RunError: it has.
        """
        is_connected = False
        while True:
            self._is_listening()
            for ended in self._kept.ended():
                why = _reason(self._kept.last_words(NODE)) or how(ended.code)
                raise RunError(f"Flower's SuperNode ended: {why}")
            if not is_connected and CONNECTED in self._kept.printed(NODE):
                is_connected = True
                console.print(f"connected as client {self._partition}")

    def _is_listening(self) -> bool:
        """Wait a little for what happens to the device, and return whether it listens now."""
        is_listening = False
        for event in self._devices.events(POLL_S):
            match event:
                case Listening():
                    is_listening = True
                case Failed(message=message, is_input=is_input):
                    raise (InputError if is_input else RunError)(message)
                case Ended(code=code) | Gone(code=code):
                    raise RunError(f"device {self._partition} ended ({how(code)})")
        return is_listening


@contextmanager
def _until_told() -> Iterator[None]:
    """Leave the block, as if it had come to its end, on SIGTERM."""

    def leave(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Told

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except _Told:
        console.print("told to end")
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(words: str) -> str:
    """Return in one line why a SuperNode ended, if it says so: Flower does behind an exit code."""
    _, code, said = words.rpartition("Exit Code: ")
    reason = " ".join(said.partition("For more information")[0].split())
    if reason.startswith(REFUSED):
        reason += "; if it is there, does it take this key (flwr supernode register)?"
    return reason if code else ""


def _file(path: Path, holds: str) -> Path:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if holds.encode() not in path.read_bytes():
        raise InputError(f"{path} holds no {holds}")
    return path.absolute()
