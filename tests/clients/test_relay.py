"""The relay: what the device says comes back, and a device that is lost is one clear line."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from clients import client_app, relay
from clients.device_protocol import Answered, Failed, Request, Said, Working, decode, encode
from clients.frames import receive
from clients.relay import DeviceError, Patience
from fedio.errors import InputError
from fedio.flower_internals import assume_identity, set_message_id

SHORT = Patience(connect_s=0.0, silence_s=0.05)
LONG = Patience(connect_s=60.0, silence_s=60.0)
RECORDS = RecordDict({"config": ConfigRecord({"b": b"9"})})

Does = Callable[[socket.socket, Said], None]


class Device:
    """Listens, and does with each request what the test says."""

    def __init__(self, path: Path) -> None:
        self.does: Does = lambda connection, _: connection.sendall(encode(Answered(RECORDS)))
        self.asked: list[Said] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.asked.append(decode(receive(connection)))
                self.does(connection, self.asked[-1])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fedio-", dir="/tmp"))
    yield folder / "3.sock"
    shutil.rmtree(folder)


@pytest.fixture
def device(path: Path) -> Iterator[Device]:
    made = Device(path)
    yield made
    made.close()


def ask(path: Path, patience: Patience, message_type: str = "train") -> RecordDict:
    return relay.relay(Request("7", message_type, RECORDS), path, 3, patience)


def saying(*said: Said) -> Does:
    return lambda connection, _: connection.sendall(b"".join(map(encode, said)))


def until_gone(connection: socket.socket, _: Said) -> None:
    """Say nothing until the other end has gone."""
    assert not connection.recv(1)


def test_what_the_device_says_comes_back(path: Path, device: Device) -> None:
    device.does = saying(Working(), Working(), Answered(RECORDS))
    assert ask(path, LONG) == RECORDS
    assert device.asked == [Request("7", "train", RECORDS)]


def test_failures_of_the_device_are_raised_as_what_they_are(path: Path, device: Device) -> None:
    device.does = saying(Failed("bad", "Traceback:\nValueError: bad\n", is_input=False))
    with pytest.raises(DeviceError, match=r"\ATraceback:\nValueError: bad\n\Z"):
        ask(path, LONG)
    device.does = saying(Failed("its version is 9", "", is_input=False))
    with pytest.raises(DeviceError, match=r"\Adevice 3: its version is 9\Z"):
        ask(path, LONG)
    device.does = saying(Failed("put it right", "Traceback", is_input=True))
    with pytest.raises(InputError, match=r"\Aput it right\Z"):
        ask(path, LONG)


@pytest.mark.parametrize(
    ("message_type", "doing"),
    [
        ("train", "while it trained"),
        ("evaluate", "while it evaluated"),
        ("query.profile", "while it was asked for its profile"),
        ("query.stage", "while it staged"),
        ("query.other", "while it answered query.other"),
    ],
)
def test_a_device_that_ends_is_one_line_at_once(
    path: Path, device: Device, message_type: str, doing: str
) -> None:
    for said in ([], [Working()]):
        device.does = saying(*said)
        with pytest.raises(DeviceError, match=rf"\Adevice 3 ended {doing}\Z"):
            ask(path, LONG, message_type)
    device.does = lambda connection, _: connection.sendall(encode(Answered(RECORDS))[:-1])
    with pytest.raises(DeviceError, match=rf"\Adevice 3 ended {doing}\Z"):
        ask(path, LONG, message_type)


def test_a_device_that_says_nothing_is_given_up(path: Path, device: Device) -> None:
    device.does = until_gone
    with pytest.raises(DeviceError, match=r"\Adevice 3 has said nothing for 0.05 s: has it "):
        ask(path, SHORT)


def test_another_version_or_no_device_at_all_is_one_line(path: Path, device: Device) -> None:
    other = encode(Working()).replace(b'on": 1', b'on": 2')
    for sent, why in [(other, "speaks version 2 .*, this one version 1"), (b"\0" * 99, "no frame")]:
        device.does = lambda connection, _, sent=sent: connection.sendall(sent)
        with pytest.raises(DeviceError, match=rf"\Adevice 3 is not understood: .*{why}.*\Z"):
            ask(path, LONG)
    device.does = saying(Request("8", "train", RECORDS))
    with pytest.raises(DeviceError, match="answers with a Request"):
        ask(path, LONG)


def test_a_device_that_is_not_there_is_one_line(path: Path) -> None:
    with pytest.raises(DeviceError, match=r"\Adevice 3 is not there: .*: No such file"):
        ask(path, SHORT)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(DeviceError, match=r"\Adevice 3 is not there: .*: Connection refused\Z"):
        ask(path, SHORT)


@pytest.mark.parametrize("stale", [True, False])
def test_a_device_that_comes_later_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    if stale:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    came: list[Device] = []

    def wait(_: float) -> None:
        path.unlink(missing_ok=True)
        came.append(Device(path))

    monkeypatch.setattr(relay.time, "sleep", wait)
    assert ask(path, LONG) == RECORDS
    (device,) = came
    device.close()


def reply(path: Path) -> Message:
    assume_identity(1, 1)
    node = {"partition-id": 3, "device-socket": str(path)}
    message = Message(RECORDS, 5, "train")
    set_message_id(message, "the id")
    run_config = {"experiment": "none", "overrides": ""}
    return client_app.app(message, Context(1, 5, node, RecordDict(), run_config))


def test_the_client_app_relays_where_the_node_has_a_device(path: Path, device: Device) -> None:
    assert reply(path).content == RECORDS
    assert device.asked == [Request("the id", "train", RECORDS)]
    device.does = saying(Failed("bad", "Traceback\nbad", is_input=False))
    failed = reply(path)
    assert (failed.error.code, failed.error.reason) == (client_app.FAILED, "Traceback\nbad")
    device.does = saying()
    assert reply(path).error.reason == "device 3 ended while it trained"
    device.does = saying(Failed("put it right", "", is_input=True))
    with pytest.raises(InputError, match="put it right"):
        reply(path)


def test_a_client_app_that_relays_imports_nothing_slow() -> None:
    slow = {"torch", "torchvision", "PIL", "lmdb", "pydantic", "clients.device", "storage"}
    script = f"import sys, clients.client_app; print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)  # noqa: S603
    assert done.stdout == b"set()\n"
