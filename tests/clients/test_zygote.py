"""Devices as processes: forked at once, the same as in this process, and gone when they should."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from clients.central import Central
from clients.device import Host
from clients.device_protocol import Request
from clients.relay import DeviceError, relay
from clients.samplers import Uniform
from experiments.engines.devices import Devices, Ended, Event, Failed, Gone, Listening, Ready
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.protocol import (
    ARRAYS,
    CLAIMS,
    CONFIG,
    DIGEST,
    LOCAL_STEPS,
    PROFILE,
    SERVER_ROUND,
    ProfileClaims,
    from_record,
)

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
Small = Callable[..., Experiment]


class Stuck(Uniform):
    """Says that it was asked, and never answers."""

    def __init__(self, *given: int, asked: str) -> None:
        super().__init__(*given)
        self.asked = asked

    def order(self, *_: object) -> np.ndarray:
        Path(self.asked).write_text("asked")
        threading.Event().wait()
        raise AssertionError


class Prints(Uniform):
    """Prints, in several ways, and fails."""

    def order(self, *_: object) -> np.ndarray:
        os.write(1, b"from below\n")
        print("from above", file=sys.stderr)  # noqa: T201
        raise ArithmeticError("no order")


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fedio-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def config(home: Path, experiment: Experiment) -> Path:
    path = home / "config.toml"
    path.write_text(experiment.to_toml())
    return path


def until(devices: Devices, wanted: type[Event], count: int = 1) -> list[Event]:
    """Wait for so many events of a kind; others that come before are returned as well."""
    deadline, found = time.monotonic() + PATIENCE_S, list[Event]()
    while sum(isinstance(event, wanted) for event in found) < count:
        assert time.monotonic() < deadline, found
        found += devices.events(PATIENCE_S)
    return found


@pytest.fixture
def devices(home: Path, small: Small) -> Iterator[Devices]:
    """Devices 1 and 2, which listen."""
    with Devices(config(home, small()), home / "sockets") as started:
        for partition in (1, 2):
            started.start(partition)
        found = until(started, Listening, 2)
        assert isinstance(found[0], Ready)
        assert {event.partition for event in found if isinstance(event, Listening)} == {1, 2}
        yield started


def pid_of(devices: Devices, partition: int) -> int:
    pid = devices.pid_of(partition)
    assert pid is not None
    return pid


def ask(
    devices: Devices, partition: int, message_type: str, content: RecordDict, key: str = "a"
) -> RecordDict:
    return relay(Request(key, message_type, content), devices.socket_of(partition), partition)


def profile(devices: Devices, partition: int, key: str = "p", digest: str = "") -> ProfileClaims:
    content = RecordDict({CONFIG: ConfigRecord({DIGEST: digest})} if digest else {})
    return from_record(ProfileClaims, ask(devices, partition, PROFILE, content, key)[CLAIMS])


def to_train(arrays: ArrayRecord, server_round: int) -> RecordDict:
    config = ConfigRecord({SERVER_ROUND: server_round, LOCAL_STEPS: 3})
    return RecordDict({ARRAYS: arrays, CONFIG: config})


def test_a_forked_device_trains_as_one_in_this_process_and_comes_back_with_its_cache(
    devices: Devices, small: Small, tmp_path: Path
) -> None:
    host, arrays = Host(small(), tmp_path), Central(small()).initial_arrays
    before = profile(devices, 1)
    assert before == host.device(1).profile()
    assert before.resident_samples == 0
    for server_round in (1, 2):
        key = f"round {server_round}"
        trained = ask(devices, 1, "train", to_train(arrays, server_round), key)
        arrays = host.device(1).train(arrays, server_round, 3).arrays
        assert trained[ARRAYS] == arrays
    cached = host.device(1).profile()
    assert cached.resident_samples > 0

    pid = pid_of(devices, 1)
    os.kill(pid, signal.SIGKILL)
    assert until(devices, Ended) == [Ended(1, pid, -signal.SIGKILL)]
    assert devices.pid_of(1) is None
    devices.start(1)
    (again,) = until(devices, Listening)
    assert isinstance(again, Listening)
    assert again.pid == devices.pid_of(1) != pid
    assert profile(devices, 1) == cached
    trained = ask(devices, 1, "train", to_train(arrays, 3))
    assert trained[ARRAYS] == host.device(1).train(arrays, 3, 3).arrays
    host.close()


def test_it_says_when_the_server_runs_another_experiment(devices: Devices, small: Small) -> None:
    assert profile(devices, 1, "a", small().digest) == profile(devices, 1, "b")
    with pytest.raises(
        InputError, match=r"another experiment \(.*\) than the server runs \(else\)"
    ):
        profile(devices, 1, "c", "else")
    assert profile(devices, 1, "d").partition == 1


def test_what_cannot_be_is_said_and_the_others_live(devices: Devices) -> None:
    for partition, why in ((1, "device 1 is there already"), (4, "clients 0..3"), (-1, "0..3")):
        devices.start(partition)
        (failed,) = until(devices, Failed)
        assert isinstance(failed, Failed)
        assert failed.is_input
        assert why in failed.message
    assert profile(devices, 2).partition == 2
    with pytest.raises(DeviceError, match=r"ValueError: a device does not answer to 'query.other'"):
        ask(devices, 2, "query.other", RecordDict())
    assert profile(devices, 2, "q").partition == 2


def test_a_device_that_is_told_to_end_ends(devices: Devices) -> None:
    pid = pid_of(devices, 2)
    os.kill(pid, signal.SIGTERM)
    assert until(devices, Ended) == [Ended(2, pid, 0)]


def test_bad_data_and_errors_of_the_code_are_said(home: Path, small: Small) -> None:
    missing = {"name": "image-folder", "args": {"path": str(home / "nowhere")}}
    for section, is_input, why in [
        ({"dataset": missing}, True, "nowhere"),
        ({"dataset": {"name": "tests.clients.test_zygote:broken"}}, False, "KeyError: 'broken'"),
    ]:
        with Devices(config(home, small(data=section)), home / "sockets") as devices:
            devices.start(0)
            ready, failed, ended = until(devices, Ended)
            assert isinstance(ready, Ready)
            assert isinstance(failed, Failed)
            assert (failed.partition, failed.is_input) == (0, is_input)
            assert why in failed.message
            assert isinstance(ended, Ended)
            assert ended.code == 1


def broken(_: Path) -> None:
    """A data set that cannot be had."""
    raise KeyError("broken")


def test_what_a_device_prints_bears_its_name(home: Path, small: Small) -> None:
    arm = {"a": {"sampler": "tests.clients.test_zygote:Prints"}}
    with (home / "log").open("wb") as log:
        devices = Devices(config(home, small(arms=arm)), home / "sockets", log=log)
        with devices:
            devices.start(3)
            until(devices, Listening)
            with pytest.raises(DeviceError, match="ArithmeticError: no order"):
                ask(devices, 3, "train", to_train(Central(small()).initial_arrays, 1))
    lines = (home / "log").read_text().splitlines()
    assert {"device 3: from below", "device 3: from above"} <= set(lines)


def test_a_device_killed_at_work_is_an_error_at_once_and_one_at_work_ends_with_the_zygote(
    home: Path, small: Small
) -> None:
    asked = home / "asked"
    os.mkfifo(asked)
    sampler = {"name": "tests.clients.test_zygote:Stuck", "args": {"asked": str(asked)}}
    started = Devices(config(home, small(arms={"a": {"sampler": sampler}})), home / "sockets")
    with ThreadPoolExecutor() as pool, started as devices:
        for partition in (0, 1):
            devices.start(partition)
        until(devices, Listening, 2)
        message = to_train(Central(small()).initial_arrays, 1)
        for partition, end in ((0, True), (1, False)):
            training = pool.submit(ask, devices, partition, "train", message)
            assert asked.read_text() == "asked"
            if end:
                os.kill(pid_of(devices, partition), signal.SIGKILL)
                with pytest.raises(DeviceError, match="device 0 ended while it trained"):
                    training.result(PATIENCE_S)
        devices.close()
        with pytest.raises(DeviceError, match="device 1 ended while it trained"):
            training.result(PATIENCE_S)


def test_nobody_stays_when_it_is_closed(devices: Devices) -> None:
    zygote, family = psutil.Process(devices.pid), processes(devices)
    os.kill(pid_of(devices, 1), signal.SIGSTOP)
    devices.close()
    assert not [process for process in (zygote, *family) if process.is_running()]
    *ended, gone = until(devices, Gone)
    assert gone == Gone(0)
    assert {event.code for event in ended if isinstance(event, Ended)} == {0}
    devices.close()  # once more does no harm


def test_devices_end_with_a_zygote_that_is_killed(devices: Devices) -> None:
    family = processes(devices)
    os.kill(pid_of(devices, 1), signal.SIGSTOP)
    os.kill(devices.pid, signal.SIGKILL)
    assert until(devices, Gone)[-1] == Gone(-signal.SIGKILL)
    assert not psutil.wait_procs(family, PATIENCE_S)[1]


OWNER = """
import sys
from pathlib import Path
from experiments.engines.devices import Devices, Listening
devices = Devices(Path(sys.argv[1]), Path(sys.argv[2]))
for partition in range(2):
    devices.start(partition)
listening = 0
while listening < 2:
    listening += sum(isinstance(event, Listening) for event in devices.events(60.0))
print(devices.pid, *map(devices.pid_of, range(2)), flush=True)
sys.stdin.read()
"""


def test_nobody_stays_when_the_owner_is_killed(home: Path, small: Small) -> None:
    given = [config(home, small()), home / "sockets"]
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", OWNER, *map(str, given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        family = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(family) == 3
        family[1].suspend()
        owner.kill()
        assert not psutil.wait_procs(family, PATIENCE_S)[1]


def test_a_folder_that_others_may_enter_is_refused(home: Path, small: Small) -> None:
    (home / "sockets").mkdir(mode=0o755)
    with (home / "log").open("wb") as log:
        devices = Devices(config(home, small()), home / "sockets", log=log)
        with devices:
            assert until(devices, Gone) == [Gone(2)]
    assert "others may enter" in (home / "log").read_text()


def processes(devices: Devices) -> list[psutil.Process]:
    found = psutil.Process(devices.pid).children(recursive=True)
    assert {process.pid for process in found} == {pid_of(devices, 1), pid_of(devices, 2)}
    return found
