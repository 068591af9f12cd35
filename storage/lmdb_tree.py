"""A tree in an LMDB 0.9 file, walked from its root with nothing trusted.

LMDB relies on the kinds of the pages, on the order of the keys, and on the counts that the meta
page holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage.lmdb_pages import (
    BRANCH,
    LEAF,
    NODE_BYTES,
    Nodes,
    Pages,
    overflow_pages,
    read_nodes,
    words,
)

NO_PAGE = 2**64 - 1
"""The root of an empty tree."""

INTEGER_KEYS = 8
"""The flag of a tree whose keys are integers of 64 bits."""

_BLOCK_PAGES = 128
"""How many leaves are in memory at once."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What a meta page says of a tree (mdb.c, MDB_db).

    Attributes:
        pad: in the tree of free pages the page size.
        flags: of what kind keys and values are.
        depth: levels of pages; 0 when empty.
        branch_pages: how many there are, likewise `leaf_pages` and `overflow_pages`.
        entries: how many keys there are.
        root: page number.
    """

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Walk:
    """A walk through a tree: the branches when it is made, then `leaves`, then `finish`.

    Attributes:
        numbers: the branches and leaves, arrays of page numbers.
    """

    def __init__(self, pages: Pages, tree: Tree) -> None:
        """Walk through the branches.

        Raises:
            CorruptCache: they are not as LMDB leaves them.
        """
        self.numbers: list[np.ndarray] = []
        self._pages = pages
        self._tree = tree
        self._integers = bool(tree.flags & INTEGER_KEYS)
        self._entries = 0
        self._runs = [np.empty((0, 2), np.int64)]
        is_empty = tree.root == NO_PAGE
        pages.require(is_empty == (tree.depth == 0), "a tree has no root")
        pages.require(is_empty or tree.root < pages.end, "it names a page that is not there")
        self._leaves = np.array([] if is_empty else [tree.root], np.int64)
        # The key that those under a page may not be below; none for the first page.
        self._bounds = [b""] * len(self._leaves)
        for _ in range(1, tree.depth):
            self._descend()
        found = sum(map(len, self.numbers)), len(self._leaves)
        pages.require(found == (tree.branch_pages, tree.leaf_pages), "it counts pages wrongly")
        self.numbers.append(self._leaves)

    def leaves(self) -> Iterator[Nodes]:
        """The nodes of the leaves in key order, some pages at a time.

        Raises:
            CorruptCache: they are not as LMDB leaves them.
        """
        last = b""
        for begin in range(0, len(self._leaves), _BLOCK_PAGES):
            block = slice(begin, begin + _BLOCK_PAGES)
            nodes = read_nodes(self._pages, self._leaves[block], LEAF)
            self._require_key_sizes(nodes.key_bytes)
            self._pages.require(_ascend(nodes, self._integers), "its keys are out of order")
            for page, first in enumerate(nodes.firsts.tolist(), begin):
                bound = self._bounds[page]
                # With the order inside the pages, this is the order of all keys.
                last = self._key(nodes, first - 1) if first else last
                sound = (last < bound or not page) and bound <= self._key(nodes, first)
                self._pages.require(sound, "a key lies in the wrong page")
            last = self._key(nodes, -1)
            self._entries += len(nodes.begins)
            runs = nodes.runs(self._pages.page_bytes)
            self._pages.require_runs(runs)
            self._runs.append(runs)
            yield nodes

    def finish(self) -> np.ndarray:
        """Where the values in overflow pages lie, in key order, int64[b, 2]: first page, how many.

        Raises:
            CorruptCache: the tree does not hold what its counts say.
        """
        tree, require = self._tree, self._pages.require
        require(self._entries == tree.entries, "it counts entries wrongly")
        runs = np.concatenate(self._runs)
        if runs[:, 1].sum() != tree.overflow_pages:
            # A value that became smaller in the transaction that wrote it keeps its pages.
            counts = overflow_pages(self._pages, runs[:, 0])
            require(counts >= runs[:, 1], "a value lies in too few pages")
            require(int(counts.sum()) == tree.overflow_pages, "it counts pages wrongly")
            runs[:, 1] = counts
        return runs

    def _descend(self) -> None:
        """Go from the pages of one level to those of the next."""
        nodes = read_nodes(self._pages, self._leaves, BRANCH)
        # LMDB never looks at the key of a first child.
        is_inner = np.ones(len(nodes.begins), bool)
        is_inner[nodes.firsts] = False
        self._require_key_sizes(nodes.key_bytes[is_inner])
        bounds = [self._key(nodes, node) for node in range(len(is_inner))]
        for first, bound in zip(nodes.firsts.tolist(), self._bounds, strict=True):
            bounds[first] = bound
        self.numbers.append(self._leaves)
        self._leaves, self._bounds = nodes.heads, bounds
        found = sum(map(len, self.numbers)) + len(bounds)
        self._pages.require(found <= self._pages.end, "it uses a page twice")

    def _require_key_sizes(self, key_bytes: np.ndarray) -> None:
        self._pages.require(
            key_bytes == 8 if self._integers else key_bytes > 0, "a key has a wrong size"
        )

    def _key(self, nodes: Nodes, node: int) -> bytes:
        """A key, such that the order of keys is that of bytes."""
        key = nodes.key(node)
        return key[::-1] if self._integers else key


def _ascend(nodes: Nodes, integers: bool) -> bool:
    """Whether each key is larger than the one before."""
    parts = _parts(nodes, slice(None), 0, integers)
    lefts = np.flatnonzero(parts[1:] <= parts[:-1])
    at = 0
    while len(lefts):
        left, right = (_parts(nodes, which, at, integers) for which in (lefts, lefts + 1))
        if (left > right).any():
            return False
        # Those that are equal so far: the one that ends here has to be the left one.
        lefts = lefts[left == right]
        at += 8
        rests = nodes.key_bytes[lefts] - at, nodes.key_bytes[lefts + 1] - at
        is_over = np.minimum(*rests) <= 0
        if (rests[0] >= rests[1])[is_over].any():
            return False
        lefts = lefts[~is_over]
    return True


def _parts(nodes: Nodes, which: slice | np.ndarray, at: int, integers: bool) -> np.ndarray:
    """The 8 bytes of keys from byte `at` on as numbers in the order of the keys, uint64[m]."""
    parts: np.ndarray = words(nodes.data)[nodes.begins[which] + (NODE_BYTES + at)]
    if integers:
        return parts
    # Zeros behind the end of a key.
    beyond = (64 - 8 * np.minimum(nodes.key_bytes[which] - at, 8)).astype(np.uint64)
    shown: np.ndarray = parts.byteswap() >> beyond << beyond
    return shown
