"""The SuperNodes of an emulation: one for each client, with its device's socket in its config."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.engines import hermetic, registration
from experiments.engines.certificates import NodeKey, make_node_key
from experiments.engines.kept import Ended, Kept
from experiments.engines.superlink import CONNECTION, PORT_IS_TAKEN, SuperLink
from fedio.errors import RunError

NAME = "supernode"


class SuperNodes:
    """Starts SuperNodes, again and again if need be; they differ in nothing but the client."""

    def __init__(self, link: SuperLink, sockets: Sequence[Path], nice: int) -> None:
        """Take what they are started with.

        Args:
            link: the SuperLink they connect to; with certificates they have keys.
            sockets: those of the clients' devices, by client.
            nice: by how much they give way to others.
        """
        self._link, self._sockets, self._nice = link, sockets, nice
        self._places: dict[int, tuple[int, int]] = {}
        self._keys: list[NodeKey] = []
        if link.certificates is not None:
            folder = link.certificates.ca.parent
            self._keys = [make_node_key(folder, f"{NAME}-{k}") for k in range(len(sockets))]

    @property
    def have_keys(self) -> bool:
        """Whether they have a lasting identity, which the SuperLink lets in once at a time."""
        return bool(self._keys)

    @property
    def pids(self) -> dict[int, int]:
        """The process of each client's SuperNode."""
        return {client: pid for client, (pid, _) in self._places.copy().items()}

    def register(self) -> None:
        """Have the SuperLink, which is up, take their keys if they have any.

        Raises:
            RunError: it does not.
        """
        if self._keys:
            register(self._link.kept, [key.public for key in self._keys])

    def start(self, client: int) -> None:
        """Start the SuperNode of a client, on a port that is free."""
        port = hermetic.free_port()
        command = [
            hermetic.program("flower-supernode"),
            *("--superlink", self._link.address, "--host", hermetic.HOST, "--port", str(port)),
            *("--node-config", self._config(client)),
        ]
        if self._link.certificates is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self._link.certificates.ca)]
            command += ["--auth-supernode-private-key", str(self._keys[client].private)]
        pid = self._link.kept.start(f"{NAME}-{client}", command, nice=self._nice)
        self._places[client] = pid, port

    def is_up(self, client: int) -> bool:
        """Tell whether the SuperNode of a client answers its own helpers."""
        return client in self._places and hermetic.listens(*self._places[client])

    def found_port_taken(self, ended: Ended) -> bool:
        """Tell whether a SuperNode ended because somebody took its port just before it did."""
        return PORT_IS_TAKEN in self._link.kept.last_words(ended.name).lower()

    def last_words(self, ended: Ended) -> str:
        """Return the end of what a SuperNode has printed."""
        return self._link.kept.last_words(ended.name)

    def _config(self, client: int) -> str:
        """Return Flower's node config: its quoted values may hold anything but their quote."""
        return (
            f"partition-id={client} num-partitions={len(self._sockets)} "
            f"device-socket='{self._sockets[client]}'"
        )


def client_of(ended: Ended) -> int | None:
    """Return which client's SuperNode has ended; None if it is another command."""
    name, _, client = ended.name.partition("-")
    return int(client) if name == NAME else None


def register(kept: Kept, public_keys: Sequence[Path]) -> None:
    """Have the SuperLink take nodes with these keys.

    Raises:
        RunError: it does not.
    """
    done = subprocess.run(  # noqa: S603 - a fixed command
        [sys.executable, "-P", registration.__file__, CONNECTION, *map(str, public_keys)],
        env=kept.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise RunError(f"Flower's SuperLink does not take the keys of the nodes: {lines[-1]}")
