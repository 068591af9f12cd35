"""The file of saved states: the newest whole one counts, whatever a crash left behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCache
from storage.index_file import LIMIT_BYTES, IndexFile

INDEXES = [b"", b"one", b"two" * 100, bytes(range(256))]


@pytest.fixture
def file(tmp_path: Path) -> IndexFile:
    return IndexFile(tmp_path / "index")


@pytest.mark.parametrize("durable", [True, False])
def test_the_newest_counts(file: IndexFile, durable: bool) -> None:
    assert file.states() == []
    for index in INDEXES:
        before = file.version()
        file.append(index, durable=durable)
        assert file.states()[0] == index
        assert file.version() != before
    assert IndexFile(file.path).states() == INDEXES[::-1]
    file.remove()
    assert file.states() == []


@given(cut=st.integers(0, 400))
def test_a_write_cut_short_leaves_the_one_before_it(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    file = IndexFile(tmp_path_factory.mktemp("cut") / "index")
    file.append(b"first", durable=False)
    first = file.path.stat().st_size
    file.append(b"second" * 50, durable=False)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[: first + cut])
    file = IndexFile(file.path)
    expected = [b"first", b"second" * 50][: 1 + (first + cut >= len(whole))]
    assert file.states() == expected[::-1]
    # And what comes next is found again.
    file.append(b"third", durable=False)
    assert IndexFile(file.path).states() == [b"third", *expected[::-1]]


@pytest.mark.parametrize("content", [b"", b"x", b"idx\n", b"garbage" * 10])
def test_what_holds_no_index_is_damaged(file: IndexFile, content: bytes) -> None:
    file.path.write_bytes(content)
    with pytest.raises(CorruptCache):
        file.states()


@pytest.mark.parametrize("at", [0, 8, 30])
def test_a_flipped_byte_in_the_first_is_damage(file: IndexFile, at: int) -> None:
    file.append(b"first" * 10, durable=False)
    flip(file, at)
    with pytest.raises(CorruptCache):
        file.states()


@pytest.mark.parametrize("at", [-1, -7, -12, -17])
def test_after_a_flipped_byte_the_states_before_it_count(file: IndexFile, at: int) -> None:
    for state in (b"first", b"second", b"third"):
        file.append(state, durable=False)
    flip(file, at)
    file = IndexFile(file.path)
    assert file.states() == [b"second", b"first"]
    file.append(b"fourth", durable=False)
    assert IndexFile(file.path).states() == [b"fourth", b"second", b"first"]


def test_bytes_that_never_reached_the_disk_cost_the_newest_alone(file: IndexFile) -> None:
    file.append(b"first", durable=False)
    whole = file.path.stat().st_size
    file.append(b"second" * 9, durable=False)
    data = file.path.read_bytes()
    for reached in range(whole, len(data)):
        file.path.write_bytes(data[:reached] + bytes(len(data) - reached))
        assert IndexFile(file.path).states() == [b"first"]


def flip(file: IndexFile, at: int) -> None:
    data = bytearray(file.path.read_bytes())
    data[at] ^= 1
    file.path.write_bytes(data)


def test_states_can_be_dropped_from_the_newest_on(file: IndexFile) -> None:
    for index in INDEXES:
        file.append(index, durable=False)
    file.keep(file.states()[2:])
    file.append(b"new", durable=False)
    assert IndexFile(file.path).states() == [b"new", b"one", b""]


def test_the_file_stays_small_and_keeps_two_states(file: IndexFile) -> None:
    index = bytes(100_000)
    for number in range(25):
        file.append(index + bytes([number]), durable=False)
        assert file.path.stat().st_size <= LIMIT_BYTES
        assert [state[-1] for state in file.states()[:2]] == [number, number - 1][: number + 1]
    assert [path.name for path in file.path.parent.iterdir()] == ["index"]
