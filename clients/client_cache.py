"""One client's cache, from one participation to the next: which state to go on from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from clients.client_data import ClientData
from clients.loading import UNREADABLE, Loader, load_for_cache
from clients.prepare import Federation
from clients.shelf import Shelf
from fedio.config import Experiment
from fedio.errors import RunError
from fedio.plugins import create
from fedio.runs import CACHES_FOLDER
from storage import MemoryStore, Policy, SampleCache, open_cache
from storage.errors import StoreFull
from storage.lmdb_store import INDEX_FILE
from storage.policies import POLICIES

logger = logging.getLogger(__name__)

LOADED_AT_ONCE = 64
"""So many samples are in memory at a time when a cache is filled, or lost ones are brought back."""

FIRST_TAG = 0
"""The tag of a state of before any round."""


def trained_tag(server_round: int) -> int:
    """Return the tag of the state after training a round."""
    return 2 * server_round


def staged_tag(server_round: int) -> int:
    """Return the tag of the state after staging for a round, which comes before training it."""
    return 2 * server_round - 1


class ClientCache:
    """Opens the cache of a client, on disk or in memory.

    Attributes:
        folder: where it lies on disk.
    """

    def __init__(
        self,
        experiment: Experiment,
        home: Path,
        federation: Federation,
        shelf: Shelf,
        partition: int,
        data: ClientData,
    ) -> None:
        """Get ready.

        Args:
            experiment: the experiment, of one arm.
            home: the folder under which the devices keep their caches.
            federation: its data.
            shelf: keeps caches open.
            partition: the client.
            data: its samples.
        """
        self._experiment, self._federation = experiment, federation
        self.folder = home / CACHES_FOLDER / str(partition)
        self._shelf, self._partition, self._data = shelf, partition, data
        self._identity = f"{federation.hash}/{partition}"
        if data.form.some_prepared:
            self._identity += f"/{np.packbits(data.form.prepared).tobytes().hex()}"
        self._payload_bytes = data.cached_length_bytes if federation.inflated else None
        self._memory: MemoryStore | None = None

    def newest(self) -> AbstractContextManager[SampleCache]:
        """Lend the cache in its newest state, to look at."""
        return self._shelf.take(self._partition, partial(self._open, None))

    @contextmanager
    def before(self, tag: int) -> Iterator[SampleCache]:
        """Lend the cache in the newest state with a lower tag, whole, to go on from there.

        What the state names and the data lack is read again, uncounted.
        """
        with self._shelf.take(self._partition, partial(self._open, tag), tag) as cache:
            self._refill(cache)
            yield cache

    def put_away(self) -> None:
        """Close it, if it is open."""
        self._shelf.put_away(self._partition)

    def _open(self, before: int | None) -> SampleCache:
        """Open it at its newest state before that tag; one that is warm is filled first."""
        cache = self._opened(before)
        begins = cache.tag is None and not cache.rebuilt  # one that was damaged begins empty
        if self._experiment.chosen.cache == "warm" and begins:
            with closing(cache):
                self._warm(cache)
            cache = self._opened(before)  # whose statistics know nothing of it
        return cache

    def _opened(self, before: int | None) -> SampleCache:
        settings = self._experiment.cache
        samples, chosen = len(self._data), self._experiment.chosen.policy
        policy: Policy = create(chosen, POLICIES, Policy, samples)  # type: ignore[type-abstract]
        if settings.store == "memory":
            if self._memory is None:
                self._memory = self._in_memory()
            return SampleCache(self._memory, self._data.budget_bytes, policy, before)
        return open_cache(
            self.folder,
            self._data.budget_bytes,
            policy,
            payload_bytes=self._payload_bytes,
            identity=self._identity,
            durable=settings.durable,
            before=before,
        )

    def _in_memory(self) -> MemoryStore:
        """Return a store whose states survive the end of the process, if the run is to."""
        if not self._experiment.engine.checkpoints:
            return MemoryStore()
        self.folder.mkdir(parents=True, exist_ok=True)
        return MemoryStore(self.folder / INDEX_FILE)

    def _warm(self, cache: SampleCache) -> None:
        """Bring in all samples, as fast as this machine can, and keep that as the first state.

        Raises:
            RunError: the policy does not want them all.
            StoreFull: there is no room for them on the disk.
        """
        own = self._federation.samples_of(self._partition)
        data = replace(self._data, origin=self._federation.train.origin.subset(own))
        for some, scratch, starts, lengths in _loaded(np.arange(len(data)), data):
            sizes = data.form.size_bytes[some]
            if not cache.offer(some, scratch, starts, lengths, sizes).all():
                arm = self._experiment.arm
                raise RunError(f"arm {arm}: its policy keeps samples out of a warm cache")
        cache.save(FIRST_TAG)

    def _refill(self, cache: SampleCache) -> None:
        """Bring back what is missing, as far as it can be read and there is room."""
        for some, *payloads in _loaded(cache.missing, self._data):
            try:
                cache.refill(some, *payloads)
            except StoreFull as error:
                logger.warning("partition %d: lost samples stay lost: %s", self._partition, error)
                return


def _loaded(
    samples: np.ndarray, data: ClientData
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Load samples, int64[k], in the form in which they are cached, some at a time.

    Yields those that can be read, the memory in which they are, where each begins, its length.
    """
    if not len(samples):
        return
    loader, scratch = Loader(data), np.empty(data.scratch_bytes(LOADED_AT_ONCE), np.uint8)
    for first in range(0, len(samples), LOADED_AT_ONCE):
        payloads = load_for_cache(samples[first : first + LOADED_AT_ONCE], data, loader, scratch)
        there = payloads.starts != UNREADABLE
        spans = payloads.starts[there], payloads.lengths[there]
        yield payloads.samples[there], scratch, *spans
