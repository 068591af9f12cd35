"""The data file of LMDB 0.9 as a format: made with pages of any size, and checked before LMDB.

LMDB maps its file and trusts what it reads there: one wrong bit in a page of its trees can end the
process. So a file that may be damaged goes through `check` and `check_values` first, which make
sure of everything that LMDB relies on. Payloads themselves are not looked at.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storage.errors import CorruptCache, StoreFull
from storage.layout import LARGE_PAGE_BYTES, SMALL_PAGE_BYTES, Layout
from storage.lmdb_pages import (
    FIRST_PAGE,
    HEADER_BYTES,
    META,
    NODE_BYTES,
    Nodes,
    Pages,
    overflow_pages,
    words,
)
from storage.lmdb_tree import INTEGER_KEYS, NO_PAGE, Tree, Walk

# A meta page (mdb.c, MDB_page and MDB_meta): page number, flags, magic, version, map size, the tree
# of free pages, the main tree, last page, transaction.
_META = struct.Struct("<Q2xH4xII8xQ48s48sQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_MAGIC = 0xBEEFC0DE
_VERSION = 1
_NO_SUBFOLDER = 0x4000
"""A flag of the environment, kept with those of the free tree: the path names the file itself."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_PAGE_BYTES = (SMALL_PAGE_BYTES, LARGE_PAGE_BYTES)
_NO_RUNS = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class Meta:
    """A meta page: where a transaction left everything."""

    transaction: int
    last_page: int
    free: Tree
    main: Tree


def create(path: Path, page_bytes: int, map_bytes: int) -> None:
    """Make an empty data file with pages of `page_bytes`, whole or not at all.

    LMDB takes the page size of a file that is there, and makes its own with that of the machine.

    Raises:
        StoreFull: the disk has no room for it.
    """
    free = _TREE.pack(page_bytes, INTEGER_KEYS, 0, 0, 0, 0, 0, NO_PAGE)
    main = _TREE.pack(0, 0, 0, 0, 0, 0, 0, NO_PAGE)
    metas = [
        _META.pack(number, META, _MAGIC, _VERSION, map_bytes, free, main, FIRST_PAGE - 1, 0)
        for number in range(FIRST_PAGE)
    ]
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_bytes(b"".join(meta.ljust(page_bytes, b"\0") for meta in metas))
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        if error.errno not in _FULL:
            raise
        raise StoreFull(f"the disk of {path.parent} took no more: {error.strerror}") from error


def check(path: Path, page_bytes: int, map_bytes: int) -> np.ndarray:
    """Make sure that LMDB can open a data file and change it without harm to the process.

    The time goes with the number of keys. The pages of the values in overflow pages are not
    touched: `check_values` does that. Another process may be writing meanwhile.

    Returns:
        Where those values lie, in key order, int64[k, 2]: the first page and how many pages. Empty
        where there is no file, or an empty one.

    Raises:
        CorruptCache: the file is damaged, is no LMDB file, has pages of another size, is larger
            than `map_bytes`, or has more than plain keys and values in one database.
    """
    if not path.exists():
        return _NO_RUNS
    with path.open("rb", buffering=0) as file:
        if not os.fstat(file.fileno()).st_size:
            return _NO_RUNS
        pages = Pages(path, file.fileno(), page_bytes)
        meta = _newest_meta(pages)
        while True:
            try:
                return _check_trees(pages, meta, map_bytes)
            except CorruptCache:
                # What a meta page names stays untouched until there is a newer one.
                before, meta = meta, _newest_meta(pages)
                if meta == before:
                    raise


def check_values(path: Path, page_bytes: int, runs: np.ndarray) -> None:
    """Make sure that values in overflow pages can be read and freed.

    Looks at every one of their first pages. May be called with a part of what `check` returned;
    nobody may have written since.

    Args:
        path: the data file.
        page_bytes: its page size.
        runs: where the values lie, from `check`.

    Raises:
        CorruptCache: the pages are not what the tree says.
    """
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size // page_bytes
        _require_runs(Pages(path, file.fileno(), page_bytes, end), runs)


def layout_of(path: Path) -> Layout | None:
    """The size of pages and map of a data file, as it says; None where there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb", buffering=0) as file:
        head = file.read(_META.size)
    if len(head) < _META.size:
        return None
    _, _, *kind, map_bytes, free, _, _, _ = _META.unpack(head)
    page_bytes = Tree(*_TREE.unpack(free)).pad
    ours = kind == [_MAGIC, _VERSION] and page_bytes in _PAGE_BYTES
    return Layout(page_bytes, map_bytes) if ours else None


def last_transaction(path: Path, page_bytes: int) -> int:
    """The number of the transaction that changed a data file last: a cheap mark of its state.

    Raises:
        CorruptCache: the file is no LMDB file or has pages of another size.
    """
    with path.open("rb", buffering=0) as file:
        return _newest_meta(Pages(path, file.fileno(), page_bytes)).transaction


def _newest_meta(pages: Pages) -> Meta:
    """The meta page that LMDB would use."""
    metas: list[Meta] = []
    for number in range(FIRST_PAGE):
        found = pages.read(np.array([number * pages.page_bytes]), _META.size)
        _, flags, *kind, _, free, main, last_page, transaction = _META.unpack_from(found.tobytes())
        if not flags & META or kind != [_MAGIC, _VERSION]:
            raise CorruptCache(f"{pages.path} is no cache file")
        trees = Tree(*_TREE.unpack(free)), Tree(*_TREE.unpack(main))
        if trees[0].pad != pages.page_bytes:
            raise CorruptCache(f"{pages.path} has pages of {trees[0].pad} bytes")
        metas.append(Meta(transaction, last_page, *trees))
    newest = int(metas[0].transaction < metas[1].transaction)
    meta = metas[newest]
    # LMDB finds it again by the parity of the transaction.
    sound = meta.transaction % 2 == newest and meta.transaction < 1 << 62
    pages.require(sound, "its transactions are numbered wrongly")
    return meta


def _check_trees(pages: Pages, meta: Meta, map_bytes: int) -> np.ndarray:
    """Check what a meta page leads to; see `check`."""
    size = os.fstat(pages.descriptor).st_size
    if max(size, (meta.last_page + 1) * pages.page_bytes) > map_bytes:
        raise CorruptCache(f"{pages.path} is larger than its budget")
    # The last pages may be free ones that were never written: no page in use lies beyond the end.
    pages = replace(pages, end=min(size // pages.page_bytes, meta.last_page + 1))
    free_flags = meta.free.flags & ~_NO_SUBFOLDER
    plain = (free_flags, meta.main.flags, meta.main.pad) == (INTEGER_KEYS, 0, 0)
    pages.require(plain, "its database is of another kind")
    free = Walk(pages, meta.free)
    listed = [_listed(pages, nodes, meta) for nodes in free.leaves()]
    free_runs = free.finish()
    _require_runs(pages, free_runs)
    main = Walk(pages, meta.main)
    for _ in main.leaves():
        pass
    runs = main.finish()
    # LMDB would write over a page in use that is listed as free, too.
    members = _members(np.concatenate([free_runs, runs]))
    used = np.sort(np.concatenate([*listed, *free.numbers, *main.numbers, members]))
    pages.require(used[1:] != used[:-1], "it uses a page twice")
    return runs


def _listed(pages: Pages, nodes: Nodes, meta: Meta) -> np.ndarray:
    """The free pages that some entries of the free tree list, int64[m].

    An entry is a transaction and what it freed: how many pages, and their numbers, descending.
    """
    transactions = words(nodes.data)[nodes.begins + NODE_BYTES]
    sound = (transactions >= 1) & (transactions <= meta.transaction)
    pages.require(sound, "a page was freed by a transaction that never was")
    firsts = iter(nodes.runs(pages.page_bytes)[:, 0].tolist())
    found = [np.empty(0, np.int64)]
    for is_big, begin, length in zip(
        nodes.is_big.tolist(), nodes.data_begins.tolist(), nodes.heads.tolist(), strict=True
    ):
        value = nodes.data[begin:]
        if is_big:
            place = next(firsts) * pages.page_bytes + HEADER_BYTES
            value = pages.read(np.array([place]), length)
        count = int(words(value)[0])
        pages.require(length == 8 * (count + 1), "a list of free pages has no end")
        numbers = np.frombuffer(value, "<u8", count, offset=8)
        pages.require(numbers[1:] < numbers[:-1], "a list of free pages is out of order")
        there = not count or (int(numbers[-1]) >= FIRST_PAGE and int(numbers[0]) <= meta.last_page)
        pages.require(there, "a list of free pages holds what is no page")
        found.append(numbers.astype(np.int64))
    return np.concatenate(found)


def _require_runs(pages: Pages, runs: np.ndarray) -> None:
    pages.require(
        overflow_pages(pages, runs[:, 0]) == runs[:, 1],
        "a value does not take the pages that it should",
    )


def _members(runs: np.ndarray) -> np.ndarray:
    """All pages of runs (int64[k, 2]), int64[m]."""
    firsts, counts = runs[:, 0], runs[:, 1]
    ends = np.cumsum(counts)
    steps = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    members: np.ndarray = np.repeat(firsts, counts) + steps
    return members
