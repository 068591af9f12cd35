"""The pages of an LMDB 0.9 file, read from its bytes; nothing in them is trusted.

The layouts are those of LMDB's mdb.c (MDB_page, MDB_node) on little-endian machines of 64 bits. A
branch or a leaf is a header, 16-bit pointers to its nodes in key order, free space, and the nodes
back to back up to the end of the page. A node is the number of a child page, or data size and
flags, in 6 bytes; the size of its key in 2; the key; and in a leaf the data. A value that is too
large for a leaf lies in a run of overflow pages, and the data is the number of the first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import CorruptCache

BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
"""Flags of a page: what it is."""

HEADER_BYTES = 16
NODE_BYTES = 8
"""A node before its key."""

LARGEST_KEY_BYTES = 511
FIRST_PAGE = 2
"""The pages before it are the meta pages."""

_PAGE = np.dtype(
    [("number", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("lower", "<u2"), ("upper", "<u2")]
)
_OVERFLOW = np.dtype([("number", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("pages", "<u4")])
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of an open file, as far as LMDB may look at them.

    Attributes:
        path: the file, for messages.
        descriptor: the open file.
        page_bytes: the size of a page.
        end: the page behind the last one that may be in use.
    """

    path: Path
    descriptor: int
    page_bytes: int
    end: int = 0

    def require(self, sound: bool | np.ndarray, otherwise: str) -> None:
        """Raise CorruptCache unless `sound`, all of it; `otherwise` says what is wrong."""
        # Counting is the fastest way to ask an array.
        if not (sound if isinstance(sound, bool) else np.count_nonzero(sound) == len(sound)):
            raise CorruptCache(f"{self.path} is damaged: {otherwise}")

    def require_runs(self, runs: np.ndarray) -> None:
        """Raise CorruptCache unless runs of pages (int64[k, 2]: first, how many) may be in use."""
        firsts, counts = runs.T
        there = (firsts >= FIRST_PAGE) & (firsts <= self.end - counts)
        self.require(there, "it names a page that is not there")

    def read(self, begins: np.ndarray, length_bytes: int) -> np.ndarray:
        """Read as many bytes from each place (int64[k]) on, uint8[k * length_bytes + 8].

        The last 8 are not from the file: they allow to look at a word that begins at any byte.
        """
        descriptor, pread = self.descriptor, os.pread
        try:
            parts = [pread(descriptor, length_bytes, begin) for begin in begins.tolist()]
        except OSError as error:
            raise CorruptCache(f"{self.path} cannot be read: {error.strerror}") from error
        data = np.frombuffer(b"".join([*parts, bytes(_WORD_BYTES)]), np.uint8)
        if len(data) != len(begins) * length_bytes + _WORD_BYTES:
            raise CorruptCache(f"{self.path} is truncated")
        return data


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of some pages of one kind, in key order.

    Attributes:
        data: the pages, as `Pages.read` gives them.
        begins: where each node begins in `data`, int64[n].
        key_bytes: the size of each key, int64[n].
        heads: in branches the child of each node, in leaves the size of its value, int64[n].
        is_big: in leaves, whether the value lies in overflow pages, bool[n].
        firsts: the first node of each page, int64[k].
    """

    data: np.ndarray
    begins: np.ndarray
    key_bytes: np.ndarray
    heads: np.ndarray
    is_big: np.ndarray
    firsts: np.ndarray

    @property
    def data_begins(self) -> np.ndarray:
        """Where the data of each node begins in `data`, int64[n]."""
        begins: np.ndarray = self.begins + NODE_BYTES + self.key_bytes
        return begins

    def key(self, node: int) -> bytes:
        """The key of a node."""
        begin = int(self.begins[node]) + NODE_BYTES
        return self.data[begin : begin + int(self.key_bytes[node])].tobytes()

    def runs(self, page_bytes: int) -> np.ndarray:
        """First page and number of pages of each value in overflow pages, int64[b, 2]."""
        big = self.is_big.nonzero()[0]
        runs = np.empty((len(big), 2), np.int64)
        if len(big):
            runs[:, 0] = words(self.data)[self.data_begins[big]]
            runs[:, 1] = (HEADER_BYTES - 1 + self.heads[big]) // page_bytes + 1
        return runs


def words(data: np.ndarray) -> np.ndarray:
    """The 8 bytes from each byte of `data` on as a number, uint64[len(data) - 7]; a view."""
    return np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, strides=(1,))


def read_nodes(pages: Pages, numbers: np.ndarray, kind: int) -> Nodes:
    """Read the nodes of pages (int64[k]) that have to be of one kind, BRANCH or LEAF.

    Raises:
        CorruptCache: a page is of another kind, or its nodes do not fill it as they should.
    """
    size = pages.page_bytes
    data = _read_of_kind(pages, numbers, kind)
    headers = np.ndarray((len(numbers),), _PAGE, data, strides=(size,))
    lower, upper = headers["lower"].astype(np.int64), headers["upper"].astype(np.int64)
    page_begins = np.arange(0, len(numbers) * size, size)
    counts = (lower - HEADER_BYTES) // 2
    ends = np.cumsum(counts)
    pointers = np.arange(ends[-1]) + np.repeat((page_begins + lower) // 2 - ends, counts)
    offsets = data.view("<u2")[pointers].astype(np.int64)
    sound = (offsets >= np.repeat(upper, counts)) & (offsets <= size - NODE_BYTES)
    pages.require(sound, "a node lies outside its page")

    begins = np.repeat(page_begins, counts) + offsets
    node_words = words(data)[begins]
    heads = (node_words & 0xFFFFFFFFFFFF).astype(np.int64)
    key_bytes = (node_words >> 48).astype(np.int64)
    pages.require(key_bytes <= LARGEST_KEY_BYTES, "a key is too long")
    is_big = heads >> 32 != 0
    sizes = NODE_BYTES + key_bytes
    if kind == LEAF:
        # Without flags or with this one (F_BIGDATA): plain keys and values.
        pages.require(heads < 2 << 32, "a value is of an unknown kind")
        heads &= 0xFFFFFFFF
        sizes += np.where(is_big, _WORD_BYTES, heads)
        # LMDB moves larger values to overflow pages (me_nodemax), so that two fit in every page.
        largest = (size - HEADER_BYTES) // 2 // 2 * 2 - 2
        pages.require(sizes <= largest, "a value is too large for its page")
    filled = _are_filled(begins, sizes, ends, page_begins + upper, page_begins + size)
    pages.require(filled, "the nodes of a page overlap or leave holes")
    return Nodes(data, begins, key_bytes, heads, is_big, ends - counts)


def _read_of_kind(pages: Pages, numbers: np.ndarray, kind: int) -> np.ndarray:
    """Read pages (int64[k]) and check their headers."""
    size = pages.page_bytes
    there = (numbers >= FIRST_PAGE) & (numbers < pages.end)
    pages.require(there, "it names a page that is not there")
    data = pages.read(numbers * size, size)
    headers = np.ndarray((len(numbers),), _PAGE, data, strides=(size,))
    lower, upper = headers["lower"], headers["upper"]
    # A branch with one child ends LMDB with a failed assertion; there are no empty leaves.
    smallest = HEADER_BYTES + 2 * (2 if kind == BRANCH else 1)
    sound = (headers["number"] == numbers) & (headers["flags"] == kind)
    sound &= (lower >= smallest) & (lower & 1 == 0) & (lower <= upper) & (upper <= size)
    pages.require(sound, "a page is not what the one above it says")
    return data


def _are_filled(
    begins: np.ndarray,
    sizes: np.ndarray,
    ends: np.ndarray,
    lows: np.ndarray,
    highs: np.ndarray,
) -> np.ndarray:
    """Whether nodes lie back to back in their pages, bool[n].

    Args:
        begins: where each begins, int64[n].
        sizes: how many bytes each takes, int64[n]; LMDB rounds that up to an even number.
        ends: how many nodes there are up to the end of each page, int64[k].
        lows: where the nodes of each page begin, int64[k].
        highs: where they end, int64[k].
    """
    # Place and size in one number: that sorts faster than places with an index.
    packed = np.sort(begins << 20 | (sizes + 1 & ~1))
    begins = packed >> 20
    nexts = np.empty_like(begins)
    nexts[:-1] = begins[1:]
    nexts[ends - 1] = highs
    filled: np.ndarray = nexts - begins == packed & 0xFFFFF
    # That left out only what the first node of a page begins with.
    lowest = np.zeros_like(ends)
    lowest[1:] = ends[:-1]
    filled[lowest] &= begins[lowest] == lows
    return filled


def overflow_pages(pages: Pages, firsts: np.ndarray) -> np.ndarray:
    """How many pages the runs of overflow pages that begin there (int64[b]) take, int64[b].

    Raises:
        CorruptCache: there is no such run, or it goes beyond the end.
    """
    data = pages.read(firsts * pages.page_bytes, HEADER_BYTES)
    headers = np.ndarray((len(firsts),), _OVERFLOW, data)
    sound = (headers["number"] == firsts) & (headers["flags"] == OVERFLOW) & (headers["pages"] > 0)
    pages.require(sound, "a value does not lie where its key says")
    counts: np.ndarray = headers["pages"].astype(np.int64)
    pages.require(firsts + counts <= pages.end, "a value goes beyond the last page")
    return counts
