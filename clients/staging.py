"""Staging: a client that is going to take part fills its cache while it is idle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from clients.client_data import ClientData
from clients.loading import UNREADABLE, Loader, Payloads, load_for_cache
from clients.pace import OWN_PACE, Pace
from fedio.costs import staging_s
from fedio.profiles import Speeds
from fedio.protocol import Staged
from storage import SampleCache
from storage.errors import StoreFull

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""So many samples are read at a time: what is staged when there is an end to it is in the cache."""

_READ = ("origin_samples", "origin_bytes", "decoded_samples", "decoded_bytes")
_ROUND, _SAMPLES, _RESIDENTS = "staging.round", "staging.samples", "staging.residents"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was staged for which round, as it is noted beside the cache.

    Attributes:
        server_round: the round, 0 for none.
        samples: int64[k], those that it needs and that were in the cache then.
        residents: int64[m], what was in the cache before: it is on this that the order of the
            participation depends, so that what was staged for it is what it asks for.
    """

    server_round: int
    samples: np.ndarray
    residents: np.ndarray

    @classmethod
    def of(cls, notes: Mapping[str, np.ndarray]) -> Kept:
        """Read the notes of a cache."""
        if _ROUND not in notes:
            return cls(0, np.empty(0, np.int64), np.empty(0, np.int64))
        return cls(int(notes[_ROUND]), notes[_SAMPLES], notes[_RESIDENTS])

    def notes(self) -> dict[str, np.ndarray]:
        """Return the notes."""
        return {
            _ROUND: np.array(self.server_round),
            _SAMPLES: self.samples,
            _RESIDENTS: self.residents,
        }


def without_staging(notes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the notes that are somebody else's."""
    return {name: array for name, array in notes.items() if not name.startswith("staging.")}


def staged_for(server_round: int, cache: SampleCache) -> Kept | None:
    """Return what was staged for that round; what was for another is marked no more."""
    kept = Kept.of(cache.notes)
    if kept.server_round == server_round:
        return kept
    cache.unmark_staged(kept.samples)
    return None


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds staging.

    Attributes:
        window_s: seconds it may take by the cost model.
        write_bytes: bytes it may write.
        is_over: asked before each read; staging ends when it says so.
    """

    window_s: float = float("inf")
    write_bytes: float = float("inf")
    is_over: Callable[[], bool] = bool


class Filling:
    """Fills a cache with what a participation to come needs, what is needed first coming first.

    What is cached of it already stays. The policy hears of the order, and says who leaves.
    """

    def __init__(
        self,
        order: np.ndarray,
        data: ClientData,
        cache: SampleCache,
        speeds: Speeds,
        pace: Pace = OWN_PACE,
    ) -> None:
        """Look at what is there.

        Args:
            order: the accesses of the participation, int64[m].
            data: the client's samples.
            cache: its cache.
            speeds: of its device.
            pace: how long everything takes.
        """
        self._order, self._data, self._cache, self._speeds = order, data, cache, speeds
        self._pace = pace
        self._needed = np.array(list(dict.fromkeys(order.tolist())), np.int64)
        self._residents = cache.residents
        self._is_held = np.isin(self._needed, self._residents)
        self._before = cache.stats.copy()
        self._read = np.zeros(4, np.int64)  # as the first columns of `_work`

    def fill(self, limits: Limits) -> None:
        """Bring in what is missing, as far as the limits go."""
        cache = self._cache
        cache.plan(self._order)
        cache.pin(self._needed)
        try:
            self._bring(self._needed[~self._is_held], limits)
        finally:
            cache.unpin(self._needed)
        cache.mark_staged(self._needed[~self._is_held])

    def kept(self, server_round: int) -> Kept:
        """Return what the participation, in that round, will find of what it needs."""
        there = self._needed[np.isin(self._needed, self._cache.residents)]
        return Kept(server_round, there, self._residents)

    def staged(self, partition: int, server_round: int) -> Staged:
        """Return the counts of what was done, by that client for that round."""
        did = self._cache.stats - self._before
        read = dict(zip(_READ, self._read.tolist(), strict=True))
        held = int(np.count_nonzero(self._is_held))
        return Staged(
            partition=partition,
            server_round=server_round,
            needed_samples=len(self._needed),
            held_samples=held,
            staged_samples=len(self.kept(server_round).samples) - held,
            written_samples=did.written_samples,
            written_bytes=did.written_bytes,
            evicted_samples=did.evicted_samples,
            **read,
        )

    def _bring(self, missing: np.ndarray, limits: Limits) -> None:
        """Read samples, int64[k], in this order, and offer them to the cache."""
        data, pace, loader = self._data, self._pace, Loader(self._data)
        scratch = np.empty(data.scratch_bytes(AT_ONCE), np.uint8)
        while len(missing) and not limits.is_over():
            count = self._within(limits, missing[:AT_ONCE])
            if not count:
                break
            samples = missing[: self._with_room(missing[:count])]
            if not len(samples):  # but there may be for one that is smaller
                missing = self._smaller(missing)
                continue
            missing = missing[len(samples) :]
            began_s = pace.now_s()
            payloads = load_for_cache(samples, data, loader, scratch)
            read = self._work(samples)[:, :4].sum(axis=0)
            self._read += read
            read_samples, read_bytes, decoded_samples, decoded_bytes = read.tolist()
            pace.read_origin(read_samples, read_bytes, began_s)
            pace.decode(decoded_samples, decoded_bytes, pace.now_s())
            if not self._offer(payloads, scratch):
                break

    def _offer(self, payloads: Payloads, scratch: np.ndarray) -> bool:
        """Offer what could be read to the cache; returns whether it took any."""
        there = payloads.starts != UNREADABLE
        samples = payloads.samples[there]
        spans = payloads.starts[there], payloads.lengths[there], self._data.form.size_bytes[samples]
        cache, began_s = self._cache, self._pace.now_s()
        samples_before, bytes_before = cache.written
        try:
            taken = bool(cache.offer(samples, scratch, *spans).any())
        except StoreFull as error:
            logger.warning("staging ends: %s", error)
            taken = False
        samples_after, bytes_after = cache.written
        written = samples_after - samples_before, bytes_after - bytes_before
        self._pace.write_cache(*written, began_s)
        return taken

    def _within(self, limits: Limits, samples: np.ndarray) -> int:
        """Return how many of the samples can still be staged, from the first on.

        What would come of it is costed as the clock costs it, so that no rounding is beyond it.
        """
        before = self._before
        written = np.subtract(self._cache.written, (before.written_samples, before.written_bytes))
        work = np.concatenate([self._read, written]) + np.cumsum(self._work(samples), axis=0)
        reads, read_bytes, decodes, decoded_bytes, writes, written_bytes = work.T
        origin, decoded = (reads, read_bytes), (decodes, decoded_bytes)
        seconds = staging_s(origin, decoded, (writes, written_bytes), self._speeds)
        fits = (seconds <= limits.window_s) & (written_bytes <= limits.write_bytes)
        return int(np.count_nonzero(fits))  # both only grow

    def _with_room(self, samples: np.ndarray) -> int:
        """Return for how many of the samples the cache may make room, from the first on."""
        size_bytes = np.cumsum(self._data.form.size_bytes[samples])
        count = len(samples)
        while count and not self._cache.could_take(int(size_bytes[count - 1])):
            count -= 1
        return count

    def _smaller(self, samples: np.ndarray) -> np.ndarray:
        """Return those of the samples that are smaller than the first, int64[k]."""
        size_bytes = self._data.form.size_bytes[samples]
        smaller: np.ndarray = samples[size_bytes < size_bytes[0]]
        return smaller

    def _work(self, samples: np.ndarray) -> np.ndarray:
        """Return what staging each sample takes, int64[k, 6].

        Read from the origin, decoded, and written: how many, and their bytes.
        """
        data, one = self._data, np.ones(len(samples), np.int64)
        size_bytes, is_decoded = data.size_bytes[samples], data.form.prepared[samples] * one
        if not data.is_timed:
            is_decoded = 0 * one
        cached_bytes = data.form.size_bytes[samples]
        columns = one, size_bytes, is_decoded, is_decoded * size_bytes, one, cached_bytes
        return np.stack(columns, axis=1)
