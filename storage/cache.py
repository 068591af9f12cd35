"""The sample cache: a byte budget over a store, filled and emptied by a policy."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from storage.custody import Custody
from storage.errors import NotAllowed
from storage.offer import Offer, Plan
from storage.placement import Placement
from storage.policy import Policy
from storage.read import Read, Status
from storage.recovery import recover
from storage.snapshot import Snapshot
from storage.store import Store

# Looking a member of an enumeration up takes longer than the read of a sample.
_MISS, _CORRUPT = int(Status.MISS), int(Status.CORRUPT)


class SampleCache:
    """Keeps payloads of samples 0..n-1 within a budget; the cache counts, the policy orders.

    Every sample is charged `layout.cost` of its declared size, and the charges of the residents
    never exceed `usable_bytes`. Offering a batch decides as if its samples were offered one by one.
    Decisions depend on requests, offers and sizes only, never on the store. All methods may be
    called from several threads; a forked child can read, and nothing else.

    Args:
        store: where payloads lie; what a saved cache left there is taken over (`storage.recovery`).
        budget_bytes: what the cache may take in all.
        policy: a fresh policy over the n samples.
    """

    def __init__(self, store: Store, budget_bytes: int, policy: Policy) -> None:
        self.store = store
        self.policy = policy
        self._placement = Placement(budget_bytes, policy)
        self._index = self._placement.index
        self.stats = self._placement.stats
        self._condition = recover(store, self._index, policy)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        self._custody = Custody(store, self._placement, self._condition)
        self._custody.remove(self._placement.shrink())
        self._condition.version = store.version()

    @property
    def budget_bytes(self) -> int:
        """What the cache may take in all."""
        return self._placement.budget_bytes

    @property
    def usable_bytes(self) -> int:
        """What the residents may be charged in all."""
        return self._placement.usable_bytes

    @property
    def used_bytes(self) -> int:
        """What the residents are charged."""
        return self._index.used_bytes

    @property
    def resident_bytes(self) -> int:
        """The declared sizes of the residents."""
        return self._index.resident_bytes

    @property
    def residents(self) -> np.ndarray:
        """The samples in the cache, ascending, int64[k]."""
        return self._index.residents

    @property
    def tag(self) -> int | None:
        """The number of the state that was saved or restored last."""
        return self._condition.tag

    @property
    def notes(self) -> dict[str, np.ndarray]:
        """What was saved or restored with that state, by name."""
        return dict(self._condition.notes)

    @property
    def is_current(self) -> bool:
        """Whether nothing has changed, here or in another process, since the last save."""
        return not self._closed and self.store.version() == self._condition.version

    @property
    def rebuilt(self) -> bool:
        """Whether the cache had to be emptied because it could not be trusted."""
        return bool(self._condition.rebuilt_reason)

    @property
    def rebuilt_reason(self) -> str:
        """Why it had to be emptied."""
        return self._condition.rebuilt_reason

    @property
    def missing(self) -> np.ndarray:
        """What the saved index named and the data lacked on opening, int64[k]."""
        return self._condition.missing

    @property
    def surplus(self) -> int:
        """How many samples on opening belonged to no saved state and were removed."""
        return self._condition.surplus

    def __len__(self) -> int:
        return self._index.count

    def __contains__(self, sample: object) -> bool:
        if not isinstance(sample, int | np.integer):
            return False
        return bool(0 <= sample < self.policy.samples and self._index.resident[sample])

    def read(self, samples: np.ndarray, buffer: np.ndarray) -> Read:
        """Copy what is cached into a buffer, and tell the policy.

        Args:
            samples: int64[k], in the order of use; may repeat.
            buffer: uint8[m], contiguous.

        Raises:
            ValueError: no such sample, or the buffer is too small for what is cached; nothing has
                changed then.
        """
        with self._lock:
            self._check_open()
            samples = self._numbers(samples)
            index = self._index
            rows = np.flatnonzero(index.resident[samples])
            found = samples[rows]
            lengths = index.length_bytes[found]
            used_bytes = int(lengths.sum())
            if used_bytes > len(buffer):
                raise ValueError(f"the buffer has {len(buffer)} bytes, {used_bytes} are needed")
            good = self._custody.get(found, lengths, buffer)
            status = np.full(len(samples), _MISS, np.uint8)
            status[rows] = index.staged[found]  # HIT is 0, STAGED 1
            damaged = found[:0]
            if not good.all():
                status[rows[~good]] = _CORRUPT
                damaged = found[~good]
                rows, found, lengths = rows[good], found[good], lengths[good]
                used_bytes = int(lengths.sum())
            served = np.zeros(len(samples), np.int64)
            served[rows] = lengths
            self._count_read(found, len(samples), len(damaged))
            self.policy.access(samples, status < _MISS)
            if len(damaged):
                self._custody.discard(damaged)
            return Read(samples, np.cumsum(served) - served, served, status, used_bytes)

    def offer(
        self,
        samples: np.ndarray,
        buffer: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        sizes: np.ndarray | None = None,
    ) -> np.ndarray:
        """Offer payloads, which the cache takes or not.

        A resident with the same payload and size stays as it is; another payload replaces it, and
        one that cannot be taken leaves the old one in place. Of a repeated sample the last counts.

        Args:
            samples: int64[k].
            buffer: uint8[m], contiguous, with the payloads.
            starts: where each begins, int64[k].
            lengths: its bytes, int64[k].
            sizes: the declared bytes to charge, int64[k]; the lengths when not given.

        Returns:
            Which were taken or there already, bool[k]. Room for a later sample of the batch may
            have cost an earlier one its place.

        Raises:
            ValueError: no such sample, or a payload outside the buffer; nothing has changed then.
            StoreFull: the store could not take what the budget allows, even after evictions; what
                it did take is resident.
        """
        with self._lock:
            self._check_writable()
            sizes = lengths if sizes is None else sizes
            samples = self._numbers(samples)
            if self._placement.is_full_for(samples, sizes):
                self.stats.rejected += len(samples)
                return np.zeros(len(samples), dtype=bool)
            offer = Offer.of(samples, buffer, starts, lengths, sizes)
            plan = Plan()
            taken = self._placement.decide(offer, plan, lambda row: self._holds(offer, row))
            if not self._custody.carry_out(offer, plan):
                taken[:] = False
            answer: np.ndarray = taken[offer.last_position]
            self.stats.rejected += len(answer) - int(np.count_nonzero(answer))
            return answer

    def evict(self, need_bytes: int) -> np.ndarray:
        """Evict until `need_bytes` of charge are free; returns the victims in order, int64[k].

        Raises:
            NoVictim: pins or the policy hold back too much; nothing has changed then.
        """
        with self._lock:
            self._check_writable()
            short_bytes = self.used_bytes + need_bytes - self.usable_bytes
            victims = self._placement.evict(short_bytes, None)
            self._custody.remove(victims)
            return np.array(victims, np.int64)

    def delete(self, samples: np.ndarray) -> None:
        """Remove samples, unknown ones ignored."""
        with self._lock:
            self._check_writable()
            samples = np.unique(self._numbers(samples))
            samples = samples[self._index.resident[samples]]
            self._placement.leave(samples, "deleted")
            self._custody.remove(samples.tolist())

    def pin(self, samples: np.ndarray) -> None:
        """Keep samples from being evicted until as many `unpin`s; they need not be resident."""
        with self._lock:
            self._index.pin(np.unique(self._numbers(samples)), 1)

    def unpin(self, samples: np.ndarray) -> None:
        """Take one pin off each sample."""
        with self._lock:
            self._index.pin(np.unique(self._numbers(samples)), -1)

    def mark_staged(self, samples: np.ndarray) -> None:
        """Mark residents as brought in ahead of their use, until they leave."""
        with self._lock:
            samples = self._numbers(samples)
            self._index.staged[samples[self._index.resident[samples]]] = True

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Hand the losses of a training step, float64[k], to the policy."""
        with self._lock:
            self.policy.feedback(self._numbers(samples), losses)
            self.stats.quarantined = self.policy.quarantined

    def save(self, tag: int, notes: Mapping[str, np.ndarray] | None = None) -> None:
        """Keep index and policy state, so that the cache can be reopened.

        Args:
            tag: the caller's number for this state.
            notes: named arrays of the caller's that belong to it.
        """
        with self._lock:
            self._check_writable()
            index, residents = self._index, self.residents
            snapshot = Snapshot(
                tag=tag,
                samples=self.policy.samples,
                policy=type(self.policy).__name__,
                residents=residents,
                sizes=index.size_bytes[residents],
                lengths=index.length_bytes[residents],
                staged=index.staged[residents],
                columns=self.policy.columns(),
                notes=dict(notes or {}),
            )
            self.store.save_index(snapshot.encode())
            self._condition.tag, self._condition.notes = tag, snapshot.notes
            self._condition.version = self.store.version()

    def share(self, store: Store) -> Self:
        """Another handle on the same cache, over another handle on the same store."""
        twin = copy.copy(self)
        twin.store = store
        twin._custody = self._custody.over(store)  # noqa: SLF001 - it is one of ours
        twin._closed = False  # noqa: SLF001 - it is one of ours
        return twin

    def close(self) -> None:
        """Give up this handle without saving; twice does no harm."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _holds(self, offer: Offer, row: int) -> bool:
        """Whether a resident is the same as what is offered, to the byte."""
        index, sample, length = self._index, offer.samples[row], offer.lengths[row]
        same_form = (
            index.length_bytes[sample] == length and index.size_bytes[sample] == offer.sizes[row]
        )
        if not same_form:
            return False
        held = np.empty(length, np.uint8)
        one = slice(row, row + 1)
        good = self._custody.get(offer.samples[one], offer.lengths[one], held)
        start = offer.starts[row]
        return bool(good[0]) and np.array_equal(held, offer.buffer[start : start + length])

    def _count_read(self, served: np.ndarray, requests: int, corrupt: int) -> None:
        stats = self.stats
        stats.requests += requests
        stats.hits += len(served)
        stats.misses += requests - len(served)
        stats.staged += int(np.count_nonzero(self._index.staged[served]))
        stats.corrupt += corrupt
        stats.hit_bytes += int(self._index.size_bytes[served].sum())

    def _numbers(self, samples: np.ndarray) -> np.ndarray:
        samples = np.asarray(samples, np.int64)
        if len(samples) and not 0 <= samples.min() <= samples.max() < self.policy.samples:
            raise ValueError(f"samples must be in 0..{self.policy.samples - 1}")
        return samples

    def _check_open(self) -> None:
        if self._closed:
            raise NotAllowed("this cache is closed: open it again")

    def _check_writable(self) -> None:
        self._check_open()
        if self._pid != os.getpid():
            raise NotAllowed("a forked process can only read this cache: open it there")
