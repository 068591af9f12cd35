"""Supervision of an emulation: devices and SuperNodes that end are started again."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.engines import devices as device_events
from experiments.engines.devices import Devices
from experiments.engines.kept import Ended, how
from experiments.engines.superlink import SuperLink
from experiments.engines.supernodes import SuperNodes, client_of
from experiments.telemetry import Telemetry
from fedio.errors import InputError, RunError

logger = logging.getLogger(__name__)

# To start everything: what it takes on a slow machine where one waits for the other.
START_S, START_S_PER_CLIENT = 120.0, 15.0
POLL_S = 0.1
# Who ends so soon after its start, so many times in a row, is not started any more.
SHORT_LIFE_S, MOST_SHORT_LIVES = 5.0, 20
# A SuperLink takes a node with a key again when it has not heard of it for two heartbeats.
OFFLINE_S = 61.0

DEVICE, NODE = "device", "supernode"
WORDS = {DEVICE: "device", NODE: "SuperNode"}


@dataclass(slots=True)
class _Life:
    """What is known of a device, or of a SuperNode.

    Attributes:
        asked_s: when it was last started; it is not up yet.
        up_s: since when it is up.
        due_s: when it is to be started again.
        short_lives: how many times in a row it has ended soon after its start.
    """

    asked_s: float | None = None
    up_s: float | None = None
    due_s: float | None = None
    short_lives: int = 0


class Supervision:
    """Starts a device and a SuperNode for each client, and again whenever one has ended."""

    def __init__(
        self,
        link: SuperLink,
        nodes: SuperNodes,
        devices: Devices,
        telemetry: Telemetry,
        clients: int,
    ) -> None:
        self._link, self._nodes, self._devices = link, nodes, devices
        self._telemetry = telemetry
        self._is_under_way = False
        self._lives = {(kind, k): _Life() for kind in (DEVICE, NODE) for k in range(clients)}

    def start(self) -> None:
        """Start all, and wait until all are up.

        Raises:
            InputError: the experiment asks a device for something that is not here.
            RunError: some do not start.
        """
        now_s = time.monotonic()
        for life in self._lives.values():
            life.due_s = now_s
        deadline = now_s + START_S + START_S_PER_CLIENT * len(self._lives) / 2
        while waited_for := [who for who, life in self._lives.items() if life.up_s is None]:
            if time.monotonic() > deadline:
                kind, client = waited_for[0]
                raise RunError(
                    f"the {WORDS[kind]} of client {client} is not up after "
                    f"{time.monotonic() - now_s:.0f} s; this machine may be too slow for "
                    f"{len(self._lives) // 2} clients"
                )
            self.look(self._link.others_ended())
            time.sleep(POLL_S)
        self._is_under_way = True

    def look(self, ended: Sequence[Ended]) -> None:
        """See what has happened, and start again who has ended.

        Args:
            ended: commands beside the SuperLink that have.

        Raises:
            InputError: the experiment asks a device for something that is not here.
            RunError: one cannot be started, or ends again and again.
        """
        for event in self._devices.events():
            self._see(event)
        for one in ended:
            if (client := client_of(one)) is not None:
                self._node_ended(client, one)
        for (kind, client), life in self._lives.items():
            if life.due_s is not None and time.monotonic() >= life.due_s:
                life.due_s, life.asked_s = None, time.monotonic()
                (self._devices if kind == DEVICE else self._nodes).start(client)
            elif kind == NODE and life.asked_s is not None and self._nodes.is_up(client):
                took_s = time.monotonic() - life.asked_s
                self._is_up(NODE, client, self._nodes.pids[client], took_s)

    def _see(self, event: device_events.Event) -> None:
        match event:
            case device_events.Listening(client, pid, took_s):
                self._is_up(DEVICE, client, pid, took_s)
            case device_events.Failed(client, message, is_input):
                raise (InputError if is_input else RunError)(f"device {client}: {message}")
            case device_events.Ended(client, pid, code):
                self._has_ended(DEVICE, client, pid, code)
            case device_events.Gone(code):
                raise RunError(f"the process that devices are forked from ended ({how(code)})")

    def _node_ended(self, client: int, ended: Ended) -> None:
        if not self._is_under_way and not self._nodes.found_port_taken(ended):
            words = self._nodes.last_words(ended)
            raise RunError(f"the SuperNode of client {client} ended ({how(ended.code)})\n{words}")
        self._has_ended(NODE, client, ended.pid, ended.code)

    def _is_up(self, kind: str, client: int, pid: int, took_s: float) -> None:
        life = self._lives[kind, client]
        life.asked_s, life.up_s = None, time.monotonic()
        self._telemetry.started(kind, client, pid, took_s)

    def _has_ended(self, kind: str, client: int, pid: int, code: int) -> None:
        """Take note of it, and of when to start it again."""
        self._telemetry.ended(kind, client, pid, code)
        life, now_s = self._lives[kind, client], time.monotonic()
        lived_s = 0.0 if life.up_s is None else now_s - life.up_s
        life.short_lives = 0 if lived_s > SHORT_LIFE_S else life.short_lives + 1
        who, asked = f"the {WORDS[kind]} of client {client}", how(code)
        if life.short_lives > MOST_SHORT_LIVES:
            raise RunError(f"{who} ended {life.short_lives} times in a row ({asked}); see why")
        is_online = kind == NODE and self._nodes.have_keys and code != 0
        wait_s = OFFLINE_S if is_online else 0.0
        when = f" in {wait_s:.0f} s, when its key is free" if is_online else ""
        logger.warning("%s ended (%s); it is started again%s", who, asked, when)
        life.asked_s = life.up_s = None
        life.due_s = now_s + wait_s
