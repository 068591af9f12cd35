"""Opening a cache by its folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from storage.cache import SampleCache
from storage.errors import NotAllowed
from storage.layout import map_bytes_for_budget, map_bytes_for_payloads
from storage.lmdb_store import LmdbStore
from storage.memory_store import MemoryStore
from storage.policy import Policy


def open_cache(
    path: str | os.PathLike[str] | None,
    budget_bytes: int,
    policy: Policy,
    *,
    payload_bytes: np.ndarray | None = None,
    identity: str = "",
    durable: bool = True,
) -> SampleCache:
    """Open the cache in a folder, or make it; without a folder, make one in memory.

    A folder that is open in this process already gives another handle on the same cache, which
    keeps its policy; `policy` must be of the same class then.

    Args:
        path: the folder.
        budget_bytes: what the cache may take.
        policy: a fresh policy over all samples.
        payload_bytes: where sizes are declared apart from the payloads, the real length of every
            payload, int64[n]: the file is made large enough for all of them. Without it, the file
            stays within the budget (from 1 MiB up).
        identity: names what the samples are (data set, client, form): a folder that was filled
            from other samples is emptied, never trusted.
        durable: `save` waits for the disk, so that it survives the loss of the machine; without it,
            it survives the end of the process, however that ends.

    Raises:
        NotAllowed: the folder cannot hold a cache, or it is open with another budget or policy.
    """
    if path is None:
        return SampleCache(MemoryStore(), budget_bytes, policy)
    if payload_bytes is None:
        map_bytes = map_bytes_for_budget(budget_bytes)
    else:
        map_bytes = map_bytes_for_payloads(payload_bytes)
    store = LmdbStore(Path(path), map_bytes, identity.encode(), durable=durable)
    try:
        live = store.owner
        if isinstance(live, SampleCache):
            return _join(live, store, budget_bytes, policy)
        store.owner = cache = SampleCache(store, budget_bytes, policy)
    except BaseException:
        store.close()
        raise
    return cache


def _join(live: SampleCache, store: LmdbStore, budget_bytes: int, policy: Policy) -> SampleCache:
    """Two caches over one file would not see each other's changes, so they are one."""
    same_policy = type(live.policy) is type(policy) and live.policy.samples == policy.samples
    if live.budget_bytes != budget_bytes or not same_policy:
        raise NotAllowed(f"the cache in {store.path} is open with another budget or policy")
    return live.share(store)
