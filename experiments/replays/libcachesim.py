"""libCacheSim's own policies on our traces, for comparison (the optional package `libcachesim`).

Its C code ends the process when it does not like a capacity, so each replay has one of its own.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from fedio.errors import InputError
from storage.trace import Stream, Trace

# Those that need a capacity and nothing else: no future, no second cache, no training. LFUDA is
# left out because it does not come back from small capacities.
NAMES = (
    "ARC", "Cacheus", "Clock", "Clock2QPlus", "ClockPro", "FIFO", "GDSF", "Hyperbolic", "LFU",
    "LHD", "LIRS", "LRU", "LRUK", "LRUProb", "LeCaR", "MQ", "Random", "S3FIFO", "SLRU", "Sieve",
    "Size", "TwoQ", "WTinyLFU",
)  # fmt: skip

_TIMEOUT_S = 600.0


class TheirError(RuntimeError):
    """A replay that brought no figures."""


class Room(NamedTuple):
    """What the samples of one cache are charged, int64[n], and what all residents may be."""

    costs: np.ndarray
    capacity_bytes: int


def policies() -> list[str]:
    """Return the names of the policies that are installed.

    Raises:
        InputError: the package is not.
    """
    try:
        package = importlib.import_module("libcachesim")
    except ImportError as error:
        raise InputError(
            f"libcachesim cannot be imported ({error}): pip install 'fedio[libcachesim]'"
        ) from error
    return [name for name in NAMES if hasattr(package, name)]


def replay(name: str, trace: Trace, rooms: Sequence[Room]) -> dict[str, int]:
    """Replay a trace under one of its policies; returns hits, hit_bytes and written_bytes.

    As in ours, a batch is read as a whole: first come the hits of what was there when it began,
    then what was missed, each once.

    Args:
        name: one of `policies()`.
        trace: the requests.
        rooms: for each of its streams.

    Raises:
        TheirError: it ended its process, or took too long.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, name, trace, rooms), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(_TIMEOUT_S):
            raise TheirError(f"libCacheSim took more than {_TIMEOUT_S:.0f} s")
        counts: dict[str, int] = receiver.recv()
    except EOFError:
        process.join()
        raise TheirError(f"libCacheSim ended its process with code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    return counts


def _child(sender: Connection, name: str, trace: Trace, rooms: Sequence[Room]) -> None:
    faulthandler.disable()  # when it ends the process, the exit code says enough
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # it prints what it does
        os.dup2(nowhere, descriptor)
    counts = dict.fromkeys(("hits", "hit_bytes", "written_bytes"), 0)
    for stream, room in zip(trace.streams, rooms, strict=True):
        for key, count in _stream_counts(name, stream, room).items():
            counts[key] += count
    sender.send(counts)


def _stream_counts(name: str, stream: Stream, room: Room) -> dict[str, int]:
    hit, written = np.zeros(len(stream.requests), dtype=bool), []
    if room.capacity_bytes:
        cache = _Cache(name, stream.samples, room)
        bounds = zip(stream.batch_starts.tolist(), stream.batch_ends.tolist(), strict=True)
        for first, last in bounds:
            hit[first:last], came_in = cache.read(stream.requests[first:last].tolist())
            written += came_in
    sizes = stream.size_bytes
    return {
        "hits": int(np.count_nonzero(hit)),
        "hit_bytes": int(sizes[stream.requests[hit]].sum()),
        "written_bytes": int(sizes[np.array(written, np.int64)].sum()),
    }


class _Cache:
    def __init__(self, name: str, samples: int, room: Room) -> None:
        package = importlib.import_module("libcachesim")
        # As many buckets of its hash table as there are samples, or more.
        hashpower = max(4, samples.bit_length())
        self._cache = getattr(package, name)(int(room.capacity_bytes), hashpower=hashpower)
        self._request = package.Request()
        self._costs = room.costs.tolist()

    def read(self, batch: list[int]) -> tuple[list[bool], list[int]]:
        """Read a batch as a whole; returns what was there, and what came in."""
        if len(batch) == 1:  # the usual way, in one call
            there = [self._use(batch[0])]
            return there, [s for s in batch if not there[0] and self._has(s)]
        there = [self._has(sample) for sample in batch]
        for sample, found in zip(batch, there, strict=True):
            if found:
                self._use(sample)
        missed = [sample for sample, found in zip(batch, there, strict=True) if not found]
        # Each once, in the order of their last places, as our cache takes an offer.
        offered = list(dict.fromkeys(reversed(missed)))[::-1]
        return there, [s for s in offered if not self._use(s) and self._has(s)]

    def _use(self, sample: int) -> bool:
        """Use a sample, which comes in if it is not there; returns whether it was."""
        self._request.obj_id, self._request.obj_size = sample + 1, self._costs[sample]
        return bool(self._cache.get(self._request))

    def _has(self, sample: int) -> bool:
        self._request.obj_id = sample + 1
        return self._cache.find(self._request, update_cache=False) is not None
