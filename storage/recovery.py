"""Opening a cache: the saved index and the data are compared, and made equal."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from storage.errors import CorruptCache
from storage.index import CacheIndex
from storage.layout import cost
from storage.policy import Policy
from storage.snapshot import Snapshot
from storage.store import Store

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Condition:
    """In which condition a cache is.

    Attributes:
        tag: the number of the state that was saved or restored last; None when there is none.
        notes: what the caller saved with that state.
        version: of the store when that state was saved or restored.
        rebuilt_reason: why the cache was emptied; "" when what it held could be trusted.
        missing: samples that the index named and the data lacked, int64[k]; they are gone.
        surplus: how many samples the data held and the index did not name; they were removed.
    """

    tag: int | None
    rebuilt_reason: str
    missing: np.ndarray
    surplus: int
    notes: dict[str, np.ndarray]
    version: object = None


def recover(store: Store, index: CacheIndex, policy: Policy) -> Condition:
    """Fill an empty index and a fresh policy from what is stored, or empty the store.

    Data are committed before the index is saved, so after a crash the data may be newer. What the
    index does not name belongs to no saved state and is removed; what it names and the data lack
    is forgotten and reported, so that the caller can bring it back.
    """
    condition = Condition(None, store.rebuilt_reason, np.empty(0, np.int64), 0, {})
    try:
        encoded = store.load_index()
        snapshot = None if encoded is None else Snapshot.decode(encoded)
        if snapshot is not None and snapshot.samples != policy.samples:
            raise CorruptCache(f"it was filled from {snapshot.samples} samples")
    except CorruptCache as error:
        condition.rebuilt_reason = condition.rebuilt_reason or str(error)
    if condition.rebuilt_reason:
        _log.warning("cache emptied, to be filled again: %s", condition.rebuilt_reason)
        store.clear()
    elif snapshot is None:
        condition.surplus = len(store.present()[0])
        if condition.surplus:
            _log.warning("cache emptied: its index was never saved")
            store.clear()
    else:
        condition.tag, condition.notes = snapshot.tag, snapshot.notes
        _restore(snapshot, store, index, policy, condition)
    return condition


def _restore(
    snapshot: Snapshot, store: Store, index: CacheIndex, policy: Policy, condition: Condition
) -> None:
    present, found = store.present()
    named = np.full(policy.samples, -1, np.int64)
    named[snapshot.residents] = snapshot.lengths
    known = present < policy.samples
    right = known.copy()
    right[known] = named[present[known]] == found[known]
    surplus = present[~right]
    kept = np.isin(snapshot.residents, present[right])
    condition.missing = snapshot.residents[~kept]
    condition.surplus = len(surplus)
    if len(surplus):
        store.write(surplus.tolist(), [], np.empty(0, np.uint8), [], [])
    if len(surplus) or len(condition.missing):
        _log.warning(
            "cache repaired: %d samples missing, %d removed that no saved state knows",
            len(condition.missing),
            len(surplus),
        )
    residents, sizes = snapshot.residents[kept], snapshot.sizes[kept]
    index.add(residents, sizes, snapshot.lengths[kept], cost(sizes))
    index.staged[residents] = snapshot.staged[kept]
    if snapshot.policy == type(policy).__name__:
        policy.restore(snapshot.columns)
        policy.removed(condition.missing, "corrupt")
    else:
        _log.info("cache saved under policy %s starts a new order", snapshot.policy)
        policy.inserted(residents)
