"""Custody: what a cache does to its store, and how both stay in step when the store fails."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from storage.errors import CorruptCache, StoreFull
from storage.offer import Offer, Plan
from storage.placement import Placement
from storage.recovery import Condition
from storage.store import Store

_log = logging.getLogger(__name__)


class Custody:
    """Moves payloads into and out of one store, for a placement that has decided about them.

    A store that is damaged as a whole is emptied, and the placement with it. A process that may
    only read changes neither.
    """

    def __init__(self, store: Store, placement: Placement, condition: Condition) -> None:
        """Take charge of a store.

        Args:
            store: where payloads lie.
            placement: index and policy, told of whatever leaves.
            condition: where it is noted that the store had to be emptied.
        """
        self._store = store
        self._placement = placement
        self._index = placement.index
        self._condition = condition
        self._pid = os.getpid()

    def over(self, store: Store) -> Self:
        """Return the same custody over another handle on the store."""
        twin = copy.copy(self)
        twin._store = store  # noqa: SLF001 - it is one of ours
        return twin

    def get(self, samples: np.ndarray, lengths: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        """Copy payloads back to back; see `Store.get`. None is there after a damage to them all."""
        try:
            return self._store.get(samples, lengths, self._index.checksums[samples], buffer)
        except CorruptCache as error:
            self._rebuild(str(error))
            return np.zeros(len(samples), dtype=bool)

    def get_one(self, sample: int, length: int, checksum: int) -> bytes | None:
        """The payload of one sample; see `Store.get_one`."""
        try:
            return self._store.get_one(sample, length, checksum)
        except CorruptCache as error:
            self._rebuild(str(error))
            return None

    def carry_out(self, offer: Offer, plan: Plan) -> bool:
        """Store a plan; see `replace`."""
        rows = list(plan.puts.values())
        starts, lengths = offer.starts[rows].tolist(), offer.lengths[rows].tolist()
        return self.replace(plan.removed, list(plan.puts), offer.buffer, starts, lengths)

    def replace(
        self,
        removed: Sequence[int],
        samples: Sequence[int],
        buffer: np.ndarray,
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> bool:
        """Take samples out of the store and put others in; False when the cache had to be emptied.

        When the store is full, it is tried once more after evictions.

        Raises:
            StoreFull: what was to be put is not resident.
        """
        try:
            self._store.remove(removed)
            if samples:
                try:
                    self._store.put(samples, buffer, starts, lengths)
                except StoreFull as error:
                    self._make_room(error.need_bytes, samples, lengths)
                    self._store.put(samples, buffer, starts, lengths)
        except CorruptCache as error:
            self._rebuild(str(error))
            return False
        except BaseException:
            self._placement.leave(np.array(samples, np.int64), "evicted")
            raise
        return True

    def remove(self, samples: Sequence[int]) -> None:
        """Take samples that have left the index out of the store too."""
        self._store.remove(samples)

    def discard(self, samples: np.ndarray) -> None:
        """Drop what did not read back; who may only read leaves that to others."""
        samples = np.unique(samples)
        samples = samples[self._index.resident[samples]]
        if self._may_change():
            _log.warning("%d cached samples were damaged and are dropped", len(samples))
            self._placement.leave(samples, "corrupt")
            self.remove(samples.tolist())

    def _make_room(self, need_bytes: int, samples: Sequence[int], lengths: Sequence[int]) -> None:
        need_bytes += 2 * sum(map(self._index.layout.cost_of, lengths))
        need_bytes += 4 * self._store.wanted.page_bytes
        victims = self._placement.evict_for_room(need_bytes, samples)
        _log.warning("the store is full below its budget: %d more evicted", len(victims))
        self._store.remove(victims)

    def _rebuild(self, reason: str) -> None:
        if self._may_change():
            _log.warning("cache emptied, to be filled again: %s", reason)
            self._condition.rebuilt_reason = reason
            self._placement.leave(self._index.residents, "corrupt")
            self._store.clear()

    def _may_change(self) -> bool:
        return self._store.writable and self._pid == os.getpid()
