from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from storage import FileOrigin, OriginError, direct_io, read_direct
from storage.direct import _Scratch
from storage.filesystem import file_system
from tests.storage.page_residency import resident_pages

LENGTHS = [0, 1, 4095, 4096, 4097, (1 << 20) + 3]
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - on Linux a tmpfs


def written(path: Path, length: int) -> bytes:
    """A file of random bytes, on the disk and not in the page cache."""
    content = np.random.default_rng(length).bytes(length)
    path.write_bytes(content)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    return content


def cached_pages(path: Path) -> int:
    file = os.open(path, os.O_RDONLY)
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as pages:
        os.close(file)
        memory = np.frombuffer(pages, np.uint8)
        count = int(resident_pages(memory).sum())
        del memory
    return count


def read(path: Path, length: int) -> bytes:
    buffer = np.full(length + 2, 7, np.uint8)
    read_direct(path, buffer.data[1:-1])
    assert buffer[0] == buffer[-1] == 7
    return buffer[1:-1].tobytes()


def refuse_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that knows no O_DIRECT."""
    real_open = os.open

    def opened(path: Path, flags: int) -> int:
        file = real_open(path, flags & ~os.O_DIRECT)
        if flags & os.O_DIRECT:
            os.close(file)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return file

    monkeypatch.setattr("storage.direct.os.open", opened)


def refuse_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that takes O_DIRECT and cannot do it."""
    real_preadv = os.preadv

    def read_into(file: int, views: list[memoryview], at: int) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_preadv(file, views, at)

    monkeypatch.setattr("storage.direct.os.preadv", read_into)


DISKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "direct": lambda _: None,
    "refused at open": refuse_open,
    "refused at read": refuse_read,
}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a disk, or on one whose file system refuses direct reads."""
    DISKS[request.param](monkeypatch)
    return tmp_path


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory."""
    if not os.access(IN_MEMORY, os.W_OK):
        pytest.skip("no file system in memory here")
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(params=[*DISKS, "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "memory":
        path: Path = request.getfixturevalue("memory")
        return path
    DISKS[request.param](monkeypatch)
    return tmp_path


@pytest.mark.parametrize("length", LENGTHS)
def test_a_file_of_any_length_is_read(folder: Path, length: int) -> None:
    content = written(folder / "a.bin", length)
    assert read(folder / "a.bin", length) == content


def test_files_of_many_lengths_follow_one_another(folder: Path) -> None:
    rng = np.random.default_rng(0)
    payloads = [written(folder / f"{length}.bin", length) for length in LENGTHS]
    origin = FileOrigin([folder / f"{length}.bin" for length in LENGTHS], direct=True)
    samples = rng.integers(0, len(LENGTHS), 30)
    buffer = np.full(int(origin.size_bytes[samples].sum()) + 5, 7, np.uint8)
    origin.read(samples, buffer, 5)
    assert buffer.tobytes() == b"\7" * 5 + b"".join(payloads[s] for s in samples)


@pytest.mark.parametrize("length", [4095, 4096, 4097])
@pytest.mark.parametrize("change", [-1, 1, 4096])
def test_another_length_than_expected_is_an_error(folder: Path, length: int, change: int) -> None:
    path = folder / "a.bin"
    written(path, length)
    origin = FileOrigin([path], direct=True)
    written(path, max(0, length + change))
    with pytest.raises(OriginError, match=r"a\.bin has changed"):
        origin.read(np.array([0]), np.zeros(9000, np.uint8), 0)


def test_a_file_that_is_cut_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    written(path, 9000)
    real_preadv = os.preadv

    def cut_and_read(file: int, views: list[memoryview], at: int) -> int:
        os.truncate(path, 5000)
        return real_preadv(file, views, at)

    monkeypatch.setattr("storage.direct.os.preadv", cut_and_read)
    with pytest.raises(OriginError, match=r"a\.bin has changed"):
        read(path, 9000)


@pytest.mark.parametrize("step_bytes", [512, 4096, 5000])
def test_reads_that_stop_early_go_on(
    folder: Path, step_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = written(folder / "a.bin", 20_001)
    real_preadv = os.preadv
    monkeypatch.setattr(
        "storage.direct.os.preadv",
        lambda file, views, at: real_preadv(file, [views[0][:step_bytes]], at),
    )
    assert read(folder / "a.bin", 20_001) == content


def test_one_that_fails_leaves_the_others_readable(folder: Path) -> None:
    payloads = [written(folder / f"{i}.bin", 5000 + i) for i in range(3)]
    origin = FileOrigin([folder / f"{i}.bin" for i in range(3)], direct=True)
    (folder / "1.bin").unlink()
    buffer = np.zeros(20_000, np.uint8)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(OriginError, match=r"cannot read .*1\.bin"):
            origin.read(np.arange(3), buffer, 0)
    starts = origin.read(np.array([2, 0]), buffer, 0)
    assert starts.tolist() == [0, 5002]
    assert buffer[:10_002].tobytes() == payloads[2] + payloads[0]
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def test_nothing_stays_in_the_page_cache(disk: Path) -> None:
    path = disk / "a.bin"
    content = written(path, 100_001)
    if cached_pages(path):
        pytest.skip("this file system is the page cache")
    buffer = np.zeros(len(content), np.uint8)
    for _ in range(2):
        assert read(path, len(content)) == content
        assert cached_pages(path) == 0
    FileOrigin([path], direct=True).read(np.array([0]), buffer, 0)
    assert cached_pages(path) == 0
    FileOrigin([path]).read(np.array([0]), buffer, 0)
    assert cached_pages(path) > 0


def test_without_direct_reads_what_is_cached_is_dropped_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "a.bin", []
    content = written(path, 100_001)
    if cached_pages(path):
        pytest.skip("this file system is the page cache")
    path.read_bytes()
    real_preadv = os.preadv

    def look_and_read(file: int, views: list[memoryview], at: int) -> int:
        seen.append(cached_pages(path))
        return real_preadv(file, views, at)

    refuse_open(monkeypatch)
    monkeypatch.setattr("storage.direct.os.preadv", look_and_read)
    assert read(path, len(content)) == content
    assert seen == [0]


def test_the_scratch_is_kept_and_grows_by_doubling() -> None:
    scratch = _Scratch()
    first = scratch.pages(5000)
    assert len(first) == 8192
    again = scratch.pages(100)
    assert len(again) == 4096
    again[0] = 77
    assert first[0] == 77
    larger = scratch.pages(8193)
    assert len(larger) == 12_288
    larger[0] = 78
    assert scratch.pages(16_384)[0] == 78


def test_threads_have_a_scratch_of_their_own(folder: Path) -> None:
    payloads = [written(folder / f"{i}.bin", 50_000 + i) for i in range(4)]

    def right(number: int) -> bool:
        path = folder / f"{number}.bin"
        return all(read(path, 50_000 + number) == payloads[number] for _ in range(30))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(right, range(4)))


def test_a_file_larger_than_the_scratch_comes_in_several_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.direct._LARGEST_READ_BYTES", 8192)
    real_preadv, lengths = os.preadv, []

    def note_and_read(file: int, views: list[memoryview], at: int) -> int:
        lengths.append(len(views[0]))
        return real_preadv(file, views, at)

    monkeypatch.setattr("storage.direct.os.preadv", note_and_read)
    content = written(tmp_path / "a.bin", 100_001)
    assert read(tmp_path / "a.bin", len(content)) == content
    assert max(lengths) == 8192


@pytest.mark.parametrize("length", [0, 5000])
def test_whether_a_file_is_read_directly(
    length: int, tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    for here in (path, memory / "a.bin"):
        written(here, length)
    assert not direct_io(memory / "a.bin")
    directly = direct_io(path)
    with pytest.raises(OriginError, match=r"cannot read .*none\.bin"):
        direct_io(tmp_path / "none.bin")
    for refuse in (refuse_read, refuse_open):
        refuse(monkeypatch)
        assert not direct_io(path)
    if file_system(path) == "ext4":
        assert directly
