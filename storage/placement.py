"""What comes into a cache and what leaves it, decided on the index alone."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from storage.errors import NoVictim
from storage.index import CacheIndex
from storage.layout import Layout, usable_bytes
from storage.offer import Offer, Plan
from storage.policy import Policy, Why
from storage.stats import CacheStats


class Placement:
    """The budget, the index and the policy of a cache; moves no payload.

    Every change keeps index.used_bytes <= usable_bytes, and is told to the policy and counted.
    """

    def __init__(self, budget_bytes: int, policy: Policy) -> None:
        if budget_bytes < 0:
            raise ValueError("a budget cannot be negative")
        self.budget_bytes = budget_bytes
        self.usable_bytes = usable_bytes(budget_bytes)
        self.policy = policy
        self.index = CacheIndex(policy.samples, Layout.for_budget(budget_bytes))
        self.stats = CacheStats()

    def decide(self, offer: Offer, plan: Plan) -> np.ndarray:
        """Take in what may come in, as if the samples came one by one.

        Args:
            offer: k samples.
            plan: where the changes are noted that the store has to make.

        Returns:
            Which samples were taken or there already, bool[k].
        """
        if len(offer.samples) == 1:
            return np.array([self._decide_one(offer, plan)])
        held = self.index.resident[offer.samples]
        same = held & self._is_same(offer)
        fresh = np.flatnonzero(~held)
        asked = fresh[offer.costs[fresh] <= self.usable_bytes]
        welcome = asked[self.policy.admit(offer.samples[asked], offer.sizes[asked])]
        taken: np.ndarray = same.copy()
        if (same == held).all() and self._take_at_once(offer, welcome, plan):
            taken[welcome] = True
            return taken
        admitted = np.zeros(len(held), dtype=bool)
        admitted[welcome] = True
        for row, sample in enumerate(offer.samples.tolist()):
            if self.index.resident[sample]:
                taken[row] = same[row] or self._take(offer, row, plan)
            else:
                taken[row] = (admitted[row] or (held[row] and self._admits(offer, row))) and (
                    self._take(offer, row, plan)
                )
        return taken

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

    def evict_for_room(self, need_bytes: int, plan: Plan) -> list[int]:
        """Evict until payloads of that charge, as they are stored, have left, or nothing is left.

        What the plan is about to put stays. Returns the victims.
        """
        index = self.index
        victims: list[int] = []
        with closing(self.policy.victims(None)) as order:
            for victim in order:
                if need_bytes <= 0:
                    break
                if not index.is_pinned(victim) and victim not in plan.puts:
                    victims.append(victim)
                    need_bytes -= index.layout.cost_of(index.length_bytes.item(victim))
            self.leave(np.array(victims, np.int64), "evicted")
        self.stats.evicted_for_room += len(victims)
        return victims

    def resize(self, budget_bytes: int) -> list[int]:
        """Take on another budget; returns the victims."""
        if budget_bytes < 0:
            raise ValueError("a budget cannot be negative")
        self.budget_bytes = budget_bytes
        self.usable_bytes = usable_bytes(budget_bytes)
        self.index.relayout(Layout.for_budget(budget_bytes))
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
        """Residents leave, each once, int64[k]."""
        before_bytes = self.index.resident_bytes
        self.index.remove(samples)
        if why == "evicted":
            self.stats.evicted_samples += len(samples)
            self.stats.evicted_bytes += before_bytes - self.index.resident_bytes
        self.policy.removed(samples, why)

    def _is_same(self, offer: Offer) -> np.ndarray:
        """Which rows are, to the byte, what a resident is, bool[k]; others may be anything."""
        index, samples = self.index, offer.samples
        same: np.ndarray = (
            (index.checksums[samples] == offer.checksums)
            & (index.length_bytes[samples] == offer.lengths)
            & (index.size_bytes[samples] == offer.sizes)
        )
        return same

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
            size, cost, size_of = -1, 0, index.size_bytes.item
            with closing(self.policy.victims(None)) as order:
                for victim in order:
                    if index.is_pinned(victim):
                        continue
                    if victim in offered:
                        return False
                    victims.append(victim)
                    if size_of(victim) != size:
                        size = size_of(victim)
                        cost = index.layout.cost_of(size)
                    short_bytes -= cost
                    if short_bytes <= 0:
                        break
                if short_bytes > 0 or not self.policy.outlasts(offer.samples[rows], victims[-1]):
                    return False
                self.leave(np.array(victims, np.int64), "evicted")
            plan.remove(victims)
        self._enter(offer, rows, plan)
        return True

    def _decide_one(self, offer: Offer, plan: Plan) -> bool:
        if self.index.resident[offer.samples.item()]:
            return bool(self._is_same(offer)[0]) or self._take(offer, 0, plan)
        fits = offer.costs.item() <= self.usable_bytes
        return fits and self._admits(offer, 0) and self._take(offer, 0, plan)

    def _admits(self, offer: Offer, row: int) -> bool:
        """Whether the policy admits one sample."""
        one = slice(row, row + 1)
        return bool(self.policy.admit(offer.samples[one], offer.sizes[one])[0])

    def _take(self, offer: Offer, row: int, plan: Plan) -> bool:
        """Make room for a sample and take it in; False when there is none to be made."""
        index, sample = self.index, int(offer.samples[row])
        if offer.costs[row] > self.usable_bytes:
            return False
        replaced = bool(index.resident[sample])
        held_bytes = index.cost_of(sample) if replaced else 0
        more_bytes = int(offer.costs[row]) - held_bytes
        try:
            plan.remove(self.evict(index.used_bytes + more_bytes - self.usable_bytes, sample))
        except NoVictim:
            self.stats.no_victim += self.policy.evicts
            return False
        if replaced:
            self.leave(offer.samples[row : row + 1], "overwritten")
            plan.remove([sample])
        self._enter(offer, np.array([row]), plan)
        return True

    def _enter(self, offer: Offer, rows: np.ndarray, plan: Plan) -> None:
        samples = offer.samples[rows]
        before_bytes = self.index.resident_bytes
        self.index.add(samples, offer.sizes[rows], offer.lengths[rows], offer.checksums[rows])
        self.policy.inserted(samples)
        self.stats.written_samples += len(rows)
        self.stats.written_bytes += self.index.resident_bytes - before_bytes
        plan.put(samples.tolist(), rows.tolist())
