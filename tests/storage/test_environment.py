"""Environments: many of them on few descriptors, checked, read-only, in threads and forks."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from storage import environment as environments
from storage import lmdb_handle, open_limit
from storage.claim import Claim
from storage.environment import Environment
from storage.errors import CorruptCache, NotAllowed, StoreFull

MAP_BYTES = 1 << 20
PAGE_BYTES = 4096
FORK = multiprocessing.get_context("fork")

Open = Callable[..., Environment]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens environments and releases them after the test."""
    kept: list[Environment] = []

    def open_one(
        path: Path, map_bytes: int = MAP_BYTES, page_bytes: int = PAGE_BYTES
    ) -> Environment:
        kept.append(environments.acquire(path, map_bytes, page_bytes)[0])
        return kept[-1]

    yield open_one
    for environment in kept:
        environments.release(environment)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four environments are open at once."""
    monkeypatch.setattr(open_limit, "MOST_OPEN", 4)


class Neighbour:
    """Another process, which has opened nothing yet; it runs what it is sent."""

    def __init__(self) -> None:
        self._pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=self._serve, args=(theirs,))
        self.process.start()

    def __call__(self, task: Callable[..., Any], *arguments: object) -> Any:
        self._pipe.send((task, arguments))
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @staticmethod
    def _serve(pipe: Connection) -> None:
        while True:
            task, arguments = pipe.recv()
            try:
                pipe.send(task(*arguments))
            except Exception as error:  # noqa: BLE001 - handed to the test
                pipe.send(error)


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    """Another process."""
    other = Neighbour()
    yield other
    other.process.kill()
    other.process.join()


def put(environment: Environment, key: bytes, value: bytes) -> None:
    with environment.lock:
        environment.claim()
        with environment.handle.begin(write=True) as writer:
            writer.put(key, value)


def get(environment: Environment, key: bytes) -> bytes | None:
    with environment.lock, environment.reader() as reader:
        value = reader.get(key)
        return None if value is None else bytes(value)


def suspend(environment: Environment) -> None:
    """What happens when others are used."""
    with environment.lock:
        environment.suspend()


def known(environment: Environment) -> tuple[object, int]:
    """What is known of the file, and how often others had changed it."""
    return environment.contents, environment.changed_outside


def is_open(environment: Environment) -> bool:
    return environment._handle is not None


def in_another_process(task: Callable[[], None]) -> None:
    process = FORK.Process(target=task)
    process.start()
    process.join()
    assert process.exitcode == 0


def write(folder: Path, key: bytes, value: bytes, *, renewed: bool = False) -> None:
    """Open a folder, write into the cache there or into one in its place, and close it."""
    environment, reason = environments.acquire(folder, MAP_BYTES, PAGE_BYTES)
    assert reason == ""
    if renewed:
        with environment.lock:
            environment.recreate()
    put(environment, key, value)
    environments.release(environment)


def descriptors(folder: Path) -> int:
    """How many files below a folder this process has open."""
    targets = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
    return sum(target.startswith(str(folder)) for target in targets)


def _use_many(folder: Path, count: int, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    opened = []
    for number in range(count):
        environment, _ = environments.acquire(folder / str(number), MAP_BYTES, PAGE_BYTES)
        environment.contents, environment.owner = number, [number]
        put(environment, b"key", b"value %d" % number)
        with environment.lock:
            environment.release_claim()
        opened.append(environment)
    for number in np.random.default_rng(0).permutation(count).tolist():
        assert get(opened[number], b"key") == b"value %d" % number
        assert (opened[number].contents, opened[number].owner) == (number, [number])
        assert opened[number].changed_outside == 0
    assert sum(map(is_open, opened)) == open_limit.most_open()
    assert descriptors(folder) == 3 * open_limit.most_open()
    for environment in opened:
        environments.release(environment)
    assert descriptors(folder) == 0


@pytest.mark.parametrize(
    ("count", "limit"), [(600, 128), pytest.param(5000, 1024, marks=pytest.mark.slow)]
)
def test_many_environments_are_written_and_read_on_few_descriptors(
    tmp_path: Path, count: int, limit: int
) -> None:
    in_another_process(lambda: _use_many(tmp_path, count, limit))


@pytest.mark.parametrize(
    ("limit", "most"), [(128, 4), (129, 4), (160, 8), (1024, 32), (resource.RLIM_INFINITY, 32)]
)
def test_the_limit_of_descriptors_says_how_many_are_open(
    monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert open_limit.most_open() == most


@pytest.mark.usefixtures("few")
def test_the_one_used_longest_ago_is_suspended(tmp_path: Path, opened: Open) -> None:
    made = [opened(tmp_path / str(number)) for number in range(4)]
    put(made[0], b"k", b"v")
    fifth = opened(tmp_path / "4")
    assert [is_open(e) for e in made] == [True, False, True, True]
    get(made[1], b"k")
    assert [is_open(e) for e in (*made, fifth)] == [True, True, False, True, True]


@pytest.mark.usefixtures("few")
def test_one_that_is_in_use_is_not_suspended(tmp_path: Path, opened: Open) -> None:
    first, second = opened(tmp_path / "a"), opened(tmp_path / "b")
    busy, done = threading.Event(), threading.Event()

    def use() -> None:
        with second.lock, second.handle.begin(write=True) as writer:
            writer.put(b"k", b"v")
            busy.set()
            done.wait()

    thread = threading.Thread(target=use)
    thread.start()
    busy.wait()
    with first.lock, first.reader() as reader:
        for number in range(8):
            opened(tmp_path / str(number))
        assert is_open(first)
        assert is_open(second)
        assert reader.get(b"k") is None
    done.set()
    thread.join()
    assert get(second, b"k") == b"v"
    for number in range(8, 12):
        opened(tmp_path / str(number))
    assert not is_open(first)
    assert not is_open(second)


@pytest.mark.usefixtures("few")
def test_threads_share_many_environments(tmp_path: Path, opened: Open) -> None:
    made = [opened(tmp_path / str(number)) for number in range(40)]
    counts = [0] * 40
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for number in np.random.default_rng(seed).integers(0, 40, 150).tolist():
                environment = made[number]
                with environment.lock:
                    found = get(environment, b"count") or b"0"
                    assert int(found) == counts[number]
                    counts[number] += 1
                    put(environment, b"count", b"%d" % counts[number])
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(counts) == 900
    assert [int(get(e, b"count") or 0) for e in made] == counts
    assert sum(map(is_open, made)) == 4
    assert all(e.changed_outside == 0 for e in made)


def test_too_few_descriptors_for_the_limit_suspend_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_limit, "most_open", lambda: 1000)

    def task() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        made = [
            environments.acquire(tmp_path / str(number), MAP_BYTES, PAGE_BYTES)[0]
            for number in range(40)
        ]
        for environment in made:
            put(environment, b"k", b"v")
        assert all(get(environment, b"k") == b"v" for environment in made)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        for environment in made:
            suspend(environment)
        with pytest.raises(NotAllowed, match="ulimit -n"):
            get(made[0], b"k")

    in_another_process(task)


def test_what_is_known_of_a_file_outlives_its_suspension(tmp_path: Path, opened: Open) -> None:
    environment = opened(tmp_path)
    put(environment, b"k", b"v")
    environment.contents, environment.owner = "contents", "owner"
    suspend(environment)
    assert get(environment, b"k") == b"v"
    assert (environment.contents, environment.owner) == ("contents", "owner")
    assert environment.changed_outside == 0


def test_what_another_process_writes_meanwhile_is_noticed(
    tmp_path: Path, opened: Open, neighbour: Neighbour
) -> None:
    environment = opened(tmp_path)
    put(environment, b"k", b"v")
    environment.contents, environment.owner = "contents", "owner"
    suspend(environment)
    neighbour(write, tmp_path, b"k", b"theirs")
    assert get(environment, b"k") == b"theirs"
    assert known(environment) == (None, 1)
    assert environment.owner == "owner"
    environment.contents = "again"
    suspend(environment)
    assert get(environment, b"k") == b"theirs"
    assert known(environment) == ("again", 1)


@pytest.mark.parametrize("suspended", [True, False])
def test_a_file_in_the_place_of_the_known_one_is_noticed(
    tmp_path: Path, opened: Open, neighbour: Neighbour, suspended: bool
) -> None:
    environment = opened(tmp_path)
    put(environment, b"k", b"v")
    environment.contents = "contents"
    with environment.lock:
        environment.release_claim()
    if suspended:
        suspend(environment)
    # As many transactions as the file had that is gone now.
    neighbour(partial(write, renewed=True), tmp_path, b"k", b"theirs")
    put(environment, b"other", b"mine")
    assert get(environment, b"k") == b"theirs"
    assert known(environment) == (None, 1)
    suspend(environment)
    assert get(environment, b"other") == b"mine"


@pytest.mark.parametrize("damage", ["truncated", "garbage", "gone"])
def test_a_file_that_is_damaged_meanwhile_is_not_opened(
    tmp_path: Path, opened: Open, damage: str
) -> None:
    environment = opened(tmp_path)
    put(environment, b"k", b"v" * 3000)
    environment.contents = "contents"
    suspend(environment)
    data = tmp_path / "data.mdb"
    if damage == "truncated":
        os.truncate(data, 9000)
    elif damage == "garbage":
        data.write_bytes(os.urandom(data.stat().st_size))
    else:
        data.unlink()
    with pytest.raises(CorruptCache):
        get(environment, b"k")
    assert environment.contents is None
    assert environment.changed_outside == 1
    with environment.lock:
        environment.recreate()
    assert get(environment, b"k") is None
    put(environment, b"k", b"v")
    assert get(environment, b"k") == b"v"


def test_a_folder_that_is_gone_can_be_made_again(tmp_path: Path, opened: Open) -> None:
    environment = opened(tmp_path / "cache")
    put(environment, b"k", b"v")
    suspend(environment)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(NotAllowed, match="No such file"):
        get(environment, b"k")
    same, reason = environments.acquire(tmp_path / "cache", MAP_BYTES, PAGE_BYTES)
    assert same is environment
    assert "gone" in reason
    put(same, b"k", b"again")
    assert get(environment, b"k") == b"again"
    environments.release(same)


def test_a_damaged_file_is_recreated_by_the_next_to_open_it(tmp_path: Path, opened: Open) -> None:
    environment = opened(tmp_path)
    put(environment, b"k", b"v" * 3000)
    suspend(environment)
    (tmp_path / "data.mdb").write_bytes(b"garbage" * 5000)
    same, reason = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    assert same is environment
    assert "data.mdb" in reason
    assert environment.contents is None
    assert get(environment, b"k") is None
    environments.release(same)


@pytest.mark.parametrize("page_bytes", [4096, 16384])
def test_a_new_file_has_the_pages_that_were_asked_for(
    tmp_path: Path, opened: Open, page_bytes: int
) -> None:
    environment = opened(tmp_path, page_bytes=page_bytes)
    put(environment, b"k", b"v" * 5000)
    assert environment.handle.stat()["psize"] == page_bytes
    assert environment.file_bytes % page_bytes == 0
    suspend(environment)
    assert get(environment, b"k") == b"v" * 5000


def test_a_cache_with_other_pages_is_recreated(tmp_path: Path, opened: Open) -> None:
    environment, _ = environments.acquire(tmp_path, MAP_BYTES, 4096)
    put(environment, b"k", b"v")
    with pytest.raises(NotAllowed, match="is open with another size"):
        opened(tmp_path, page_bytes=16384)
    environments.release(environment)
    environment, reason = environments.acquire(tmp_path, MAP_BYTES, 16384)
    assert "pages of 4096 bytes" in reason
    assert environment.handle.stat()["psize"] == 16384
    assert get(environment, b"k") is None
    assert not environment.claimed
    environments.release(environment)


def _foreign(folder: Path) -> bytes:
    with lmdb.open(str(folder)) as foreign, foreign.begin(write=True) as writer:
        writer.put(b"theirs", b"precious")
    return (folder / "data.mdb").read_bytes()


def test_the_file_of_another_program_is_never_thrown_away(tmp_path: Path) -> None:
    before = _foreign(tmp_path)
    for _ in range(2):
        with pytest.raises(NotAllowed, match="another folder"):
            environments.acquire(tmp_path, MAP_BYTES, 16384)
        assert (tmp_path / "data.mdb").read_bytes() == before


def test_pages_that_lmdb_does_not_take_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _foreign(tmp_path)
    monkeypatch.setattr(lmdb_handle, "check", lambda *_: None)
    with pytest.raises(NotAllowed, match="pages of 16384 bytes"):
        environments.acquire(tmp_path, MAP_BYTES, 16384)


def test_a_file_larger_than_its_new_budget_is_used_as_it_is(tmp_path: Path, opened: Open) -> None:
    large, _ = environments.acquire(tmp_path, 4 * MAP_BYTES, PAGE_BYTES)
    for number in range(30):
        put(large, b"%d" % number, b"v" * 100_000)
    environments.release(large)
    environment, reason = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    assert reason == ""
    assert environment.map_bytes == MAP_BYTES < 3_000_000 < environment.file_bytes
    assert get(environment, b"29") == b"v" * 100_000
    put(environment, b"29", b"changed")
    suspend(environment)
    assert get(environment, b"29") == b"changed"
    with environment.lock:
        environment.recreate()
    assert environment.file_bytes < MAP_BYTES
    with environment.lock, pytest.raises(lmdb.MapFullError):
        put(environment, b"k", b"v" * 2 * MAP_BYTES)
    environments.release(environment)
    assert opened(tmp_path).contents is None


def test_an_empty_file_may_have_another_size_and_other_pages(tmp_path: Path, opened: Open) -> None:
    environment = opened(tmp_path, page_bytes=4096)
    put(environment, b"k", b"v")
    environment.contents = "contents"
    with environment.lock:
        environment.recreate(map_bytes=8 * MAP_BYTES, page_bytes=16384)
    assert environment.contents is None
    assert get(environment, b"k") is None
    assert environment.handle.stat()["psize"] == 16384
    put(environment, b"k", b"v" * 2 * MAP_BYTES)
    assert (environment.map_bytes, environment.page_bytes) == (8 * MAP_BYTES, 16384)
    assert environment.changed_outside == 0


def test_values_of_a_full_file_that_is_too_large_can_be_removed(
    tmp_path: Path, opened: Open
) -> None:
    large, _ = environments.acquire(tmp_path, 4 * MAP_BYTES, PAGE_BYTES)
    count = 0

    def fill() -> None:
        nonlocal count
        while True:
            put(large, b"%d" % count, b"v" * 4000)
            count += 1

    with pytest.raises(lmdb.MapFullError):
        fill()
    environments.release(large)
    environment = opened(tmp_path)
    assert environment.file_bytes > 3 * MAP_BYTES
    for number in range(count):
        with environment.lock, environment.handle.begin(write=True) as writer:
            assert writer.delete(b"%d" % number)


def test_a_file_may_become_larger_without_being_read_again(tmp_path: Path, opened: Open) -> None:
    environment = opened(tmp_path)
    put(environment, b"k", b"v")
    environment.contents = "contents"
    with environment.lock:
        environment.resize(8 * MAP_BYTES)
    put(environment, b"large", b"v" * 2 * MAP_BYTES)
    assert get(environment, b"k") == b"v"
    with environment.lock:
        environment.resize(MAP_BYTES)
    assert get(environment, b"large") == b"v" * 2 * MAP_BYTES
    with environment.lock, pytest.raises(lmdb.MapFullError):
        put(environment, b"larger", b"v" * 3 * MAP_BYTES)
    assert known(environment) == ("contents", 0)
    assert environment.claimed


@pytest.mark.parametrize("suspended", [True, False])
def test_a_file_gives_unused_pages_back(tmp_path: Path, opened: Open, suspended: bool) -> None:
    environment = opened(tmp_path)
    for number in range(100):
        put(environment, b"%d" % number, b"v" * 4000)
    with environment.lock, environment.handle.begin(write=True) as writer:
        for number in range(90):
            writer.delete(b"%d" % number)
    environment.contents = "contents"
    before_bytes = environment.file_bytes
    if suspended:
        suspend(environment)
    with environment.lock:
        environment.compact()
    assert environment.file_bytes < before_bytes / 4
    assert [get(environment, b"%d" % number) for number in (89, 90)] == [None, b"v" * 4000]
    assert known(environment) == ("contents", 0)
    put(environment, b"k", b"v")
    suspend(environment)
    assert get(environment, b"k") == b"v"
    assert known(environment) == ("contents", 0)


def test_without_room_for_a_copy_the_file_stays_as_it_is(tmp_path: Path) -> None:
    def task() -> None:
        environment, _ = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
        put(environment, b"k", b"v" * 200_000)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        with environment.lock, pytest.raises(StoreFull, match="took no more"):
            environment.compact()
        assert get(environment, b"k") == b"v" * 200_000
        assert not (tmp_path / "data.mdb.new").exists()
        environments.release(environment)

    in_another_process(task)


def test_handles_on_a_folder_share_an_environment(tmp_path: Path) -> None:
    first, _ = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    second, _ = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    assert first is second
    environments.retain(first)
    put(first, b"k", b"v")
    environments.release(first)
    environments.release(first)
    assert get(first, b"k") == b"v"
    environments.release(first)
    assert descriptors(tmp_path) == 0
    again, _ = environments.acquire(tmp_path, 2 * MAP_BYTES, PAGE_BYTES)
    assert again is not first
    environments.release(again)


def test_reading_makes_nothing_and_changes_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotAllowed, match="no cache in"):
            environments.acquire(folder, MAP_BYTES, PAGE_BYTES, read_only=True)
    assert list(tmp_path.iterdir()) == []
    writing, _ = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    put(writing, b"k", b"v")
    with pytest.raises(NotAllowed, match="open for writing"):
        environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES, read_only=True)
    environments.release(writing)
    before = (tmp_path / "data.mdb").read_bytes()
    reading, reason = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES, read_only=True)
    assert reason == ""
    with pytest.raises(NotAllowed, match="open read-only"):
        environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    assert get(reading, b"k") == b"v"
    for change in (reading.claim, reading.recreate):
        with pytest.raises(NotAllowed, match="read-only"):
            change()
    with pytest.raises(lmdb.ReadonlyError):
        reading.handle.begin(write=True)
    environments.release(reading)
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_damaged_file_that_is_only_read_is_left_alone(tmp_path: Path) -> None:
    writing, _ = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
    put(writing, b"k", b"v")
    environments.release(writing)
    data = tmp_path / "data.mdb"
    os.truncate(data, 5000)
    before = data.read_bytes()
    with pytest.raises(CorruptCache):
        environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES, read_only=True)
    assert data.read_bytes() == before


def test_a_reader_sees_what_another_process_writes(tmp_path: Path, neighbour: Neighbour) -> None:
    neighbour(write, tmp_path, b"k", b"first")
    reading, _ = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES, read_only=True)
    reading.contents = "contents"
    with reading.lock:
        reading.refresh()
    assert known(reading) == ("contents", 0)
    neighbour(write, tmp_path, b"k", b"second")
    with reading.lock:
        reading.refresh()
    assert known(reading) == (None, 1)
    assert get(reading, b"k") == b"second"
    environments.release(reading)


def _write_on(folder: Path, asked: Connection) -> None:
    environment, _ = environments.acquire(folder, 64 * MAP_BYTES, PAGE_BYTES)
    number = 0
    while True:
        number += 1
        put(environment, b"%d" % (number % 500), b"%d" % number * 400)
        if number == 1000:
            asked.send("full")


def test_a_file_that_is_being_written_can_be_opened_to_read(tmp_path: Path) -> None:
    here, there = FORK.Pipe()
    writer = FORK.Process(target=_write_on, args=(tmp_path, there))
    writer.start()
    here.recv()
    try:
        for _ in range(50):
            reading, _ = environments.acquire(tmp_path, 64 * MAP_BYTES, PAGE_BYTES, read_only=True)
            assert len(get(reading, b"7") or b"") >= 400
            environments.release(reading)
    finally:
        writer.kill()
        writer.join()


def _write_among_others(folder: Path, number: int, start: Barrier) -> None:
    start.wait()
    environment, reason = environments.acquire(folder, MAP_BYTES, PAGE_BYTES)
    assert reason == ""
    while True:
        try:
            put(environment, b"%d" % number, b"v")
        except NotAllowed:
            continue
        break
    environments.release(environment)


def test_a_process_waits_while_another_one_opens_the_folder(tmp_path: Path) -> None:
    other = FORK.Process(target=write, args=(tmp_path, b"k", b"v"))
    with lmdb_handle.alone_in(tmp_path):
        other.start()
        waits = re.compile(rf"-> FLOCK +ADVISORY +WRITE +{other.pid} ")
        while not waits.search(Path("/proc/locks").read_text()):
            assert other.is_alive()
        assert list(tmp_path.iterdir()) == []
    other.join()
    assert other.exitcode == 0
    assert (tmp_path / "data.mdb").exists()


@pytest.mark.parametrize("turn", range(5))
def test_processes_that_start_together_make_one_file(
    tmp_path: Path, opened: Open, turn: int
) -> None:
    count = 4
    start = FORK.Barrier(count)
    others = [
        FORK.Process(target=_write_among_others, args=(tmp_path / str(turn), number, start))
        for number in range(count)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join()
        assert other.exitcode == 0
    environment = opened(tmp_path / str(turn))
    assert [get(environment, b"%d" % number) for number in range(count)] == [b"v"] * count


READ_ONLY_MOUNT = """
import sys
from pathlib import Path
from storage import environment as environments
from storage.errors import NotAllowed

folder = Path(sys.argv[1])
try:
    environments.acquire(folder, 1 << 20, 4096)
except NotAllowed as error:
    assert "Read-only file system; open it with read_only=True" in str(error), error
else:
    raise AssertionError("opened for writing")
environment, _ = environments.acquire(folder, 1 << 20, 4096, read_only=True)
for _ in range(2):
    with environment.lock:
        with environment.reader() as reader:
            assert bytes(reader.get(b"k")) == b"v"
        environment.suspend()
environments.release(environment)
try:
    environments.acquire(folder / "new", 1 << 20, 4096)
except NotAllowed as error:
    assert "cannot make the cache folder" in str(error), error
else:
    raise AssertionError("made a folder")
"""


def test_a_cache_on_a_read_only_file_system_can_be_read(tmp_path: Path) -> None:
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare(1) to mount a file system with")
    shell = ["unshare", "-Urm", "sh", "-c"]
    if subprocess.run([*shell, mount, "sh", tmp_path], check=False).returncode:  # noqa: S603 - ours
        pytest.skip("mounting is not allowed here")
    write(tmp_path, b"k", b"v")
    run = subprocess.run(  # noqa: S603 - ours
        [
            *shell,
            f'{mount} && exec "$2" -c "$3" "$1"',
            "sh",
            tmp_path,
            sys.executable,
            READ_ONLY_MOUNT,
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


@pytest.fixture
def guarded() -> Iterator[Path]:
    """A cache in a folder that only its owner may write, and everyone may reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    write(folder, b"k", b"v")
    folder.chmod(0o555)
    for file in folder.iterdir():
        file.chmod(0o444)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def _as_nobody() -> None:
    """The superuser may write everywhere."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def test_without_the_right_to_write_a_cache_can_be_read(guarded: Path) -> None:
    def task() -> None:
        _as_nobody()
        with pytest.raises(NotAllowed, match="Permission denied; open it with read_only=True"):
            environments.acquire(guarded, MAP_BYTES, PAGE_BYTES)
        with pytest.raises(NotAllowed, match="cannot make the cache folder"):
            environments.acquire(guarded / "new", MAP_BYTES, PAGE_BYTES)
        environment, _ = environments.acquire(guarded, MAP_BYTES, PAGE_BYTES, read_only=True)
        assert get(environment, b"k") == b"v"
        suspend(environment)
        assert get(environment, b"k") == b"v"
        environments.release(environment)

    in_another_process(task)


def test_a_reader_that_lmdb_cannot_see_keeps_writers_away(guarded: Path) -> None:
    if os.getuid():
        pytest.skip("only the superuser can be both the owner and somebody else")

    def task(asked: Connection) -> None:
        _as_nobody()
        environment, _ = environments.acquire(guarded, MAP_BYTES, PAGE_BYTES, read_only=True)
        asked.send(os.getpid())
        asked.recv()
        suspend(environment)
        asked.send("suspended")
        asked.recv()
        with pytest.raises(NotAllowed, match="is being written by process"):
            get(environment, b"k")
        asked.send("refused")
        asked.recv()
        with pytest.raises(CorruptCache):
            get(environment, b"k")
        asked.send("damaged")
        asked.recv()

    here, there = FORK.Pipe()
    reader = FORK.Process(target=task, args=(there,))
    reader.start()
    process = here.recv()
    environment, _ = environments.acquire(guarded, MAP_BYTES, PAGE_BYTES)
    with environment.lock, pytest.raises(NotAllowed, match=f"read by process {process}"):
        environment.claim()
    here.send("suspend")
    here.recv()
    put(environment, b"k", b"mine" * 1000)
    here.send("read")
    assert here.recv() == "refused"
    environments.release(environment)
    os.truncate(guarded / "data.mdb", 9000)
    here.send("read again")
    assert here.recv() == "damaged"
    # Its claim to what it cannot read is no more.
    claim = Claim(guarded)
    claim.take()
    claim.give_up()
    here.send("end")
    reader.join()
    assert reader.exitcode == 0


def test_slots_of_dead_readers_are_freed_when_they_run_out(tmp_path: Path, opened: Open) -> None:
    write(tmp_path, b"k", b"v")

    def task(asked: Connection) -> None:
        environment, _ = environments.acquire(tmp_path, MAP_BYTES, PAGE_BYTES)
        asked.send("forked")
        asked.recv()
        readers = []
        try:
            while True:
                readers.append(environment.handle.begin())
        except lmdb.ReadersFullError:
            asked.send(len(readers))
        asked.recv()

    here, there = FORK.Pipe()
    other = FORK.Process(target=task, args=(there,))
    other.start()
    here.recv()
    environment = opened(tmp_path)
    handle = environment.handle
    here.send("fill")
    assert here.recv() > 100
    with environment.lock, pytest.raises(lmdb.ReadersFullError):
        environment.reader()
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    assert get(environment, b"k") == b"v"
    assert environment.handle is handle


def test_a_forked_child_opens_anew_and_its_parent_goes_on(tmp_path: Path, opened: Open) -> None:
    made = [opened(tmp_path / str(number)) for number in range(3)]
    for environment in made:
        put(environment, b"k", b"v")
        with environment.lock:
            environment.release_claim()
        environment.contents = environment.owner = "known"

    def task() -> None:
        assert not any(map(is_open, made))
        for environment in made:
            assert (environment.contents, environment.owner) == (None, None)
            assert get(environment, b"k") == b"v"
            put(environment, b"k", b"child")
            environments.release(environment)
        again, _ = environments.acquire(tmp_path / "0", MAP_BYTES, PAGE_BYTES)
        assert get(again, b"k") == b"child"
        environments.release(again)
        assert descriptors(tmp_path) == 0

    in_another_process(task)
    for environment in made:
        assert get(environment, b"k") == b"child"
        assert (environment.contents, environment.owner) == (None, "known")
        assert environment.changed_outside == 1
        put(environment, b"k", b"parent")
        assert get(environment, b"k") == b"parent"


def test_a_fork_without_changes_leaves_all_as_it_is(tmp_path: Path, opened: Open) -> None:
    environment = opened(tmp_path)
    put(environment, b"k", b"v")
    environment.contents = "known"
    in_another_process(lambda: None)
    assert get(environment, b"k") == b"v"
    assert (environment.contents, environment.claimed) == ("known", True)
    assert environment.changed_outside == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_wait_for_transactions_of_other_threads(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.forks.WAIT_S", 60.0)
    # Large enough for what is written while a child is reading.
    environment = opened(tmp_path, 64 * MAP_BYTES)
    put(environment, b"a", b"0")
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                with environment.lock, environment.handle.begin(write=True) as writer:
                    writer.put(b"a", b"%d" % number)
                    writer.put(b"b", b"v" * 3000)
                    writer.put(b"c", b"%d" % number)
                for _ in range(50):
                    assert get(environment, b"a") == b"%d" % number
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    def task() -> None:
        signal.alarm(60)
        with environment.lock, environment.reader() as reader:
            assert reader.get(b"a") in {reader.get(b"c"), b"0"}

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            in_another_process(task)
    finally:
        stop.set()
        thread.join()
    assert failures == []
    assert environment.changed_outside == 0


def test_a_thread_that_forks_while_it_uses_an_environment_keeps_it(
    tmp_path: Path, opened: Open
) -> None:
    environment, other = opened(tmp_path / "a"), opened(tmp_path / "b")
    put(environment, b"k", b"v")
    child = 0
    with environment.lock:
        handle = environment.handle
        with environment.reader() as reader, other.lock:
            child = os.fork()
            if child:
                assert reader.get(b"k") == b"v"
        assert not child or environment.handle is handle
    if not child:
        try:
            get(environment, b"k")
        except NotAllowed:
            os._exit(0 if environment.lock.acquire(blocking=False) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    put(environment, b"k", b"again")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_was_in_use_during_a_fork_is_refused_in_the_child(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.forks.WAIT_S", 0.0)
    environment, other = opened(tmp_path / "a"), opened(tmp_path / "b")
    lock = environment.lock
    put(environment, b"k", b"v")
    put(other, b"k", b"v")
    busy, done = threading.Event(), threading.Event()

    def use() -> None:
        with environment.lock, environment.handle.begin(write=True) as writer:
            writer.put(b"k", b"changed")
            busy.set()
            done.wait()

    def task() -> None:
        signal.alarm(60)
        with pytest.raises(NotAllowed, match="in use while this process was forked"), lock:
            get(environment, b"k")
        assert get(other, b"k") == b"v"
        environments.release(environment)

    thread = threading.Thread(target=use)
    thread.start()
    busy.wait()
    in_another_process(task)
    done.set()
    thread.join()
    assert get(environment, b"k") == b"changed"
