"""The service of a device process: one request at a time, each once, whoever asks how often."""

from __future__ import annotations

import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, RecordDict

from clients.device_protocol import Answered, Failed, Request, Said, Working, decode, encode
from clients.frames import receive
from clients.service import LONGEST_PATH_BYTES, REMEMBERED, Service
from fedio.errors import InputError

PATIENCE_S = 60.0
OFTEN_S = 0.01


def content(**values: int | str) -> RecordDict:
    return RecordDict({"config": ConfigRecord(values)})


class Device:
    """Answers with how often it was asked, after it may; notes what it was asked, and where."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.may, self.began = threading.Event(), threading.Event()
        self.may.set()

    def answer(self, message_type: str, given: RecordDict) -> RecordDict:
        self.asked.append(message_type)
        self.threads.add(threading.get_ident())
        self.began.set()
        assert self.may.wait(PATIENCE_S)
        match message_type:
            case "end":
                raise SystemExit
            case "wrong":
                raise InputError("put it right")
            case "fail":
                raise RuntimeError
        given.config_records["config"]["asked"] = len(self.asked)
        return given


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fedio-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def path(folder: Path, device: Device) -> Iterator[Path]:
    """The socket of a device that is being served."""
    path = folder / "0.sock"
    service = Service(path, OFTEN_S)

    def serve() -> None:
        with suppress(SystemExit):
            service.serve(device.answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield path
    device.may.set()
    with connected(path) as connection:
        connection.sendall(encode(Request("the end", "end", RecordDict())))
        thread.join(PATIENCE_S)
    service.close()
    assert not thread.is_alive()


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def last(connection: socket.socket) -> Said:
    while isinstance(said := decode(receive(connection)), Working):
        pass
    return said


def ask(path: Path, key: str, message_type: str = "train") -> Said:
    with connected(path) as connection:
        connection.sendall(encode(Request(key, message_type, content(key=key))))
        return last(connection)


def answered(key: str, asked: int) -> Answered:
    return Answered(RecordDict({"config": ConfigRecord({"key": key, "asked": asked})}))


def test_requests_are_answered_in_turn_and_in_one_thread(path: Path, device: Device) -> None:
    assert [ask(path, "a"), ask(path, "b", "evaluate")] == [answered("a", 1), answered("b", 2)]
    assert device.asked == ["train", "evaluate"]
    assert len(device.threads) == 1


def test_who_asks_again_gets_the_same_and_nothing_is_done_twice(path: Path, device: Device) -> None:
    assert ask(path, "a") == ask(path, "a") == answered("a", 1)
    assert ask(path, "f", "fail") == ask(path, "f", "fail")
    assert device.asked == ["train", "fail"]


def test_who_asks_while_it_is_worked_on_waits_for_that(path: Path, device: Device) -> None:
    device.may.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, path, "a")
        assert device.began.wait(PATIENCE_S)
        second = pool.submit(ask, path, "a")
        with connected(path) as third:
            third.sendall(encode(Request("a", "train", content(key="a"))))
            assert receive(third).header["kind"] == "working"
            device.may.set()
            assert first.result() == second.result() == last(third) == answered("a", 1)
    assert device.asked == ["train"]


def test_who_has_gone_finds_the_answer_when_it_is_back(path: Path, device: Device) -> None:
    device.may.clear()
    with connected(path) as gone:
        gone.sendall(encode(Request("a", "train", content(key="a"))))
        assert device.began.wait(PATIENCE_S)
    device.may.set()
    assert ask(path, "a") == answered("a", 1)
    assert device.asked == ["train"]


def test_only_the_last_answers_are_kept(path: Path, device: Device) -> None:
    keys = [str(key) for key in range(REMEMBERED + 1)]
    first = [ask(path, key) for key in keys]
    assert [ask(path, key) for key in keys[1:]] == first[1:]
    assert ask(path, keys[0]) == answered(keys[0], REMEMBERED + 2)
    assert len(device.asked) == REMEMBERED + 2


def test_who_waits_hears_that_it_is_worked_on(path: Path, device: Device) -> None:
    device.may.clear()
    with connected(path) as connection:
        connection.sendall(encode(Request("a", "train", content(key="a"))))
        for _ in range(3):
            assert decode(receive(connection)) == Working()
        device.may.set()
        assert last(connection) == answered("a", 1)


def test_failures_are_answers(path: Path) -> None:
    failed = ask(path, "a", "fail")
    assert isinstance(failed, Failed)
    assert (failed.message, failed.is_input) == ("RuntimeError", False)
    assert failed.traceback.startswith("Traceback")
    assert failed.traceback.endswith("RuntimeError\n")
    wrong = ask(path, "b", "wrong")
    assert isinstance(wrong, Failed)
    assert (wrong.message, wrong.is_input) == ("put it right", True)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "no frame"),
        (encode(Request("a", "train", RecordDict())).replace(b'on": 1', b'on": 9'), "version 9"),
        (encode(Working()), "a Working is no request"),
        (encode(Request("a", "train", RecordDict())).replace(b"request", b"rrquest"), "rrquest"),
    ],
)
def test_what_is_no_request_is_refused_in_one_line_and_the_device_lives(
    path: Path, device: Device, sent: bytes, why: str
) -> None:
    with connected(path) as connection:
        connection.sendall(sent)
        refused = last(connection)
    assert isinstance(refused, Failed)
    assert why in refused.message
    assert "\n" not in refused.message + refused.traceback
    assert ask(path, "b") == answered("b", 1)
    assert device.asked == ["train"]


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_request_cut_short_does_no_harm(path: Path, device: Device, cut: int) -> None:
    with connected(path) as connection:
        connection.sendall(encode(Request("a", "train", content(key="a")))[:cut])
        connection.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receive(connection)
    assert ask(path, "b") == answered("b", 1)
    assert device.asked == ["train"]


def test_nobody_else_may_connect_and_a_stale_socket_is_replaced(folder: Path) -> None:
    path = folder / "0.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with pytest.raises(ConnectionRefusedError):
        connected(path)
    service = Service(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    connected(path).close()
    service.close()
    with pytest.raises(ConnectionRefusedError):
        connected(path)
    assert list(folder.iterdir()) == [path]


def test_a_socket_that_cannot_be_is_one_line(folder: Path) -> None:
    longest = folder / ("s" * (LONGEST_PATH_BYTES - len(str(folder)) - 1))
    for path, why in [
        (longest.with_name(longest.name + "s"), "choose a shorter folder"),
        (folder / "missing" / "0.sock", "No such file or directory"),
    ]:
        with pytest.raises(InputError, match=why) as failed:
            Service(path)
        assert "\n" not in str(failed.value)
