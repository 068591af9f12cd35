"""The LMDB file: sharing, full maps and disks, foreign files, forks."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from storage import POLICIES, Layout, LmdbStore, NotAllowed, SampleCache, StoreFull, open_cache
from storage.checksum import digest
from storage.filesystem import file_system, prepare_folder

Watch = Callable[..., Any]


def payload(sample: int, size: int) -> bytes:
    return np.random.default_rng((sample, size, 0)).bytes(size)


SMALL = Layout(4096, 1 << 20)


def put(store: LmdbStore, sample: int, content: bytes) -> None:
    with store.lock:
        store.remove([sample])
        store.put([sample], np.frombuffer(content, np.uint8), [0], [len(content)])


def holds(store: LmdbStore, sample: int, content: bytes) -> bool:
    """Whether the store gives back exactly this, in both ways."""
    buffer = np.zeros(len(content), np.uint8)
    checksum = digest(content, store.seed + sample)
    with store.lock:
        found = store.get(
            np.array([sample]), np.array([len(content)]), np.array([checksum], np.uint64), buffer
        )
        one = store.get_one(sample, len(content), checksum)
    assert one is None or one == content
    assert (one is not None) == found[0]
    return bool(found[0]) and buffer.tobytes() == content


@pytest.mark.parametrize("spelling", ["same", "relative", "symlink"])
def test_one_folder_opened_twice_is_one_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    other = {"same": folder, "relative": Path("cache"), "symlink": tmp_path / "link"}[spelling]
    first = open_cache(folder, 1 << 20, POLICIES["lru"](10))
    second = open_cache(other, 1 << 20, POLICIES["lru"](10))
    buffer = np.arange(100, dtype=np.uint8)
    first.offer(np.array([3]), buffer, np.array([0]), np.array([100]))
    assert second.read(np.array([3]), np.zeros(100, np.uint8)).served.tolist() == [True]
    first.close()
    first.close()
    assert second.read(np.array([3]), np.zeros(100, np.uint8)).served.tolist() == [True]
    third = open_cache(folder, 1 << 20, POLICIES["lru"](10))
    assert third.residents.tolist() == [3]
    second.close()
    third.save(1)
    third.close()
    fourth = open_cache(folder, 1 << 20, POLICIES["lru"](10))
    assert fourth.residents.tolist() == [3]
    fourth.close()


def test_an_open_folder_is_not_opened_otherwise(tmp_path: Path) -> None:
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](10)):
        for budget, policy, samples, identity in (
            (1 << 21, "lru", 10, ""),
            (1000, "lru", 10, ""),
            (1 << 20, "static", 10, ""),
            (1 << 20, "lru", 11, ""),
            (1 << 20, "lru", 10, "other"),
        ):
            with pytest.raises(NotAllowed, match="is open"):
                open_cache(tmp_path, budget, POLICIES[policy](samples), identity=identity)
    with open_cache(tmp_path, 1 << 21, POLICIES["static"](11)) as cache:
        assert len(cache) == 0


def test_two_handles_on_a_store_see_each_other(tmp_path: Path) -> None:
    first, second = LmdbStore(tmp_path, SMALL), LmdbStore(tmp_path, SMALL)
    put(first, 7, b"seven")
    assert holds(second, 7, b"seven")
    second.close()
    second.close()
    assert holds(first, 7, b"seven")
    with pytest.raises(NotAllowed):
        holds(second, 7, b"seven")
    first.close()


def test_a_full_map_evicts_and_goes_on(tmp_path: Path) -> None:
    # The budget allows far more than the file can take: declared sizes are 1, payloads 20,000.
    cache = SampleCache(LmdbStore(tmp_path, SMALL), 1 << 30, POLICIES["lru"](500))
    rng = np.random.default_rng(0)
    buffer = rng.integers(0, 256, 20_000, dtype=np.uint8)
    for sample in range(300):
        taken = cache.offer(
            np.array([sample]), buffer, np.array([0]), np.array([20_000]), np.array([1])
        )
        assert taken.tolist() == [True]
        assert sample in cache
    assert cache.stats.evicted_for_room > 200
    assert cache.residents.tolist() == cache.store.present().tolist()
    assert (tmp_path / "data.mdb").stat().st_size <= 1 << 20
    cache.close()


def test_a_payload_that_no_map_can_hold_is_a_typed_error(tmp_path: Path) -> None:
    cache = SampleCache(LmdbStore(tmp_path, SMALL), 1 << 30, POLICIES["lru"](50))
    small, large = np.ones(785, np.uint8), np.ones(3 << 20, np.uint8)
    zero = np.array([0])
    for sample in range(20):
        cache.offer(np.array([sample]), small, zero, np.array([785]))
    cache.pin(np.arange(5))
    with pytest.raises(StoreFull, match="full"):
        cache.offer(np.array([30]), large, zero, np.array([3 << 20]))
    assert cache.residents.tolist() == cache.store.present().tolist()
    assert cache.read(np.arange(5), np.zeros(5 * 785, np.uint8)).served.all()
    cache.delete(np.arange(5))
    assert cache.offer(np.array([1]), small, zero, np.array([785])).tolist() == [True]
    cache.close()


def test_removing_works_when_the_file_is_full(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, SMALL)
    content = bytes(3000)
    stored = 0

    def fill() -> None:
        nonlocal stored
        while True:
            put(store, stored, content)
            stored += 1

    with pytest.raises(StoreFull):
        fill()
    assert stored > 200
    store.remove(list(range(stored)))
    assert len(store.present()) == 0
    put(store, 5, content)
    assert holds(store, 5, content)
    store.close()


def test_pages_that_find_no_room_are_tried_again_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path, SMALL)
    write, failures = store._file._write, [lmdb.MapFullError("forced")]

    def failing(group: Sequence[tuple[int, object]]) -> None:
        if failures:
            raise failures.pop()
        write(group)

    monkeypatch.setattr(store._file, "_write", failing)
    put(store, 1, bytes(3000))
    store._file.flush()
    assert not failures
    assert holds(store, 1, bytes(3000))
    put(store, 2, bytes(3000))
    failures += [lmdb.MapFullError("forced")] * 2
    with pytest.raises(StoreFull, match="larger map"):
        store._file.flush()
    assert not failures
    assert all(holds(store, sample, bytes(3000)) for sample in (1, 2))
    store._file.flush()
    assert not store._contents.images
    assert all(holds(store, sample, bytes(3000)) for sample in (1, 2))
    store.close()


def _fill_a_small_disk(folder: Path, policy: str, typed_error: bool) -> None:
    """In its own process: files cannot grow past 1 MiB, though map and budget could."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    cache = open_cache(folder, 16 << 20, POLICIES[policy](200))
    buffer, zero = np.ones(20_000, np.uint8), np.array([0])

    def fill() -> None:
        for sample in range(200):
            cache.offer(np.array([sample]), buffer, zero, np.array([20_000]))

    if typed_error:
        with pytest.raises(StoreFull, match="disk"):
            fill()
    else:
        fill()
        assert cache.stats.evicted_for_room > 100
    kept = cache.residents
    assert len(kept) > 20
    assert kept.tolist() == cache.store.present().tolist()
    for sample in kept.tolist():
        assert cache.read(np.array([sample]), np.zeros(20_000, np.uint8)).served.all()
    cache.delete(kept[:3])
    cache.close()


@pytest.mark.parametrize(("policy", "typed_error"), [("lru", False), ("static", True)])
def test_on_a_full_disk_others_make_room_or_the_error_is_typed(
    tmp_path: Path, policy: str, typed_error: bool
) -> None:
    child = multiprocessing.get_context("spawn").Process(
        target=_fill_a_small_disk, args=(tmp_path, policy, typed_error)
    )
    child.start()
    child.join()
    assert child.exitcode == 0


def test_bytes_of_other_data_never_pass(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, SMALL, identity=b"client-1")
    put(store, 7, b"seven")
    store.close()
    other = LmdbStore(tmp_path, SMALL, identity=b"client-2")
    assert "other data" in other.rebuilt_reason
    assert len(other.present()) == 0
    other.close()


def test_a_moved_page_does_not_pass(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, SMALL)
    first, second = bytes(9000), bytes(range(250)) * 36
    put(store, 1, first)
    put(store, 2, second)
    store._file.flush()
    with store._environment.handle.begin(write=True) as writer:
        pages = {bytes(key): bytes(value) for key, value in writer.cursor() if len(key) == 4}
        mine = next(key for key, value in pages.items() if value == first[:4080])
        other = next(key for key, value in pages.items() if value == second[:4080])
        writer.put(mine, pages[other])
    assert not holds(store, 1, first)
    assert holds(store, 2, second)
    store.close()


LENGTHS = [0, 1, 784, 2040, 2041, 4079, 4080, 4081, 8160, 8161, 100_000]


@pytest.mark.parametrize("page_bytes", [4096, 16384])
@pytest.mark.parametrize("length", LENGTHS)
def test_payloads_of_any_length_come_back_in_another_handle(
    tmp_path: Path, length: int, page_bytes: int
) -> None:
    layout = Layout(page_bytes, 4 << 20)
    content = np.random.default_rng(length).bytes(length)
    store = LmdbStore(tmp_path, layout)
    put(store, 3, b"another")
    put(store, 4, content)
    put(store, 3, content[::-1])
    store.save(b"index")
    store.close()
    store = LmdbStore(tmp_path, layout)
    [saved] = store.saved()
    assert saved.index == b"index"
    assert store.adopt(saved)
    assert holds(store, 4, content)
    assert holds(store, 3, content[::-1])
    assert not holds(store, 3, content + b"x")
    assert store.present().tolist() == [3, 4]
    put(store, 5, content)
    assert all(holds(store, sample, content) for sample in (4, 5))
    store.close()


def test_what_was_read_stays_as_it_was_and_no_reader_stays_behind(
    tmp_path: Path, watch: Watch
) -> None:
    watched = watch(tmp_path, 1 << 20)
    watched.offer([1, 2], [3000, 50_000])
    buffer = np.empty(53_000, np.uint8)
    read, one = watched.cache.read(np.array([1, 2]), buffer), watched.cache.get(2)
    for version in range(1, 9):
        watched.offer([1, 2], [3000, 50_000], version)
        assert "no active readers" in watched.cache.store._environment.handle.readers()
    assert read.lengths.tolist() == [3000, 50_000]
    assert buffer.tobytes() == payload(1, 3000) + payload(2, 50_000)
    assert one == payload(2, 50_000)


def test_an_lmdb_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as foreign, foreign.begin(write=True) as writer:
        writer.put(b"theirs", b"precious")
    with pytest.raises(NotAllowed, match="another program"):
        open_cache(tmp_path, 1 << 30, POLICIES["lru"](10))
    with lmdb.open(str(tmp_path)) as foreign, foreign.begin() as reader:
        assert reader.get(b"theirs") == b"precious"


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(NotAllowed, match="is a file"):
        open_cache(file, 1 << 20, POLICIES["lru"](10))
    with pytest.raises(NotAllowed, match="cannot make"):
        open_cache(file / "below", 1 << 20, POLICIES["lru"](10))


@pytest.mark.parametrize("name", ["data.mdb", "index", "writer", "lock.mdb"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / name
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file)
    with pytest.raises(NotAllowed, match="no plain file"):
        open_cache(tmp_path, 1 << 20, POLICIES["lru"](10))


MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:40 / /data rw,relatime shared:1 - nfs4 server:/data rw
31 30 8:2 / /data/local rw - xfs /dev/sdb1 rw
32 21 0:41 / /with\\040space rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/data/cache", "nfs4"),
        ("/data", "nfs4"),
        ("/database", "ext4"),
        ("/data/local/cache", "xfs"),
        ("/with space/cache", "cifs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_deepest_mount(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("21 1 8:1 / / rw - nfs4 server:/ rw\n")
    monkeypatch.setattr("storage.filesystem._MOUNTS", mounts)
    with pytest.raises(NotAllowed, match="nfs4: put the cache on a local disk"):
        prepare_folder(tmp_path / "cache")


def _in_a_fork(check: Callable[[], None]) -> int:
    process = multiprocessing.get_context("fork").Process(target=check)
    process.start()
    process.join()
    return process.exitcode


def test_a_forked_child_reads_and_does_not_write(tmp_path: Path, watch: Watch) -> None:
    watched = watch(tmp_path, 1 << 20)
    watched.offer([1, 2], [100, 5000])

    def child() -> None:
        assert watched.hits([1, 2, 3]) == [True, True, False]
        with pytest.raises(NotAllowed, match="forked"):
            watched.offer([3], [100])
        with open_cache(tmp_path, 1 << 20, POLICIES["lru"](64)) as again:
            assert again.budget_bytes == 1 << 20
        watched.cache.close()

    assert _in_a_fork(child) == 0
    assert watched.hits([1, 2]) == [True, True]
    assert watched.offer([3], [100]) == [True]
    watched.check()


def test_open_files_are_closed_with_the_last_handle(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for turn in range(5):
        caches = [open_cache(tmp_path / str(turn), 1 << 20, POLICIES["lru"](9)) for _ in range(3)]
        for cache in caches:
            cache.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
