"""Opening a cache: a saved state is taken over as far as its payloads are still there."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np

from storage.errors import CorruptCache, NotAllowed
from storage.index import CacheIndex
from storage.policy import Policy
from storage.snapshot import Snapshot
from storage.store import Saved, Store

_log = logging.getLogger(__name__)

_CHECKED_AT_ONCE_BYTES = 4 << 20


@dataclass(slots=True)
class Condition:
    """In which condition a cache is.

    Attributes:
        tag: the number of the state that was saved or restored last; None when there is none.
        previous: that of the state before it.
        notes: what the caller saved with that state.
        rebuilt_reason: why the cache was emptied; "" when what it held could be trusted.
        missing: samples that the state names and the data lack, int64[k].
        owed: that state, while samples are missing that may still be brought back.
        version: of the store when that state was saved or restored.
        changed: residents have changed since.
    """

    tag: int | None = None
    previous: int | None = None
    notes: dict[str, np.ndarray] = field(default_factory=dict)
    rebuilt_reason: str = ""
    missing: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    owed: Snapshot | None = None
    version: object = None
    changed: bool = False


def recover(store: Store, index: CacheIndex, policy: Policy, before: int | None) -> Condition:
    """Fill an empty index and a fresh policy from what is stored, or empty the store.

    Payloads are stored before the state is saved, so after a crash, and when going back to an
    older state, the data are newer: then every payload is looked at. What the state names and the
    data lack is forgotten and reported, so that the caller can bring it back.

    Args:
        store: with a lock that the caller holds.
        index: to be filled.
        policy: to be filled.
        before: go back to the newest state with a tag below this one; None: to the newest.

    Raises:
        NotAllowed: no state that old is kept.
        CorruptCache: the store cannot be trusted, and is not to be changed.
    """
    condition = Condition(rebuilt_reason=store.rebuilt_reason)
    try:
        chosen = None if condition.rebuilt_reason else _choose(store, policy, before)
        if chosen is not None:
            saved, snapshot = chosen
            condition.tag, condition.previous = snapshot.tag, snapshot.previous
            condition.notes = snapshot.notes
            _restore(snapshot, _whole(saved, snapshot, store), index, policy, condition)
            if len(condition.missing):
                # What came later has driven out what was there then: no damage.
                level = logging.WARNING if before is None else logging.INFO
                _log.log(level, "cache repaired: %d samples are missing", len(condition.missing))
            return condition
    except CorruptCache as error:
        condition = Condition(rebuilt_reason=str(error))
    if condition.rebuilt_reason and not store.writable:
        raise CorruptCache(condition.rebuilt_reason)
    if condition.rebuilt_reason:
        _log.warning("cache emptied, to be filled again: %s", condition.rebuilt_reason)
        store.clear()
    return condition


def reinstate(
    index: CacheIndex, policy: Policy, snapshot: Snapshot, kept: np.ndarray, arrived: np.ndarray
) -> None:
    """Give a policy its state back.

    Args:
        index: knows the charges.
        policy: its state becomes that of the snapshot, if that was its own.
        snapshot: what was saved.
        kept: which of the snapshot's residents are there now, bool[k].
        arrived: those of them that were not before, int64[m].
    """
    policy.weigh(snapshot.residents[kept], index.costs(snapshot.residents[kept]))
    if snapshot.policy == kind_of(policy):
        # A policy may keep what it gets, and change it.
        policy.restore({name: column.copy() for name, column in snapshot.columns.items()})
        policy.removed(snapshot.residents[~kept], "corrupt")
    else:
        _log.info("cache saved under policy %s starts a new order", snapshot.policy)
        policy.inserted(arrived)
    index.staged[snapshot.residents[kept]] = snapshot.staged[kept]


def kind_of(policy: Policy) -> str:
    """Return what tells a policy's saved state from another's."""
    return f"{type(policy).__module__}.{type(policy).__qualname__}"


def _choose(store: Store, policy: Policy, before: int | None) -> tuple[Saved, Snapshot] | None:
    oldest: Snapshot | None = None
    for saved in store.saved():
        snapshot = Snapshot.decode(saved.index)
        if snapshot.samples != policy.samples:
            raise CorruptCache(f"it was filled from {snapshot.samples} samples")
        if before is None or snapshot.tag < before:
            return saved, snapshot
        oldest = snapshot
    if oldest is not None and oldest.previous is not None:
        raise NotAllowed(
            f"the cache keeps no state before {before}, the oldest is {oldest.tag}: delete it"
        )
    if oldest is not None:
        store.clear()
    return None


def _whole(saved: Saved, snapshot: Snapshot, store: Store) -> np.ndarray:
    """Which residents of a snapshot are in the store, as they were, bool[k]; the rest leaves it."""
    untouched = store.adopt(saved)
    residents = snapshot.residents
    held = np.zeros(snapshot.samples, dtype=bool)
    present = store.present()
    held[present[: np.searchsorted(present, snapshot.samples)]] = True
    there: np.ndarray = held[residents]
    if not untouched:
        rows = np.flatnonzero(there)
        lengths = snapshot.lengths[rows].astype(np.int64)
        bulks = np.cumsum(lengths) // _CHECKED_AT_ONCE_BYTES
        for bulk in np.unique(bulks):
            some = bulks == bulk
            part = rows[some]
            buffer = np.empty(int(lengths[some].sum()), np.uint8)
            there[part] = store.get(
                residents[part], lengths[some], snapshot.checksums[part], buffer
            )
    kept = np.count_nonzero(there)
    if kept < len(present):
        named = np.zeros(present[-1] + 1, dtype=bool)
        named[residents[there]] = True
        store.remove(present[~named[present]].tolist())
    return there


def _restore(
    snapshot: Snapshot, kept: np.ndarray, index: CacheIndex, policy: Policy, condition: Condition
) -> None:
    everything = np.count_nonzero(kept) == len(kept)
    rows = slice(None) if everything else kept
    if not everything:
        condition.missing = snapshot.residents[~kept]
        condition.owed = snapshot
    residents = snapshot.residents[rows]
    index.add(residents, snapshot.sizes[rows], snapshot.lengths[rows], snapshot.checksums[rows])
    reinstate(index, policy, snapshot, kept, residents)
