"""What comes into a cache and what leaves it, decided on the index alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import Self

import numpy as np

from storage.arguments import budget
from storage.errors import NoVictim
from storage.index import CacheIndex, Charges
from storage.layout import Layout, usable_bytes
from storage.offer import Offer, Plan
from storage.policy import Policy, Why
from storage.stats import CacheStats
from storage.victim_queue import NOBODY


class Placement:
    """The budget, the index and the policy of a cache; moves no payload.

    Every change keeps index.used_bytes <= usable_bytes, and is told to the policy and counted.

    Attributes:
        budget_bytes: what the cache may take in all.
        usable_bytes: what the residents may be charged in all.
    """

    def __init__(self, policy: Policy, usable_bytes: int, layout: Charges) -> None:
        self.policy = policy
        self.index = CacheIndex(policy.samples, layout)
        self.stats = CacheStats()
        self.budget_bytes = self.usable_bytes = policy.capacity_bytes = usable_bytes

    @classmethod
    def within(cls, budget_bytes: int, policy: Policy) -> Self:
        """Return the placement of a cache of that budget, as its file is charged."""
        layout = Layout.for_budget(budget(budget_bytes))
        placement = cls(policy, usable_bytes(budget_bytes), layout)
        placement.budget_bytes = budget_bytes
        return placement

    def decide(self, offer: Offer, plan: Plan) -> np.ndarray:
        """Take in what may come in, as if the samples came one by one.

        Args:
            offer: k samples.
            plan: where the changes are noted that the store has to make.

        Returns:
            Which samples were taken or there already, bool[k].
        """
        held = self.index.resident[offer.samples]
        same = held & self._is_same(offer)
        fresh = np.flatnonzero(~held)
        self.policy.weigh(offer.samples, offer.costs)
        asked = fresh[offer.costs[fresh] <= self.usable_bytes]
        welcome = asked[self.policy.checked_admit(offer.samples[asked], offer.sizes[asked])]
        taken: np.ndarray = same.copy()
        if (same == held).all():
            if not held.any() and self._exchange(offer, welcome, plan, taken):
                return taken
            if self._take_at_once(offer, welcome, plan):
                taken[welcome] = True
                return taken
        admitted = np.zeros(len(held), dtype=bool)
        admitted[welcome] = True
        for row, sample in enumerate(offer.samples.tolist()):
            if self.index.resident[sample]:
                taken[row] = same[row] or self._take_row(offer, row, plan)
            elif admitted[row] or (held[row] and self._admits(sample, int(offer.sizes[row]))):
                taken[row] = self._take_row(offer, row, plan)
        return taken

    def decide_one(
        self, sample: int, size_bytes: int, length_bytes: int, checksum: int
    ) -> list[int] | None:
        """Take in a sample, unless the very same is there; the same as `decide` for one.

        Returns:
            Who has to leave the store for it; None when it does not come in.
        """
        resident = self.index.resident.item(sample)
        if type(self.policy).weigh is not Policy.weigh:
            cost_bytes = self.index.layout.cost_of(size_bytes)
            self.policy.weigh(np.array([sample]), np.array([cost_bytes]))
        if not resident and not self._admits(sample, size_bytes):
            return None
        return self._take(sample, size_bytes, length_bytes, checksum)

    def is_full_for(self, samples: np.ndarray, sizes: np.ndarray) -> bool:
        """Whether none of these can come in: nothing ever leaves, and not one of them has room.

        A charge is never less than the size, so sizes (int64[k]) are enough to tell.
        """
        if self.policy.evicts or not len(sizes):
            return False
        room_bytes = self.usable_bytes - self.index.used_bytes
        return bool(sizes.min() > room_bytes) and not self.index.resident[samples].any()

    def evict(self, short_bytes: int, incoming: int | None) -> list[int]:
        """Evict `short_bytes` of charge in the policy's order, pinned and incoming ones skipped.

        Returns:
            The victims in order.

        Raises:
            NoVictim: pins or the policy hold back too much; nothing has changed then.
        """
        if short_bytes <= 0:
            return []
        index = self.index
        if index.used_bytes - index.pinned_bytes < short_bytes:
            raise NoVictim("everything that could leave is pinned")
        victims: list[int] = []
        with closing(self.policy.victims(incoming)) as order:
            for victim in order:
                if victim == incoming or index.is_pinned(victim):
                    continue
                victims.append(victim)
                short_bytes -= index.cost_of(victim)
                if short_bytes <= 0:
                    break
            else:
                raise NoVictim("the policy keeps what it has")
            self.leave(np.array(victims, np.int64), "evicted")
        return victims

    def evict_for_room(self, need_bytes: int, keep: Sequence[int]) -> list[int]:
        """Evict until payloads of that charge, as they are stored, have left, or nothing is left.

        Returns the victims; none of those to keep is one.
        """
        index, kept = self.index, set(keep)
        victims: list[int] = []
        with closing(self.policy.victims(None)) as order:
            for victim in order:
                if need_bytes <= 0:
                    break
                if not index.is_pinned(victim) and victim not in kept:
                    victims.append(victim)
                    need_bytes -= index.layout.cost_of(index.length_bytes.item(victim))
            self.leave(np.array(victims, np.int64), "evicted")
        self.stats.evicted_for_room += len(victims)
        return victims

    def resize(self, budget_bytes: int) -> list[int]:
        """Take on another budget; returns the victims."""
        self.budget_bytes = budget_bytes
        self.usable_bytes = self.policy.capacity_bytes = usable_bytes(budget_bytes)
        self.index.relayout(Layout.for_budget(budget_bytes))
        residents = self.index.residents
        self.policy.weigh(residents, self.index.costs(residents))
        return self.shrink()

    def shrink(self) -> list[int]:
        """Bring an index that was saved under a larger budget within this one."""
        short_bytes = self.index.used_bytes - self.usable_bytes
        try:
            return self.evict(short_bytes, None)
        except NoVictim:
            # The policy never evicts: the highest numbers go.
            highest = self.index.residents[::-1]
            sizes = self.index.size_bytes[highest].astype(np.int64)
            freed = np.cumsum(self.index.layout.cost(sizes))
            leaving = highest[: int(np.searchsorted(freed, short_bytes)) + 1]
            self.leave(leaving, "evicted")
            victims: list[int] = leaving.tolist()
            return victims

    def leave(self, samples: np.ndarray, why: Why) -> None:
        """Residents leave, each once, int64[k].

        Raises:
            ValueError: the policy named a victim that is none; nothing has changed then.
        """
        if why == "evicted":
            self._check_victims(samples)
        before_bytes = self.index.resident_bytes
        self.index.remove(samples)
        if why == "evicted":
            self.stats.evicted_samples += len(samples)
            self.stats.evicted_bytes += before_bytes - self.index.resident_bytes
        self.policy.removed(samples, why)

    def _check_victims(self, samples: np.ndarray) -> None:
        resident = self.index.resident
        if len(samples) == 1:
            are_victims = resident.item(samples.item())
        else:
            are_victims = len(samples) == len(set(samples.tolist())) and resident[samples].all()
        if not are_victims:
            who = type(self.policy).__name__
            raise ValueError(f"policy {who} named a victim twice, or one that is not cached")

    def _is_same(self, offer: Offer) -> np.ndarray:
        """Which rows are, to the byte, what a resident is, bool[k]; others may be anything."""
        index, samples = self.index, offer.samples
        same: np.ndarray = (
            (index.checksums[samples] == offer.checksums)
            & (index.length_bytes[samples] == offer.lengths)
            & (index.size_bytes[samples] == offer.sizes)
        )
        return same

    def _exchange(self, offer: Offer, rows: np.ndarray, plan: Plan, taken: np.ndarray) -> bool:
        """Take in rows that are not resident, if each costs as much as any resident.

        Args:
            offer: where the rows are.
            rows: int64[k].
            plan: where the changes are noted.
            taken: bool, set where a row was taken.
        """
        index = self.index
        cost_bytes = index.largest_cost_bytes
        if index.used_bytes != index.count * cost_bytes or index.has_pins or not index.count:
            return False
        if not self.policy.evicts or np.count_nonzero(offer.costs[rows] != cost_bytes):
            return False
        free = (self.usable_bytes - index.used_bytes) // cost_bytes
        if free:
            taken[rows[:free]] = True
            self._enter(offer, rows[:free], plan)
            rows = rows[free:]
        if len(rows):
            incoming = offer.samples[rows].tolist()
            left = self.policy.exchange(incoming)
            self._account(offer, dict(zip(incoming, rows.tolist(), strict=True)), left, plan)
            taken[rows] = np.array(left) != NOBODY
        return True

    def _account(self, offer: Offer, rows: dict[int, int], left: list[int], plan: Plan) -> None:
        """Bring index, counters and plan up to what a policy exchanged.

        Args:
            offer: what came.
            rows: of each incoming sample, its row.
            left: for each who left, or `NOBODY`.
            plan: where the changes are noted.
        """
        index, stats = self.index, self.stats
        if len(left) != len(rows):
            raise ValueError(f"policy {type(self.policy).__name__} gave {len(left)} victims")
        entered = [s for s, victim in zip(rows, left, strict=True) if victim != NOBODY]
        gone = set(left)
        stayed = [sample for sample in entered if sample not in gone]
        old = [victim for victim in left if victim != NOBODY and victim not in rows]
        passed = [rows[sample] for sample in entered if sample in gone]
        self._check_victims(np.array(old, np.int64))
        passed_bytes = int(offer.sizes[passed].sum())
        before_bytes = index.resident_bytes
        index.remove(np.array(old, np.int64))
        stats.evicted_samples += len(entered)
        stats.evicted_bytes += before_bytes - index.resident_bytes + passed_bytes
        before_bytes = index.resident_bytes
        kept = [rows[sample] for sample in stayed]
        index.add(*(column[kept] for column in offer.rows))
        stats.written_samples += len(entered)
        stats.written_bytes += index.resident_bytes - before_bytes + passed_bytes
        stats.no_victim += len(left) - len(entered)
        plan.remove(old)
        plan.put(stayed, kept)

    def _take_at_once(self, offer: Offer, rows: np.ndarray, plan: Plan) -> bool:
        """Take in rows that are not resident, if that equals taking them one by one.

        It does when none of them could be a victim for a later one, nor anybody whom the batch
        offers as well.
        """
        index = self.index
        short_bytes = index.used_bytes + int(offer.costs[rows].sum()) - self.usable_bytes
        if index.used_bytes - index.pinned_bytes < short_bytes:
            return False
        if short_bytes > 0:
            offered = set(offer.samples.tolist())
            victims: list[int] = []
            with closing(self.policy.victims(None)) as order:
                while short_bytes > 0:
                    # As many as are needed in any case, so that nobody is asked for in vain.
                    some = list(islice(order, 1 + (short_bytes - 1) // index.largest_cost_bytes))
                    if not some or not offered.isdisjoint(some):
                        return False
                    if index.pinned_bytes:
                        some = [victim for victim in some if not index.is_pinned(victim)]
                    victims += some
                    sizes = index.size_bytes[some].astype(np.int64)
                    short_bytes -= int(index.layout.cost(sizes).sum())
                if not self.policy.outlasts(offer.samples[rows], victims[-1]):
                    return False
                self.leave(np.array(victims, np.int64), "evicted")
            plan.remove(victims)
        self._enter(offer, rows, plan)
        return True

    def _admits(self, sample: int, size_bytes: int) -> bool:
        """Whether the policy admits one sample; most admit all, and need not be asked."""
        if type(self.policy).admit is Policy.admit:
            return True
        return bool(self.policy.checked_admit(np.array([sample]), np.array([size_bytes]))[0])

    def _take_row(self, offer: Offer, row: int, plan: Plan) -> bool:
        sample = int(offer.samples[row])
        spans = int(offer.sizes[row]), int(offer.lengths[row])
        removed = self._take(sample, *spans, int(offer.checksums[row]))
        if removed is None:
            return False
        plan.remove(removed)
        plan.put([sample], [row])
        return True

    def _take(
        self, sample: int, size_bytes: int, length_bytes: int, checksum: int
    ) -> list[int] | None:
        """Make room for a sample and take it in; None when there is none to be made."""
        index, stats = self.index, self.stats
        cost_bytes = index.layout.cost_of(size_bytes)
        if cost_bytes > self.usable_bytes:
            return None
        one = np.array([sample])
        replaced = index.resident.item(sample)
        held_bytes = index.cost_of(sample) if replaced else 0
        short_bytes = index.used_bytes + cost_bytes - held_bytes - self.usable_bytes
        try:
            removed = self.evict(short_bytes, sample)
        except NoVictim:
            stats.no_victim += self.policy.evicts
            return None
        if replaced:
            self.leave(one, "overwritten")
            removed.append(sample)
        index.enter(sample, size_bytes, length_bytes, checksum)
        self.policy.inserted(one)
        stats.written_samples += 1
        stats.written_bytes += size_bytes
        return removed

    def _enter(self, offer: Offer, rows: np.ndarray, plan: Plan) -> None:
        samples = offer.samples[rows]
        before_bytes = self.index.resident_bytes
        self.index.add(*(column[rows] for column in offer.rows))
        self.policy.inserted(samples)
        self.stats.written_samples += len(rows)
        self.stats.written_bytes += self.index.resident_bytes - before_bytes
        plan.put(samples.tolist(), rows.tolist())
