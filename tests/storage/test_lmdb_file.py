"""Data files of LMDB: those that we make work, and those that are sound are found so."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
import pytest

from storage import lmdb_file
from storage.errors import CorruptCache, StoreFull
from storage.lmdb_file import Meta, check, check_values, create, last_transaction
from storage.lmdb_pages import Pages

MAP_BYTES = 64 << 20
PAGE_SIZES = [4096, 16384]


@contextmanager
def opened(folder: Path, page_bytes: int) -> Iterator[lmdb.Environment]:
    """LMDB on a folder, whose file is made when there is none."""
    data = folder / "data.mdb"
    if not data.exists():
        folder.mkdir(exist_ok=True)
        create(data, page_bytes, MAP_BYTES)
    with lmdb.open(str(folder), map_size=MAP_BYTES, sync=False, meminit=False) as environment:
        assert environment.stat()["psize"] == page_bytes
        yield environment


def verify(folder: Path, page_bytes: int) -> np.ndarray:
    data = folder / "data.mdb"
    runs = check(data, page_bytes, MAP_BYTES)
    check_values(data, page_bytes, runs)
    return runs


def put(environment: lmdb.Environment, pairs: dict[bytes, bytes]) -> None:
    with environment.begin(write=True) as writer:
        for key, value in pairs.items():
            writer.put(key, value)


def free_tree(folder: Path, page_bytes: int) -> tuple[int, int]:
    """Depth and overflow pages of the tree of free pages."""
    content = (folder / "data.mdb").read_bytes()
    meta = max(0, page_bytes, key=lambda at: struct.unpack_from("<Q", content, at + 144))
    return struct.unpack_from("<H16xQ", content, meta + 46)


Fill = Callable[[lmdb.Environment, int], None]


def fill_nothing(environment: lmdb.Environment, page_bytes: int) -> None:
    """An empty file."""


def fill_a_few(environment: lmdb.Environment, page_bytes: int) -> None:
    for number in range(5):
        put(environment, {b"%d" % number: bytes(page_bytes - 16), b"small": b"x" * number})


def fill_thousands(environment: lmdb.Environment, page_bytes: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        put(environment, {rng.bytes(9): rng.bytes(page_bytes - 16) for _ in range(200)})
        put(environment, {b"inline" + rng.bytes(9): b"x" * 20 for _ in range(500)})


def fill_and_churn(environment: lmdb.Environment, page_bytes: int) -> None:
    rng = np.random.default_rng(2)
    keys = [rng.bytes(rng.choice([1, 7, 8, 9, 40])) for _ in range(600)]
    sizes = np.array([0, 7, 500, page_bytes - 16, 3 * page_bytes])
    for _ in range(120):
        with environment.begin(write=True) as writer:
            for key in rng.permutation(len(keys))[: rng.integers(1, 40)].tolist():
                if rng.random() < 0.5:
                    writer.delete(keys[key])
                else:
                    writer.put(keys[key], rng.bytes(rng.choice(sizes)))


def fill_deep(environment: lmdb.Environment, page_bytes: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(6):
        begin = b"the same beginning" * rng.integers(0, 20)
        put(environment, {begin + rng.bytes(150): bytes(40) for _ in range(page_bytes // 16)})
    assert environment.stat()["depth"] >= 3


def fill_while_read(environment: lmdb.Environment, page_bytes: int) -> None:
    put(environment, {b"%04d" % number: bytes(100) for number in range(400)})
    with environment.begin():
        for number in range(page_bytes // 20):
            put(environment, {b"%04d" % (number % 400): bytes(100)})
    assert free_tree(Path(environment.path()), page_bytes)[0] > 1


def fill_and_free_many_pages(environment: lmdb.Environment, page_bytes: int) -> None:
    count = page_bytes // 5
    put(environment, {b"%05d" % number: bytes(page_bytes // 2) for number in range(count)})
    with environment.begin(write=True) as writer:
        for number in range(count - 20):
            writer.delete(b"%05d" % number)
    assert free_tree(Path(environment.path()), page_bytes)[1] > 1


def fill_and_leave_the_last_pages_unwritten(environment: lmdb.Environment, page_bytes: int) -> None:
    for _ in range(4):
        put(environment, {b"kept": b"x"})
    with environment.begin(write=True) as writer:
        for number in range(400):
            writer.put(b"%04d" % number, bytes(page_bytes // 5))
        for number in reversed(range(400)):
            writer.delete(b"%04d" % number)
    size = Path(environment.path(), "data.mdb").stat().st_size
    assert size < (environment.info()["last_pgno"] + 1) * page_bytes


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
@pytest.mark.parametrize(
    "fill",
    [
        fill_nothing,
        fill_a_few,
        fill_thousands,
        fill_and_churn,
        fill_deep,
        fill_while_read,
        fill_and_free_many_pages,
        fill_and_leave_the_last_pages_unwritten,
    ],
)
def test_files_of_lmdb_are_sound_and_their_values_are_found(
    tmp_path: Path, fill: Fill, page_bytes: int
) -> None:
    with opened(tmp_path, page_bytes) as environment:
        fill(environment, page_bytes)
        with environment.begin() as reader:
            values = [value for _, value in reader.cursor() if len(value) >= page_bytes // 2]
    runs = verify(tmp_path, page_bytes)
    content = (tmp_path / "data.mdb").read_bytes()
    begins = (runs[:, 0] * page_bytes + 16).tolist()
    assert values == [
        content[begin : begin + len(value)] for begin, value in zip(begins, values, strict=True)
    ]
    assert runs[:, 1].tolist() == [(len(value) + 15) // page_bytes + 1 for value in values]


def test_values_that_shrink_in_one_transaction_keep_their_pages(tmp_path: Path) -> None:
    with opened(tmp_path, 4096) as environment, environment.begin(write=True) as writer:
        for number in range(8):
            writer.put(b"%d" % number, bytes(20_000))
            writer.put(b"%d" % number, bytes(number * 2000))
    assert verify(tmp_path, 4096)[:, 1].tolist() == [5] * 8


@pytest.mark.parametrize("compact", [True, False])
def test_a_copy_that_lmdb_makes_is_sound(tmp_path: Path, compact: bool) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with opened(tmp_path / "file", 16384) as environment:
        fill_and_churn(environment, 16384)
        environment.copy(str(copy), compact=compact)
    assert len(verify(copy, 16384)) > 100


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
def test_a_file_made_by_us_lives_through_growth_churn_and_reopening(
    tmp_path: Path, page_bytes: int
) -> None:
    rng = np.random.default_rng(0)
    pairs: dict[bytes, bytes] = {}
    for _ in range(6):
        with opened(tmp_path, page_bytes) as environment:
            for _ in range(10):
                with environment.begin(write=True) as writer:
                    for key in list(pairs):
                        if rng.random() < 0.3:
                            assert writer.pop(key) == pairs.pop(key)
                fresh = {rng.bytes(6): rng.bytes(page_bytes - 16) for _ in range(20)}
                put(environment, fresh)
                pairs |= fresh
            with environment.begin() as reader:
                assert dict(reader.cursor()) == pairs
        assert len(verify(tmp_path, page_bytes)) == len(pairs)
    assert {path.name for path in tmp_path.iterdir()} == {"data.mdb", "lock.mdb"}


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_full_disk_leaves_no_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(path: Path, _: object) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(StoreFull, match="No space left"):
        create(tmp_path / "data.mdb", 4096, MAP_BYTES)
    assert not list(tmp_path.iterdir())


def test_there_is_nothing_to_check_where_there_is_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    assert check(data, 4096, MAP_BYTES).shape == (0, 2)
    data.touch()
    assert check(data, 4096, MAP_BYTES).shape == (0, 2)
    assert not data.stat().st_size


def test_the_last_transaction_marks_the_state_of_a_file(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    with opened(tmp_path, 4096) as environment:
        for number in range(4):
            assert last_transaction(data, 4096) == number
            put(environment, {b"key": b"%d" % number})
    with pytest.raises(CorruptCache, match="has pages of 4096 bytes"):
        last_transaction(data, 16384)


def test_transactions_that_end_during_a_check_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_trees = lmdb_file._check_trees
    calls: list[Meta] = []
    with opened(tmp_path, 4096) as environment:
        fill_thousands(environment, 4096)

        def check_late(pages: Pages, meta: Meta, map_bytes: int) -> np.ndarray:
            calls.append(meta)
            if len(calls) == 1:
                # Pages that were in use are written over.
                fill_and_churn(environment, 4096)
            return check_trees(pages, meta, map_bytes)

        monkeypatch.setattr(lmdb_file, "_check_trees", check_late)
        verify(tmp_path, 4096)
    assert len(calls) == 2


def test_a_file_for_another_budget_or_page_size_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, 4096) as environment:
        fill_a_few(environment, 4096)
    data = tmp_path / "data.mdb"
    size = data.stat().st_size
    assert len(check(data, 4096, size)) == 5
    with pytest.raises(CorruptCache, match="larger than its budget"):
        check(data, 4096, size - 1)
    with pytest.raises(CorruptCache, match="has pages of 4096 bytes"):
        check(data, 16384, MAP_BYTES)


def test_a_file_with_databases_in_it_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "data.mdb", 4096, MAP_BYTES)
    with lmdb.open(str(tmp_path), map_size=MAP_BYTES, max_dbs=1) as environment:
        environment.open_db(b"a")
    with pytest.raises(CorruptCache, match="a value is of an unknown kind"):
        verify(tmp_path, 4096)
