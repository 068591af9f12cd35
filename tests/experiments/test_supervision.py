"""Supervision: who ends is started again, and when that is given up."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from experiments.engines import devices as events
from experiments.engines import supervision
from experiments.engines.kept import Ended
from experiments.engines.supervision import (
    MOST_SHORT_LIVES,
    OFFLINE_S,
    SHORT_LIFE_S,
    Supervision,
)
from fedio.errors import InputError, RunError

CLIENTS = 2


@dataclass
class Clock:
    """Time that passes while somebody sleeps."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Link:
    ended: list[Ended] = field(default_factory=list)

    def others_ended(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended


@dataclass
class Nodes:
    have_keys: bool = False
    port_is_taken: bool = False
    starts: list[int] = field(default_factory=list)
    up: set[int] = field(default_factory=lambda: set(range(CLIENTS)))

    @property
    def pids(self) -> dict[int, int]:
        return {client: 100 + client for client in self.starts}

    def start(self, client: int) -> None:
        self.starts.append(client)

    def is_up(self, client: int) -> bool:
        return client in self.up

    def found_port_taken(self, _: Ended) -> bool:
        return self.port_is_taken

    def last_words(self, ended: Ended) -> str:
        return f"words of {ended.name}"


@dataclass
class Devices:
    starts: list[int] = field(default_factory=list)
    queue: list[events.Event] = field(default_factory=list)

    def start(self, partition: int) -> None:
        self.starts.append(partition)
        self.queue.append(events.Listening(partition, 10 + partition, 0.5))

    def events(self) -> list[events.Event]:
        found, self.queue = self.queue, []
        return found


@dataclass
class Telemetry:
    rows: list[tuple[object, ...]] = field(default_factory=list)

    def started(self, kind: str, client: int, pid: int, took_s: float) -> None:
        self.rows.append(("started", kind, client, pid, took_s >= 0))

    def ended(self, *what: object) -> None:
        self.rows.append(("ended", *what))


@dataclass
class Cast:
    """Everybody, and the supervision that looks after them."""

    clock: Clock = field(default_factory=Clock)
    link: Link = field(default_factory=Link)
    nodes: Nodes = field(default_factory=Nodes)
    devices: Devices = field(default_factory=Devices)
    telemetry: Telemetry = field(default_factory=Telemetry)

    def __post_init__(self) -> None:
        self.supervision = Supervision(
            self.link,  # type: ignore[arg-type]
            self.nodes,  # type: ignore[arg-type]
            self.devices,  # type: ignore[arg-type]
            self.telemetry,  # type: ignore[arg-type]
            CLIENTS,
        )

    def kill_device(self, client: int) -> None:
        self.devices.queue.append(events.Ended(client, 10 + client, -9))
        self.supervision.look([])

    def kill_node(self, client: int, code: int = -9) -> None:
        self.supervision.look([Ended(f"supernode-{client}", 100 + client, code)])


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch) -> Cast:
    made = Cast()
    monkeypatch.setattr(supervision, "time", made.clock)
    return made


@pytest.fixture
def running(cast: Cast) -> Cast:
    cast.supervision.start()
    cast.clock.sleep(SHORT_LIFE_S + 1)
    return cast


def test_each_client_gets_a_device_and_a_node_and_telemetry_hears_of_it(cast: Cast) -> None:
    cast.supervision.start()
    assert sorted(cast.devices.starts) == sorted(cast.nodes.starts) == [0, 1]
    assert sorted(cast.telemetry.rows) == [
        ("started", "device", 0, 10, True),
        ("started", "device", 1, 11, True),
        ("started", "supernode", 0, 100, True),
        ("started", "supernode", 1, 101, True),
    ]


def test_who_is_never_up_is_named(cast: Cast) -> None:
    cast.nodes.up = {0}
    with pytest.raises(RunError, match="the SuperNode of client 1 is not up after"):
        cast.supervision.start()


def test_a_device_that_ends_is_started_again_at_once_with_a_warning(
    running: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        running.kill_device(1)
    assert running.devices.starts == [0, 1, 1]
    assert running.nodes.starts == [0, 1]
    (record,) = caplog.records
    assert "device of client 1 ended (ended by SIGKILL); it is started again" in record.message
    running.supervision.look([])
    assert running.telemetry.rows[-2:] == [
        ("ended", "device", 1, 11, -9),
        ("started", "device", 1, 11, True),
    ]


def test_a_node_without_a_key_is_started_again_at_once(running: Cast) -> None:
    running.kill_node(0)
    assert running.nodes.starts == [0, 1, 0]
    assert running.devices.starts == [0, 1]


def test_a_node_with_a_key_waits_until_the_superlink_has_forgotten_it(running: Cast) -> None:
    running.nodes.have_keys = True
    running.kill_node(0)
    running.clock.sleep(OFFLINE_S - 0.1)
    running.supervision.look([])
    assert running.nodes.starts == [0, 1]
    running.clock.sleep(0.1)
    running.supervision.look([])
    assert running.nodes.starts == [0, 1, 0]


def test_a_node_with_a_key_that_said_goodbye_does_not_wait(running: Cast) -> None:
    running.nodes.have_keys = True
    running.kill_node(0, code=0)
    assert running.nodes.starts == [0, 1, 0]


def test_commands_that_are_no_nodes_are_nobodys_loss(running: Cast) -> None:
    running.supervision.look([Ended("log-12", 7, 0)])
    assert running.nodes.starts == [0, 1]


def test_who_ends_again_and_again_at_once_ends_the_run(running: Cast) -> None:
    for _ in range(MOST_SHORT_LIVES + 1):  # it had lived long before the first
        running.kill_device(0)
    with pytest.raises(RunError, match=r"device of client 0 ended \d+ times in a row"):
        running.kill_device(0)
    assert len(running.devices.starts) == CLIENTS + MOST_SHORT_LIVES + 1


def test_who_ends_often_but_not_at_once_is_started_again_for_ever(running: Cast) -> None:
    for _ in range(3 * MOST_SHORT_LIVES):
        running.kill_device(0)
        running.supervision.look([])
        running.clock.sleep(SHORT_LIFE_S + 1)
    assert len(running.devices.starts) == CLIENTS + 3 * MOST_SHORT_LIVES


@pytest.mark.parametrize(("is_input", "kind"), [(True, InputError), (False, RunError)])
def test_a_device_that_cannot_be_built_ends_the_run(
    cast: Cast, *, is_input: bool, kind: type[Exception]
) -> None:
    cast.devices.queue.append(events.Failed(1, "no such data", is_input))
    with pytest.raises(kind, match="device 1: no such data"):
        cast.supervision.start()


def test_without_the_zygote_there_is_no_run(running: Cast) -> None:
    running.devices.queue.append(events.Gone(-9))
    with pytest.raises(RunError, match=r"forked from ended .ended by SIGKILL"):
        running.supervision.look([])


def test_a_node_that_does_not_even_start_says_why(cast: Cast) -> None:
    cast.link.ended = [Ended("supernode-1", 101, 1)]
    with pytest.raises(RunError, match=r"SuperNode of client 1 ended .exit code 1.\nwords of"):
        cast.supervision.start()


def test_a_node_whose_port_was_taken_tries_another(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast.nodes.port_is_taken = True
    cast.nodes.up = {0}

    def start(client: int) -> None:
        if client in cast.nodes.starts:
            cast.nodes.up.add(client)
        elif client == 1:
            cast.link.ended.append(Ended("supernode-1", 101, 1))
        cast.nodes.starts.append(client)

    monkeypatch.setattr(cast.nodes, "start", start)
    cast.supervision.start()
    assert cast.nodes.starts == [0, 1, 1]
