"""Opening a cache by its folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storage.arguments import budget, byte_counts
from storage.cache import SampleCache
from storage.errors import NotAllowed
from storage.layout import Layout
from storage.lmdb_store import LmdbStore
from storage.memory_store import MemoryStore
from storage.policy import Policy


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a cache in a folder is opened; what another process gets in place of a handle."""

    path: str
    budget_bytes: int
    policy: Callable[[], Policy]
    layout: Layout
    identity: bytes
    durable: bool
    read_only: bool

    def open(self, budget_bytes: int) -> SampleCache:
        """Open it with a budget, at the newest saved state."""
        recipe = self
        if self.layout == Layout.for_budget(self.budget_bytes):
            recipe = replace(self, layout=Layout.for_budget(budget_bytes))
        return replace(recipe, budget_bytes=budget_bytes).open_with(self.policy(), None)

    def open_with(self, policy: Policy, before: int | None) -> SampleCache:
        """Open it with a fresh policy, at the newest state with a tag below `before`."""
        store = LmdbStore(
            self.path, self.layout, self.identity, durable=self.durable, read_only=self.read_only
        )
        try:
            with store.lock:
                live = store.owner
                if isinstance(live, SampleCache) and not live.is_outdated(store):
                    return self._join(live, store, policy)
                cache = SampleCache(store, self.budget_bytes, policy, before, recipe=self.open)
                store.owner = cache
        except BaseException:
            store.close()
            raise
        return cache

    def _join(self, live: SampleCache, store: LmdbStore, policy: Policy) -> SampleCache:
        """Two caches over one file would not see each other's changes, so they are one."""
        known = live.policy
        same_policy = type(known) is type(policy) and known.samples == policy.samples
        if live.budget_bytes != self.budget_bytes or not same_policy:
            raise NotAllowed(f"the cache in {store.path} is open with another budget or policy")
        return live.share(store)


def open_cache(  # noqa: PLR0913 - options, by name
    path: str | os.PathLike[str] | None,
    budget_bytes: int,
    policy: Policy,
    *,
    payload_bytes: np.ndarray | None = None,
    identity: str = "",
    durable: bool = True,
    read_only: bool = False,
    before: int | None = None,
) -> SampleCache:
    """Open the cache in a folder, or make it; without a folder, make one in memory.

    A folder that is open in this process already gives another handle on the same cache, which
    keeps its policy; `policy` must be of the same class then. Handles that another process has
    outdated can only read. A handle can be pickled: where it is
    unpickled, the cache is opened anew, as it was saved last.

    Args:
        path: the folder.
        budget_bytes: what the cache may take; when it held more, it evicts.
        policy: a fresh policy over all samples.
        payload_bytes: where sizes are declared apart from the payloads, the real length of every
            payload, int64[n]: the file is made large enough for all of them. Without it, the file
            stays within the budget (from 1 MiB up).
        identity: names what the samples are (data set, client, form): a folder that was filled
            from other samples is emptied, never trusted.
        durable: `save` waits for the disk, so that it survives the loss of the machine, as long as
            nothing is changed after it; without it, it survives the end of the process, however
            that ends.
        read_only: nothing is changed, not even to repair; the medium may be one that cannot be.
        before: go back to the newest saved state with a tag below this one; None: to the newest.
            At least the three newest states are kept.

    Raises:
        NotAllowed: the folder cannot hold a cache, it is open with another budget or policy, or
            it keeps no state before `before`.
        CorruptCache: the cache cannot be trusted, and is `read_only`.
    """
    budget_bytes = budget(budget_bytes)
    if path is None:
        return SampleCache(MemoryStore(), budget_bytes, policy, before)
    if payload_bytes is None:
        layout = Layout.for_budget(budget_bytes)
    else:
        layout = Layout.for_payloads(byte_counts(payload_bytes))
    recipe = Recipe(
        path=str(Path(path).absolute()),
        budget_bytes=budget_bytes,
        policy=policy.fresh(),
        layout=layout,
        identity=identity.encode(),
        durable=durable,
        read_only=read_only,
    )
    return recipe.open_with(policy, before)
