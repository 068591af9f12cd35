"""The claim: of all processes one writes, and its claim ends with it."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import environment as environments
from storage import lmdb_handle
from storage.claim import Claim
from storage.environment import Environment
from storage.errors import CorruptCache, NotAllowed
from storage.lmdb_file import check

MAP_BYTES = 1 << 20
PAGE_BYTES = 4096
FORK = multiprocessing.get_context("fork")


class Neighbour:
    """Another process that has a folder open, and does with it what it is told."""

    def __init__(self, folder: Path) -> None:
        self._pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=self._serve, args=(folder, theirs))
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def __call__(self, do: str, *arguments: object) -> Any:
        self._pipe.send((do, arguments))
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @staticmethod
    def _serve(folder: Path, pipe: Connection) -> None:
        environment = None
        while True:
            do, arguments = pipe.recv()
            environment = environment or open_environment(folder)
            try:
                pipe.send(DEEDS[do](environment, *arguments))
            except Exception as error:  # noqa: BLE001 - handed to the test
                pipe.send(error)


def open_environment(folder: Path) -> Environment:
    environment, reason = environments.acquire(folder, MAP_BYTES, PAGE_BYTES)
    assert reason == ""
    return environment


def claim(environment: Environment) -> None:
    with environment.lock:
        environment.claim()


def release_claim(environment: Environment) -> None:
    with environment.lock:
        environment.release_claim()


def suspend(environment: Environment) -> None:
    with environment.lock:
        environment.suspend()


def put(environment: Environment, key: bytes, value: bytes) -> None:
    with environment.lock:
        environment.claim()
        with environment.handle.begin(write=True) as writer:
            writer.put(key, value)


def get(environment: Environment, key: bytes) -> bytes | None:
    with environment.lock, environment.reader() as reader:
        value = reader.get(key)
        return None if value is None else bytes(value)


def known(environment: Environment) -> tuple[object, int]:
    """What is known of the file, and how often others had changed it."""
    return environment.contents, environment.changed_outside


def readers(environment: Environment) -> str:
    with environment.lock:
        return str(environment.handle.readers())


DEEDS: dict[str, Callable[..., Any]] = {
    "open": lambda _: None,
    "claim": claim,
    "release": release_claim,
    "suspend": suspend,
    "put": put,
    "get": get,
    "readers": readers,
    "keep away": lambda environment: environment._claim.keep_writers_away(),
}


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Neighbour]:
    """Another process, which has the folder open from its first task on."""
    other = Neighbour(tmp_path)
    yield other
    other.process.kill()
    other.process.join()


@pytest.fixture
def mine(tmp_path: Path, neighbour: Neighbour) -> Iterator[Environment]:  # noqa: ARG001 - forks first
    """This process's environment."""
    environment = open_environment(tmp_path)
    yield environment
    environments.release(environment)


def descriptors(folder: Path) -> int:
    """How many files below a folder this process has open."""
    targets = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return sum(target.startswith(str(folder)) for target in targets)


def test_one_process_writes_and_the_others_are_told_which(
    mine: Environment, neighbour: Neighbour
) -> None:
    neighbour("claim")
    neighbour("claim")
    told = f"in {mine.path} is being written by process {neighbour.pid}: .* read_only=True or wait"
    with pytest.raises(NotAllowed, match=told):
        claim(mine)
    assert not mine.claimed
    with pytest.raises(NotAllowed, match="is being written"), mine.lock:
        mine.recreate()
    neighbour("put", b"k", b"theirs")
    assert get(mine, b"k") == b"theirs"
    neighbour("release")
    put(mine, b"k", b"mine")
    assert mine.claimed
    with pytest.raises(NotAllowed, match=f"process {os.getpid()}"):
        neighbour("put", b"k", b"theirs")
    release_claim(mine)
    neighbour("claim")
    assert neighbour("get", b"k") == b"mine"


def test_the_claim_of_a_killed_process_is_free(mine: Environment, neighbour: Neighbour) -> None:
    neighbour("put", b"k", b"theirs")
    with pytest.raises(NotAllowed):
        claim(mine)
    neighbour.process.kill()
    neighbour.process.join()
    claim(mine)
    assert get(mine, b"k") == b"theirs"


def test_a_claimant_notices_what_was_written_before(
    mine: Environment, neighbour: Neighbour
) -> None:
    put(mine, b"k", b"mine")
    release_claim(mine)
    mine.contents = "contents"
    claim(mine)
    release_claim(mine)
    assert known(mine) == ("contents", 0)
    neighbour("put", b"k", b"theirs")
    neighbour("release")
    assert mine.contents == "contents"
    claim(mine)
    assert known(mine) == (None, 1)
    put(mine, b"k", b"mine")
    mine.contents = "contents"
    release_claim(mine)
    claim(mine)
    assert known(mine) == ("contents", 1)


def test_a_suspended_environment_takes_its_claim_again(
    mine: Environment, neighbour: Neighbour
) -> None:
    put(mine, b"k", b"mine")
    mine.contents = "contents"
    suspend(mine)
    neighbour("claim")
    neighbour("release")
    assert mine.claimed
    assert get(mine, b"k") == b"mine"
    assert known(mine) == ("contents", 0)
    with pytest.raises(NotAllowed, match=f"process {os.getpid()}"):
        neighbour("claim")


def test_a_claim_that_was_lost_meanwhile_is_missed(mine: Environment, neighbour: Neighbour) -> None:
    put(mine, b"k", b"mine")
    mine.contents = "contents"
    suspend(mine)
    neighbour("put", b"k", b"theirs")
    for _ in range(2):
        with pytest.raises(NotAllowed, match="being written"):
            get(mine, b"k")
        with pytest.raises(NotAllowed, match="being written"):
            put(mine, b"k", b"mine")
    neighbour("release")
    assert get(mine, b"k") == b"theirs"
    assert known(mine) == (None, 1)
    assert mine.claimed


def test_giving_up_a_lost_claim_allows_to_read(mine: Environment, neighbour: Neighbour) -> None:
    put(mine, b"k", b"mine")
    suspend(mine)
    neighbour("put", b"k", b"theirs")
    with pytest.raises(NotAllowed):
        get(mine, b"k")
    release_claim(mine)
    assert get(mine, b"k") == b"theirs"
    assert mine.changed_outside == 1


def test_a_claim_takes_a_descriptor_only_while_it_is_held(tmp_path: Path) -> None:
    environment = open_environment(tmp_path)
    unclaimed = descriptors(tmp_path)
    claim(environment)
    claim(environment)
    assert descriptors(tmp_path) == unclaimed + 1
    suspend(environment)
    assert descriptors(tmp_path) == 0
    claim(environment)
    assert descriptors(tmp_path) == unclaimed + 1
    release_claim(environment)
    assert descriptors(tmp_path) == unclaimed
    claim(environment)
    environments.release(environment)
    assert descriptors(tmp_path) == 0


def test_a_forked_child_does_not_have_the_claim_of_its_parent(
    mine: Environment, neighbour: Neighbour
) -> None:
    put(mine, b"k", b"mine")
    mine.contents = "contents"
    parent = os.getpid()

    def task() -> None:
        assert not mine.claimed
        with pytest.raises(NotAllowed, match=f"process {parent}"):
            put(mine, b"k", b"child")
        assert get(mine, b"k") == b"mine"
        release_claim(mine)
        environments.release(mine)

    child = FORK.Process(target=task)
    child.start()
    child.join()
    assert child.exitcode == 0
    with pytest.raises(NotAllowed, match=f"process {parent}"):
        neighbour("claim")
    put(mine, b"k", b"again")
    assert known(mine) == ("contents", 0)


def test_a_claim_to_a_damaged_file_is_given_up(
    mine: Environment, neighbour: Neighbour, tmp_path: Path
) -> None:
    neighbour("open")
    put(mine, b"k", b"v" * 3000)
    release_claim(mine)
    suspend(mine)
    os.truncate(tmp_path / "data.mdb", 9000)
    with pytest.raises(CorruptCache):
        claim(mine)
    assert not mine.claimed
    neighbour("claim")


def test_a_new_file_has_nothing_to_do_with_one_that_others_still_read(
    mine: Environment, neighbour: Neighbour
) -> None:
    for _ in range(7):
        neighbour("put", b"k", b"theirs")
    neighbour("release")
    with mine.lock:
        mine.recreate()
    put(mine, b"k", b"mine")
    assert mine.handle.info()["last_txnid"] == 1
    assert neighbour("get", b"k") == b"theirs"
    release_claim(mine)
    neighbour("claim")
    assert neighbour("get", b"k") == b"mine"


@pytest.mark.parametrize("count", [3, 4])
def test_a_compacted_file_has_nothing_to_do_with_one_that_others_still_read(
    mine: Environment, neighbour: Neighbour, count: int
) -> None:
    neighbour("open")
    for number in range(count):
        put(mine, b"%d" % number, b"mine")
    assert neighbour("get", b"0") == b"mine"
    with mine.lock:
        mine.compact()
    assert get(mine, b"0") == b"mine"
    put(mine, b"k", b"later")
    release_claim(mine)
    assert neighbour("get", b"0") == b"mine"
    neighbour("claim")
    assert neighbour("get", b"k") == b"later"


def test_a_file_that_another_process_lets_grow_stays_usable(
    mine: Environment, neighbour: Neighbour
) -> None:
    neighbour("put", b"k", b"v")
    neighbour("release")
    claim(mine)
    with mine.lock:
        mine.resize(8 * MAP_BYTES)
    put(mine, b"large", b"v" * 2 * MAP_BYTES)
    assert neighbour("get", b"k") == b"v"
    put(mine, b"larger", b"v" * 3 * MAP_BYTES)
    release_claim(mine)
    neighbour("put", b"k", b"again")
    assert neighbour("get", b"larger") == b"v" * 3 * MAP_BYTES


def test_a_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(NotAllowed, match=r"cannot open the cache .* No locks available"):
        open_environment(tmp_path)


def test_a_damaged_file_that_another_process_writes_is_left_to_it(
    tmp_path: Path, neighbour: Neighbour
) -> None:
    neighbour("put", b"k", b"v" * 3000)
    content = bytearray((tmp_path / "data.mdb").read_bytes())
    content[2 * PAGE_BYTES :] = b"x" * (len(content) - 2 * PAGE_BYTES)
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(NotAllowed, match=f"process {neighbour.pid}"):
        environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    assert (tmp_path / "data.mdb").read_bytes() == content
    neighbour.process.kill()
    neighbour.process.join()
    environment, reason = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    assert "damaged" in reason
    environments.release(environment)


def test_a_file_that_is_being_written_is_checked_as_a_reader(
    tmp_path: Path, neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour("put", b"k", b"v" * 3000)
    seen = []

    def check_slowly(path: Path, page_bytes: int, map_bytes: int) -> np.ndarray:
        seen.append(str(os.getpid()) in neighbour("readers"))
        for number in range(20):
            neighbour("put", b"k", b"%d" % number * 3000)
        return check(path, page_bytes, map_bytes)

    monkeypatch.setattr(lmdb_handle, "check", check_slowly)
    for read_only in (True, False):
        environment, reason = environments.acquire(
            tmp_path, MAP_BYTES, PAGE_BYTES, read_only=read_only
        )
        assert reason == ""
        assert get(environment, b"k") == b"19" * 3000
        environments.release(environment)
    assert seen == [True, True]


def test_a_claim_says_whether_others_have_it(tmp_path: Path, neighbour: Neighbour) -> None:
    here = Claim(tmp_path)
    assert not here.known()
    assert not here.held_elsewhere()
    neighbour("claim")
    assert here.known()
    assert here.held_elsewhere()
    with pytest.raises(NotAllowed):
        here.keep_writers_away()
    neighbour("release")
    assert not here.held_elsewhere()
    here.keep_writers_away()
    with pytest.raises(NotAllowed, match=f"being read by process {os.getpid()}"):
        neighbour("claim")
    here.give_up()
    neighbour("keep away")
    assert not here.held_elsewhere()
    with pytest.raises(NotAllowed, match=f"being read by process {neighbour.pid}"):
        here.take()
