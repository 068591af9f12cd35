"""The sample cache: a byte budget over a store, filled and emptied by a policy."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import numpy as np

from storage.arguments import budget, byte_counts, check_buffer, note, sample_numbers
from storage.checksum import digest
from storage.custody import Custody
from storage.errors import NotAllowed
from storage.layout import Layout
from storage.offer import Offer, Plan
from storage.placement import Placement
from storage.policy import Policy
from storage.read import Read, Status
from storage.read_log import ReadLog
from storage.recovery import kind_of, recover, reinstate
from storage.snapshot import Snapshot
from storage.stats import CacheStats
from storage.store import Store
from storage.substitution import how_served, with_stand_ins

# Looking a member of an enumeration up takes longer than the read of a sample.
_SUBSTITUTED, _MISS, _CORRUPT = map(int, (Status.SUBSTITUTED, Status.MISS, Status.CORRUPT))

_SETTLED_AT_ONCE = 4096
"""The policy is told of reads in bulk, before anything depends on it."""


class SampleCache:
    """Keeps payloads of samples 0..n-1 within a budget; the cache counts, the policy orders.

    Every sample is charged `Layout.cost` of its declared size, and the charges of the residents
    never exceed `usable_bytes`. Offering a batch decides as if its samples were offered one by one.
    Decisions depend on requests, offers and sizes only, never on the store. All methods may be
    called from several threads. Of several processes one at a time may change the cache, from its
    first change to its next `save` or `close`; the others, and forked children, can read.

    Args:
        store: where payloads lie; what a saved cache left there is taken over (`storage.recovery`).
        budget_bytes: what the cache may take in all.
        policy: a fresh policy over the n samples.
        before: go back to the newest saved state with a tag below this one; None: to the newest.
        recipe: opens the cache with a budget in another process, where a handle is unpickled.
    """

    def __init__(
        self,
        store: Store,
        budget_bytes: int,
        policy: Policy,
        before: int | None = None,
        recipe: Callable[[int], SampleCache] | None = None,
    ) -> None:
        self.store = store
        self._policy = policy
        self._placement = Placement.within(budget_bytes, policy)
        self._index = self._placement.index
        self._recipe = recipe
        self._lock = store.lock
        self._pid = os.getpid()
        self._closed = False
        self._log = ReadLog()
        with self._lock:
            self._condition = recover(store, self._index, policy, before)
            self._custody = Custody(store, self._placement, self._condition)
            self._condition.version = store.version()
            if store.writable:
                victims = self._placement.shrink()
                self._custody.remove(victims)
                if self._fit() or victims:
                    self._save_again()
                store.release_claim()
            self._condition.version = store.version()

    @property
    def policy(self) -> Policy:
        """What decides, told of all that has happened."""
        self._settle()
        return self._policy

    @property
    def stats(self) -> CacheStats:
        """What has been done."""
        self._settle()
        return self._placement.stats

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
    def written(self) -> tuple[int, int]:
        """How many samples, and how many of their bytes, have been written so far.

        The same as in `stats`, for next to nothing: the policy need not hear of reads for it.
        """
        with self._lock:
            stats = self._placement.stats
            return stats.written_samples, stats.written_bytes

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
        condition = self._condition
        with self._lock:
            clean = not (self._closed or condition.changed)
            return clean and self.store.version() == condition.version

    def is_outdated(self, store: Store) -> bool:
        """Whether another process has changed the cache, as a handle on its store sees it."""
        condition = self._condition
        with self._lock:
            return not condition.changed and store.version() != condition.version

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
        """What the saved state names and the data lack, int64[k]; see `refill`."""
        return self._condition.missing

    def __len__(self) -> int:
        return self._index.count

    def __contains__(self, sample: object) -> bool:
        if not isinstance(sample, int | np.integer):
            return False
        return bool(0 <= sample < self._policy.samples and self._index.resident[sample])

    def read(self, samples: np.ndarray, buffer: np.ndarray) -> Read:
        """Copy what is cached into a buffer, stand-ins too, and tell the policy.

        Args:
            samples: int64[k], in the order of use; may repeat.
            buffer: uint8[m], contiguous.

        Raises:
            ValueError: no such sample, or the buffer is too small for what is served; nothing has
                changed then.
        """
        with self._lock:
            self._check_open()
            samples = self._numbers(samples)
            check_buffer(buffer, writable=True)
            index, count, named = self._index, len(samples), samples
            resident = index.resident[samples]
            all_there = np.count_nonzero(resident) == count
            if not all_there and self._policy.substitutes:
                named = with_stand_ins(samples, index.resident, self.policy)
                resident = index.resident[named]
            found = named if all_there else named[resident]
            lengths = index.length_bytes[found].astype(np.int64)
            ends = lengths.cumsum()
            used_bytes = ends.item(-1) if len(ends) else 0
            if used_bytes > len(buffer):
                raise ValueError(f"the buffer has {len(buffer)} bytes, {used_bytes} are needed")
            good = self._custody.get(found, lengths, buffer)
            if all_there and np.count_nonzero(good) == count:
                status = index.staged[samples].view(np.uint8)  # HIT is 0, STAGED 1
                self._note(samples, status)
                return Read(samples, ends - lengths, lengths, status, used_bytes)
            return self._read_some(samples, named, resident, good)

    def get(self, sample: int) -> bytes | None:
        """The payload of one sample, or None; the policy is told."""
        with self._lock:
            if self._closed:
                self._check_open()
            sample = self._number(sample)
            index, status, payload = self._index, _MISS, None
            if index.resident.item(sample):
                payload = self._custody.get_one(
                    sample, index.length_bytes.item(sample), index.checksums.item(sample)
                )
                status = int(index.staged.item(sample)) if payload is not None else _CORRUPT
            self._log.note_one(sample, status)
            if status == _CORRUPT:
                self._settle()
                self._custody.discard(np.array([sample]))
            elif self._log.count >= _SETTLED_AT_ONCE:
                self._settle()
            return payload

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
            samples = self._numbers(samples)
            check_buffer(buffer, writable=False)
            starts, lengths = byte_counts(starts), byte_counts(lengths)
            sizes = lengths if sizes is None else byte_counts(sizes)
            stats = self._placement.stats
            if self._placement.is_full_for(samples, sizes):
                self._check_owner()
                stats.rejected += len(samples)
                return np.zeros(len(samples), dtype=bool)
            spans = starts, lengths, sizes
            offer, rows = Offer.of(samples, buffer, spans, self._index.layout, self.store.seed)
            self._begin_change()
            plan = Plan()
            taken = self._placement.decide(offer, plan)
            if not self._custody.carry_out(offer, plan):
                taken[:] = False
            answer: np.ndarray = taken[rows]
            stats.rejected += len(answer) - int(np.count_nonzero(answer))
            return answer

    def could_take(self, size_bytes: int) -> bool:
        """Whether a newcomer of that size can come in, as far as budget and pins go.

        What is free is room for it, and what is not pinned, unless the policy never evicts. False
        means that an offer of it is in vain; True leaves it to the policy.
        """
        size_bytes = operator.index(size_bytes)
        with self._lock:
            index, evicts = self._index, self._policy.evicts
            kept_bytes = index.pinned_bytes if evicts else index.used_bytes
            return index.layout.cost_of(size_bytes) <= self.usable_bytes - kept_bytes

    def put(self, sample: int, payload: bytes | bytearray | memoryview | np.ndarray) -> bool:
        """Offer the payload of one sample; returns whether the cache has it now."""
        content = np.frombuffer(payload, np.uint8)
        length = len(content)
        with self._lock:
            sample = self._number(sample)
            self._begin_change()
            checksum = digest(content.data, self.store.seed + sample)
            entry = sample, length, length, checksum
            if self._index.holds(*entry):
                return True
            removed = self._placement.decide_one(*entry)
            taken = removed is not None and self._custody.replace(
                removed, [sample], content, [0], [length]
            )
            self._placement.stats.rejected += not taken
            return taken

    def refill(
        self, samples: np.ndarray, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> None:
        """Bring back what is `missing`, to go on as if it had never been lost.

        To be called before anything else changes; no counter and no policy takes notice.

        Args:
            samples: missing ones, int64[k].
            buffer: uint8[m], contiguous, with the payloads.
            starts: where each begins, int64[k].
            lengths: its bytes, int64[k].

        Raises:
            ValueError: a sample is not missing, or the cache has changed since it was opened.
            StoreFull: the store could not take them; they are still missing.
        """
        samples = self._numbers(samples)
        check_buffer(buffer, writable=False)
        with self._lock:
            self._check_writable()
            owed = self._condition.owed
            if not len(samples):
                return
            if owed is None or not np.isin(samples, self.missing).all():
                raise ValueError("only what is missing can be brought back, before any change")
            rows = np.searchsorted(owed.residents, samples)
            sizes = owed.sizes[rows]
            spans = byte_counts(starts), byte_counts(lengths), sizes.astype(np.int64)
            offer, _ = Offer.of(samples, buffer, spans, self._index.layout, self.store.seed)
            self.store.put(
                offer.samples.tolist(), buffer, offer.starts.tolist(), offer.lengths.tolist()
            )
            self._index.add(offer.samples, offer.sizes, offer.lengths, offer.checksums)
            self._condition.missing = np.setdiff1d(self.missing, samples)
            kept = self._index.resident[owed.residents]
            reinstate(self._index, self._policy, owed, kept, offer.samples)

    def evict(self, need_bytes: int) -> np.ndarray:
        """Evict until `need_bytes` of charge are free; returns the victims in order, int64[k].

        Raises:
            NoVictim: pins or the policy hold back too much; nothing has changed then.
        """
        need_bytes = operator.index(need_bytes)
        with self._lock:
            self._begin_change()
            short_bytes = self.used_bytes + need_bytes - self.usable_bytes
            victims = self._placement.evict(short_bytes, None)
            self._custody.remove(victims)
            return np.array(victims, np.int64)

    def delete(self, samples: np.ndarray) -> None:
        """Remove samples, unknown ones ignored."""
        with self._lock:
            samples = np.unique(self._numbers(samples))
            self._begin_change()
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
            self._settle()
            self._index.staged[samples[self._index.resident[samples]]] = True

    def unmark_staged(self, samples: np.ndarray) -> None:
        """Take that mark off again, as if they had come in when they were used."""
        with self._lock:
            self._index.staged[self._numbers(samples)] = False

    def plan(self, order: np.ndarray) -> None:
        """Tell the policy what is going to be read from now on, int64[m], in this order."""
        with self._lock:
            self.policy.plan(self._numbers(order))

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Hand the losses of a training step, float64[k], to the policy."""
        with self._lock:
            self.policy.feedback(self._numbers(samples), losses)
            self._placement.stats.quarantined = self._policy.quarantined

    def save(self, tag: int, notes: Mapping[str, np.ndarray] | None = None) -> None:
        """Keep index and policy state, so that the cache can be reopened.

        Args:
            tag: the caller's number for this state.
            notes: named arrays of the caller's that belong to it, of numbers or text.

        Raises:
            StoreFull: the disk took no more; the state saved before is still in force.
            TypeError: the tag is no integer, or a note no such array.
        """
        tag = operator.index(tag)
        kept = {name: note(name, value) for name, value in (notes or {}).items()}
        with self._lock:
            self._begin_change()
            index, residents, policy = self._index, self.residents, self._policy
            condition = self._condition
            if tag != condition.tag:
                condition.tag, condition.previous = tag, condition.tag
            condition.notes = kept
            snapshot = Snapshot(
                tag=tag,
                previous=condition.previous,
                samples=policy.samples,
                policy=kind_of(policy),
                residents=residents,
                sizes=index.size_bytes[residents],
                lengths=index.length_bytes[residents],
                checksums=index.checksums[residents],
                staged=index.staged[residents],
                columns=policy.columns(),
                notes=condition.notes,
            )
            self.store.save(snapshot.encode())
            condition.version, condition.changed = self.store.version(), False
            self.store.release_claim()

    def resize(self, budget_bytes: int) -> np.ndarray:
        """Change the budget, and evict what it does not allow for.

        Where the file is charged its real bytes, it is within the new budget when this returns.
        What was saved is saved again, unless the cache has changed since.

        Returns:
            The victims in order, int64[k].
        """
        budget_bytes = budget(budget_bytes)
        with self._lock:
            current = self.is_current
            self._begin_change()
            if self.store.wanted == Layout.for_budget(self.budget_bytes):
                self.store.wanted = Layout.for_budget(budget_bytes)
            victims = self._placement.resize(budget_bytes)
            self._custody.remove(victims)
            self._fit()
            if current:
                self._save_again()
            return np.array(victims, np.int64)

    def compact(self) -> int:
        """Give space of the file back that no resident needs.

        What was saved is saved again, unless the cache has changed since.

        Returns:
            How many bytes the file is smaller.
        """
        with self._lock:
            current = self.is_current
            self._begin_change()
            given_back_bytes = self.store.compact()
            if current:
                self._save_again()
            return given_back_bytes

    def share(self, store: Store) -> Self:
        """Another handle on the same cache, over another handle on the same store."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.store = store
        twin._custody = self._custody.over(store)
        twin._closed = False
        return twin

    def close(self) -> None:
        """Give up this handle without saving; twice does no harm."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.store.close()

    def __reduce__(self) -> tuple[Callable[[int], SampleCache], tuple[int]]:
        """Another process opens the cache anew, as it was saved; see `open_cache`."""
        if self._recipe is None:
            raise TypeError("a cache that was not opened with open_cache cannot be pickled")
        return self._recipe, (self.budget_bytes,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _fit(self) -> bool:
        """Let the store take on the layout that is wanted; returns whether that moved payloads."""
        index, residents = self._index, self.residents
        lengths = index.length_bytes[residents].astype(np.int64)
        moved = self.store.fit(residents, lengths, index.checksums[residents])
        if moved:
            there = np.isin(residents, self.store.present(), assume_unique=True)
            self._placement.leave(residents[~there], "corrupt")
        return moved

    def _save_again(self) -> None:
        if self.tag is not None:
            self.save(self.tag, self.notes)

    def _read_some(
        self, samples: np.ndarray, named: np.ndarray, there: np.ndarray, good: np.ndarray
    ) -> Read:
        """The answer when not everything is there; the good payloads lie back to back.

        What was looked for is `named`; `there` says who of it is resident, `good` whose payload.
        """
        index, served = self._index, there
        all_good = np.count_nonzero(good) == len(good)
        if not all_good:
            served = there.copy()
            served[there] = good
        status = how_served(samples, named, there, served, index.staged)
        lengths = index.length_bytes[named] * served.astype(np.int64)
        ends = lengths.cumsum()
        self._note(samples, status)
        if not all_good:
            self._settle()
            self._custody.discard(named[there][~good])
        if named is not samples:
            stood_in = named[status == _SUBSTITUTED]
            self._placement.stats.hit_bytes += int(index.size_bytes[stood_in].sum(dtype=np.int64))
            named = np.where(served, named, samples)
        return Read(named, ends - lengths, lengths, status, ends.item(-1))

    def _note(self, samples: np.ndarray, status: np.ndarray) -> None:
        self._log.note(samples, status)
        if self._log.count >= _SETTLED_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        """Tell counters and policy what was read since the last time."""
        with self._lock:
            if not self._log.count:
                return
            samples, status = self._log.take()
            hit = status < _SUBSTITUTED
            stats = self._placement.stats
            stats.count(status)
            stats.hit_bytes += int(self._index.size_bytes[samples[hit]].sum(dtype=np.int64))
            self._policy.access(samples, hit)

    def _numbers(self, samples: np.ndarray) -> np.ndarray:
        return sample_numbers(samples, self._policy.samples)

    def _number(self, sample: int) -> int:
        number = operator.index(sample)
        if not 0 <= number < self._policy.samples:
            raise ValueError(f"samples must be in 0..{self._policy.samples - 1}")
        return number

    def _check_open(self) -> None:
        if self._closed:
            raise NotAllowed("this cache is closed: open it again")

    def _check_owner(self) -> None:
        self._check_open()
        if self._pid != os.getpid():
            raise NotAllowed("a forked process can only read this cache: open it there")
        if not self.store.writable:
            raise NotAllowed("this cache is open read-only: open it for writing")

    def _check_writable(self) -> None:
        self._check_owner()
        if self.store.claim() and self.store.version() != self._condition.version:
            self.store.release_claim()
            raise NotAllowed("another process has changed this cache: open it again")

    def _begin_change(self) -> None:
        """The policy knows all reads, nobody else changes the store, and nothing is owed now."""
        self._check_writable()
        self._settle()
        self._condition.owed, self._condition.changed = None, True
