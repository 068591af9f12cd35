"""Damaged data files of LMDB: whatever a check lets pass can be used without harm."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import lmdb
import numpy as np
import pytest

from storage.errors import CorruptCache
from storage.lmdb_file import check, check_values, create

MAP_BYTES = 16 << 20


class Image(bytearray):
    """The bytes of a data file, and where things lie in them.

    Attributes:
        page: its page size in bytes.
        meta: the newest meta page; `free` and `main` are the records of the two trees in it.
    """

    def __init__(self, content: bytes | bytearray) -> None:
        super().__init__(content)
        self.page = self.get("I", 40)
        self.meta = max(0, self.page, key=lambda at: self.get("Q", at + 144))
        self.free, self.main = self.meta + 40, self.meta + 88

    def get(self, form: str, at: int) -> int:
        value: int = struct.unpack_from("<" + form, self, at)[0]
        return value

    def put(self, form: str, at: int, value: int) -> Self:
        struct.pack_into("<" + form, self, at, value)
        return self

    def add(self, form: str, at: int, change: int) -> Self:
        return self.put(form, at, self.get(form, at) + change)

    def swap(self, form: str, at: int, other: int) -> None:
        first, second = self.get(form, at), self.get(form, other)
        self.put(form, at, second)
        self.put(form, other, first)

    def root(self, tree: int) -> int:
        return self.get("Q", tree + 40) * self.page

    def nodes(self, page: int) -> list[int]:
        count = (self.get("H", page + 12) - 16) // 2
        return [page + self.get("H", page + 16 + 2 * slot) for slot in range(count)]

    def data(self, node: int) -> int:
        return node + 8 + self.get("H", node + 6)

    @property
    def children(self) -> list[int]:
        """The nodes of the root of the main tree."""
        return self.nodes(self.root(self.main))

    @property
    def leaf(self) -> int:
        """The second leaf of the main tree."""
        return self.get("I", self.children[1]) * self.page

    @property
    def node(self) -> int:
        """A node in that leaf with a small value."""
        return self.nodes(self.leaf)[3]

    @property
    def large(self) -> list[int]:
        """In that leaf, where the page numbers of values in overflow pages lie."""
        return [self.data(node) for node in self.nodes(self.leaf) if self.get("H", node + 4)]

    @property
    def value(self) -> int:
        """The first of those pages."""
        return self.get("Q", self.large[0]) * self.page

    @property
    def transactions(self) -> list[int]:
        """The nodes with lists of free pages."""
        return self.nodes(self.root(self.free))

    @property
    def freed(self) -> int:
        """The newest of those lists."""
        return self.data(self.transactions[-1])

    @property
    def tree_pages(self) -> list[int]:
        found = [self.root(self.free), self.root(self.main)]
        for page in found:
            if self.get("H", page + 10) == 1:
                found += [self.get("I", node) * self.page for node in self.nodes(page)]
        return found


def make(folder: Path, page_bytes: int, keys: int = 200) -> Image:
    """A file with small and large values, and pages freed by several transactions."""
    folder.mkdir()
    create(folder / "data.mdb", page_bytes, MAP_BYTES)
    with lmdb.open(str(folder), map_size=MAP_BYTES, sync=False) as environment:
        with environment.begin(write=True) as writer:
            for key in range(keys):
                writer.put(b"a beginning%05d" % key, bytes(30 if key % 8 else page_bytes - 16))
        # As long as there is a reader nothing is used again.
        with environment.begin():
            for key in range(0, 40, 8):
                with environment.begin(write=True) as writer:
                    writer.put(b"a beginning%05d" % key, b"now small")
    return Image((folder / "data.mdb").read_bytes())


def verify(data: Path, page_bytes: int) -> None:
    check_values(data, page_bytes, check(data, page_bytes, MAP_BYTES))


OTHER = "is not what the one above it says"
HOLES = "overlap or leave holes"
OUTSIDE = "a node lies outside its page"
ABSENT = "it names a page that is not there"
WRONG_PAGE = "a key lies in the wrong page"
ORDER = "its keys are out of order"
TWICE = "it uses a page twice"
COUNTS = "it counts pages wrongly"
NUMBERS = "its transactions are numbered wrongly"
VALUE = "a value does not lie where its key says"


def make_endless(image: Image) -> None:
    """Let the root be each of its children, ten levels deep."""
    for node in image.children:
        image.put("I", node, image.root(image.main) // image.page)
    image.put("H", image.main + 6, 10)


DAMAGES: dict[str, tuple[str, Callable[[Image], object]]] = {
    "magic": ("is no cache file", lambda i: i.add("I", 16, 1)),
    "version of the second meta page": ("is no cache file", lambda i: i.add("I", i.page + 20, 1)),
    "a meta page of another kind": ("is no cache file", lambda i: i.put("H", 10, 2)),
    "page size of one": ("has pages of 8192 bytes", lambda i: i.put("I", i.page + 40, 8192)),
    "transaction of the other parity": (NUMBERS, lambda i: i.add("Q", i.meta + 144, 1)),
    "transaction beyond all": (NUMBERS, lambda i: i.add("Q", i.meta + 144, 1 << 63)),
    "last page beyond the map": ("larger than its", lambda i: i.put("Q", i.meta + 136, 1 << 40)),
    "last page too low": (ABSENT, lambda i: i.put("Q", i.meta + 136, 2)),
    "flags of the free tree": ("of another kind", lambda i: i.put("H", i.free + 4, 9)),
    "flags of the main tree": ("of another kind", lambda i: i.put("H", i.main + 4, 4)),
    "pad of the main tree": ("of another kind", lambda i: i.put("I", i.main, 8)),
    "no root": ("has no root", lambda i: i.put("Q", i.main + 40, 2**64 - 1)),
    "no levels": ("has no root", lambda i: i.put("H", i.main + 6, 0)),
    "root is a meta page": (ABSENT, lambda i: i.put("Q", i.main + 40, 1)),
    "root beyond the end": (ABSENT, lambda i: i.put("Q", i.main + 40, 1 << 63)),
    "too deep": (OTHER, lambda i: i.add("H", i.main + 6, 1)),
    "not deep enough": (COUNTS, lambda i: i.add("H", i.main + 6, -1)),
    "count of branches": (COUNTS, lambda i: i.add("Q", i.main + 8, 1)),
    "count of leaves": (COUNTS, lambda i: i.add("Q", i.main + 16, -1)),
    "count of overflow pages": (COUNTS, lambda i: i.add("Q", i.main + 24, 1)),
    "count of entries": ("counts entries", lambda i: i.add("Q", i.main + 32, 1)),
    "count of free lists": ("counts entries", lambda i: i.add("Q", i.free + 32, -1)),
    "page number": (OTHER, lambda i: i.add("Q", i.leaf, 1)),
    "page that is not written": (OTHER, lambda i: i.add("H", i.leaf + 10, 16)),
    "page for values of one size": (OTHER, lambda i: i.put("H", i.leaf + 10, 34)),
    "lower odd": (OTHER, lambda i: i.add("H", i.leaf + 12, 1)),
    "lower above upper": (OTHER, lambda i: i.put("H", i.leaf + 12, 4000)),
    "lower in the header": (OTHER, lambda i: i.put("H", i.leaf + 12, 2)),
    "no nodes": (OTHER, lambda i: i.put("H", i.leaf + 12, 16)),
    "a node less": (HOLES, lambda i: i.add("H", i.leaf + 12, -2)),
    "a node more": (OUTSIDE, lambda i: i.add("H", i.leaf + 12, 2)),
    "upper beyond the page": (OTHER, lambda i: i.put("H", i.leaf + 14, 4098)),
    "upper too low": (HOLES, lambda i: i.add("H", i.leaf + 14, -2)),
    "upper too high": (OUTSIDE, lambda i: i.add("H", i.leaf + 14, 2)),
    "pointer into the header": (OUTSIDE, lambda i: i.put("H", i.leaf + 18, 4)),
    "pointer close to the end": (OUTSIDE, lambda i: i.put("H", i.leaf + 18, 4090)),
    "pointer beyond the page": (OUTSIDE, lambda i: i.put("H", i.leaf + 18, 65534)),
    "pointer moved": ("a key is too long", lambda i: i.add("H", i.leaf + 22, 2)),
    "pointer twice": (HOLES, lambda i: i.put("H", i.leaf + 22, i.get("H", i.leaf + 24))),
    "pointers swapped": (ORDER, lambda i: i.swap("H", i.leaf + 20, i.leaf + 22)),
    "key too long": ("a key is too long", lambda i: i.put("H", i.node + 6, 512)),
    "key longer": (HOLES, lambda i: i.add("H", i.node + 6, 2)),
    "key empty": ("wrong size", lambda i: i.put("H", i.node + 6, 0).add("H", i.node, 16)),
    "key shorter": (ORDER, lambda i: i.add("H", i.node + 6, -8).add("H", i.node, 8)),
    "key smaller at its end": (ORDER, lambda i: i.put("B", i.node + 8 + 15, 0)),
    "key larger at its beginning": (ORDER, lambda i: i.put("B", i.node + 8, 255)),
    "value longer": (HOLES, lambda i: i.add("H", i.node, 2)),
    "value too long": ("too large for its page", lambda i: i.add("H", i.node + 2, 1)),
    "value is a database": ("of an unknown kind", lambda i: i.put("H", i.node + 4, 2)),
    "first key too small": (ORDER, lambda i: i.put("B", i.nodes(i.leaf)[0] + 8, 0)),
    "last key too large": (ORDER, lambda i: i.put("B", i.nodes(i.leaf)[-1] + 8, 255)),
    "separator too large": (WRONG_PAGE, lambda i: i.put("B", i.children[1] + 8, 255)),
    "separator too small": (WRONG_PAGE, lambda i: i.put("B", i.children[1] + 8, 0)),
    "separator empty": (HOLES, lambda i: i.put("H", i.children[1] + 6, 0)),
    "child beyond the end": (ABSENT, lambda i: i.put("H", i.children[1] + 4, 1)),
    "child is a meta page": (ABSENT, lambda i: i.put("I", i.children[1], 1)),
    "child is a value": (OTHER, lambda i: i.put("I", i.children[1], i.value // i.page)),
    "child is the root": (OTHER, lambda i: i.put("I", i.children[1], i.root(i.main) // i.page)),
    "child twice": (ORDER, lambda i: i.put("I", i.children[0], i.leaf // i.page)),
    "children swapped": (ORDER, lambda i: i.swap("I", i.children[0], i.children[1])),
    "children are the root": (TWICE, make_endless),
    "one child": (OTHER, lambda i: i.put("H", i.root(i.main) + 12, 18)),
    "value beyond the end": (ABSENT, lambda i: i.put("I", i.large[0], 1 << 20)),
    "value in a meta page": (ABSENT, lambda i: i.put("I", i.large[0], 1)),
    "value of another key": (TWICE, lambda i: i.put("Q", i.large[0], i.get("Q", i.large[1]))),
    "value in a tree page": (TWICE, lambda i: i.put("Q", i.large[0], i.leaf // i.page)),
    "value in a free page": (TWICE, lambda i: i.put("Q", i.large[0], i.get("Q", i.freed + 8))),
    "value on more pages": ("in too few pages", lambda i: i.add("H", i.large[0] - 24, 4096)),
    "value becomes small": ("too large for its page", lambda i: i.put("H", i.large[0] - 20, 0)),
    "value page number": (VALUE, lambda i: i.add("Q", i.value, 1)),
    "value page not written": (VALUE, lambda i: i.add("H", i.value + 10, 16)),
    "value of no pages": (VALUE, lambda i: i.put("I", i.value + 12, 0)),
    "value of two pages": ("the pages that it should", lambda i: i.put("I", i.value + 12, 2)),
    "value of many pages": ("beyond the last page", lambda i: i.put("I", i.value + 12, 1 << 30)),
    "free pages: count": ("has no end", lambda i: i.add("Q", i.freed, 1)),
    "free pages: huge count": ("has no end", lambda i: i.put("Q", i.freed, 2**64 - 1)),
    "free pages: order": ("out of order", lambda i: i.swap("Q", i.freed + 8, i.freed + 16)),
    "free pages: beyond the end": (
        "holds what is no page",
        lambda i: i.put("Q", i.freed + 8, i.get("Q", i.meta + 136) + 1),
    ),
    "free pages: a meta page": (
        "holds what is no page",
        lambda i: i.put("Q", i.freed + 8 * i.get("Q", i.freed), 1),
    ),
    # The root is the last page of the file.
    "free pages: in use": (TWICE, lambda i: i.put("Q", i.freed + 8, i.root(i.main) // i.page)),
    "free pages: no transaction": ("never was", lambda i: i.put("Q", i.transactions[0] + 8, 0)),
    "free pages: later transaction": ("never was", lambda i: i.add("Q", i.transactions[-1] + 8, 1)),
    "free pages: order of transactions": (
        ORDER,
        lambda i: i.swap("Q", i.transactions[0] + 8, i.transactions[1] + 8),
    ),
    "free pages: short key": (
        "wrong size",
        lambda i: i.put("H", i.transactions[0] + 6, 6).add("H", i.transactions[0], 2),
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return bytes(make(tmp_path_factory.mktemp("sound") / "file", 4096, 200))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_said(tmp_path: Path, sound: bytes, damage: str) -> None:
    data = tmp_path / "data.mdb"
    data.write_bytes(sound)
    verify(data, 4096)
    words, do = DAMAGES[damage]
    image = Image(sound)
    do(image)
    assert bytes(image) != sound
    data.write_bytes(image)
    with pytest.raises(CorruptCache, match=words) as raised:
        verify(data, 4096)
    assert str(raised.value).startswith(f"{data} ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("pages", [0.01, 0.5, 1.5, 2, 3, 20])
def test_a_file_that_was_cut_is_truncated(tmp_path: Path, sound: bytes, pages: float) -> None:
    data = tmp_path / "data.mdb"
    data.write_bytes(sound[: int(4096 * pages)])
    with pytest.raises(CorruptCache, match=f"is truncated|{ABSENT}"):
        verify(data, 4096)


@pytest.mark.parametrize("page_bytes", [4096, 16384])
def test_garbage_and_zeros_are_no_cache_file(tmp_path: Path, page_bytes: int) -> None:
    data = tmp_path / "data.mdb"
    for content in (bytes(1 << 20), np.random.default_rng(0).bytes(1 << 20)):
        data.write_bytes(content)
        with pytest.raises(CorruptCache, match="is no cache file"):
            verify(data, page_bytes)


@pytest.mark.parametrize(
    ("words", "place", "change"),
    [
        ("the pages that it should", 12, -1),
        (VALUE, 10, 16),
        ("has no end", 16, -1),
        ("out of order", 16 + 8 * 600, 100),
        ("holds what is no page", 16 + 8, 1 << 20),
    ],
)
def test_a_long_list_of_free_pages_is_checked_too(
    tmp_path: Path, words: str, place: int, change: int
) -> None:
    data = tmp_path / "data.mdb"
    create(data, 4096, MAP_BYTES)
    with lmdb.open(str(tmp_path), map_size=MAP_BYTES, sync=False) as environment:
        with environment.begin(write=True) as writer:
            for key in range(800):
                writer.put(b"%d" % key, bytes(4080))
        with environment.begin(write=True) as writer:
            for key in range(800):
                writer.delete(b"%d" % key)
    image = Image(data.read_bytes())
    verify(data, 4096)
    image.add("I", image.get("Q", image.freed) * 4096 + place, change)
    data.write_bytes(image)
    with pytest.raises(CorruptCache, match=words):
        verify(data, 4096)


def test_the_keys_of_branches_of_the_free_tree_have_one_size(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    create(data, 4096, MAP_BYTES)
    with (
        lmdb.open(str(tmp_path), map_size=MAP_BYTES, sync=False) as environment,
        environment.begin(),
    ):
        for _ in range(300):
            with environment.begin(write=True) as writer:
                writer.put(b"key", b"value")
    image = Image(data.read_bytes())
    verify(data, 4096)
    # A byte less, but as much room.
    image.add("H", image.transactions[1] + 6, -1)
    data.write_bytes(image)
    with pytest.raises(CorruptCache, match="wrong size"):
        verify(data, 4096)


def flip(rng: np.random.Generator, image: Image, everywhere: bool) -> Image:
    """A copy with one to eight bits the other way, everywhere or in what is no payload."""
    copy = Image(image)
    pages = [0, image.page, *image.tree_pages]
    for _ in range(rng.integers(1, 9)):
        at = rng.integers(len(copy))
        if not everywhere:
            page = rng.choice(pages)
            # All of a meta page; the header and pointers of another one as often as its nodes.
            length = 152 if page <= image.page else rng.choice([200, image.page])
            at = page + rng.integers(length)
        copy[at] ^= 1 << rng.integers(8)
    return copy


def use(folders: Sequence[Path], begun: Path) -> None:
    """Do with each file whatever a cache does, in a process that may die of it."""
    for folder in folders:
        begun.write_text(folder.name)
        signal.alarm(30)
        with lmdb.open(str(folder), map_size=MAP_BYTES, sync=False, meminit=False) as environment:
            with environment.begin() as reader:
                keys = [key for key, _ in reader.cursor()]
                backwards = [key for key, _ in reader.cursor().iterprev()]
            assert keys == backwards[::-1]
            for begin in range(4):
                with environment.begin(write=True) as writer:
                    for key in keys[begin::8]:
                        assert writer.replace(key, bytes(4080)) is not None
            with environment.begin(write=True) as writer:
                for key in keys[2::3]:
                    assert writer.delete(key)
            with environment.begin(write=True) as writer:
                for number in range(50):
                    writer.put(b"%d" % number, bytes(100 * number))
            with environment.begin(write=True) as writer:
                for key, value in writer.cursor():
                    assert writer.pop(key) == value


TRIALS = 3000
HANDFUL = 25


@pytest.mark.slow
def test_a_file_with_flipped_bits_is_refused_or_usable(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [
        make(tmp_path / "small pages", 4096, 200),
        make(tmp_path / "large pages", 16384, 60),
        make(tmp_path / "few", 4096, 41),
    ]
    found: Counter[str] = Counter()
    usable: list[Path] = []
    died: list[str] = []
    for trial in range(TRIALS):
        image = images[trial % len(images)]
        folder = tmp_path / f"{trial}"
        folder.mkdir()
        data = folder / "data.mdb"
        data.write_bytes(flip(rng, image, everywhere=trial % 4 == 0))
        try:
            verify(data, image.page)
        except CorruptCache:
            found["refused"] += 1
            shutil.rmtree(folder)
        else:
            found["usable"] += 1
            usable.append(folder)
        if len(usable) >= HANDFUL or trial == TRIALS - 1:
            died += run(usable, tmp_path / "begun")
            usable.clear()
    assert not died
    assert min(found.values()) > TRIALS // 10


def run(folders: Sequence[Path], begun: Path) -> list[str]:
    """Use files in one child; which one it died of, if it did."""
    child = multiprocessing.get_context("fork").Process(target=use, args=(folders, begun))
    child.start()
    child.join()
    for folder in folders:
        shutil.rmtree(folder)
    return [begun.read_text()] if child.exitcode else []
