"""Custody: what a cache does to its store, and how both stay in step when the store fails."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from storage.errors import CorruptCache, StoreFull
from storage.layout import cost
from storage.offer import Offer, Plan
from storage.placement import Placement
from storage.recovery import Condition
from storage.store import Store

_log = logging.getLogger(__name__)

_NOTHING = np.empty(0, np.uint8)


class Custody:
    """Moves payloads into and out of one store, for a placement that has decided about them.

    A store that is damaged as a whole is emptied, and the placement with it. A forked child changes
    neither: it leaves that to its parent.
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
            return self._store.get(samples, lengths, buffer)
        except CorruptCache as error:
            self._rebuild(str(error))
            return np.zeros(len(samples), dtype=bool)

    def carry_out(self, offer: Offer, plan: Plan) -> bool:
        """Store a plan in transactions of bounded size; False when the cache had to be emptied."""
        if self._condition.rebuilt_reason:
            plan.keep(self._index.resident)
        try:
            for removed, rows in plan.groups(offer.lengths, self._store.transaction_pages):
                self._write(removed, offer, rows, plan)
        except CorruptCache as error:
            self._rebuild(str(error))
            return False
        except BaseException:
            self._reconcile()
            raise
        return True

    def remove(self, samples: Sequence[int]) -> None:
        """Take samples that have left the index out of the store too."""
        if not samples:
            return
        try:
            self._store.write(samples, [], _NOTHING, [], [])
        except CorruptCache as error:
            self._rebuild(str(error))

    def discard(self, samples: np.ndarray) -> None:
        """Drop what did not read back; a forked child leaves that to its parent."""
        samples = np.unique(samples)
        samples = samples[self._index.resident[samples]]
        if self._pid == os.getpid():
            _log.warning("%d cached samples were damaged and are dropped", len(samples))
            self._placement.leave(samples, "corrupt")
            self.remove(samples.tolist())

    def _write(self, removed: list[int], offer: Offer, rows: list[int], plan: Plan) -> None:
        """One transaction; when the store is full, another one after evictions."""
        puts = (
            offer.samples[rows].tolist(),
            offer.buffer,
            offer.starts[rows].tolist(),
            offer.lengths[rows].tolist(),
        )
        try:
            self._store.write(removed, *puts)
        except StoreFull:
            need = int(cost(offer.lengths[rows]).sum())
            victims = self._placement.evict_for_room(need, plan)
            _log.warning("the store is full below its budget: %d more evicted", len(victims))
            self._store.write([*removed, *victims], *puts)

    def _reconcile(self) -> None:
        """After a failure: the index forgets what the store does not have, and the reverse."""
        residents = self._index.residents
        there = np.zeros(self._placement.policy.samples, dtype=bool)
        there[self._store.present()[0]] = True
        gone = residents[~there[residents]]
        self._placement.leave(gone, "evicted")
        self.remove(np.flatnonzero(there & ~self._index.resident).tolist())

    def _rebuild(self, reason: str) -> None:
        if self._pid == os.getpid():
            _log.warning("cache emptied, to be filled again: %s", reason)
            self._condition.rebuilt_reason = reason
            self._placement.leave(self._index.residents, "corrupt")
            self._store.clear()
