"""What comes into a cache and what leaves it, decided on the index alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np

from storage.errors import NoVictim
from storage.index import CacheIndex
from storage.layout import cost, usable_bytes
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
        self.index = CacheIndex(policy.samples)
        self.stats = CacheStats()

    def decide(self, offer: Offer, plan: Plan, holds: Callable[[int], bool]) -> np.ndarray:
        """Take in what may come in, as if the samples came one by one.

        Args:
            offer: k samples.
            plan: where the changes are noted that the store has to make.
            holds: whether the store holds exactly what a row of the offer says.

        Returns:
            Which samples were taken or there already, bool[k].
        """
        index, usable = self.index, self.usable_bytes
        fresh = ~index.resident[offer.samples]
        asked = np.flatnonzero(fresh & (offer.costs <= usable))
        admitted = np.zeros(len(fresh), dtype=bool)
        admitted[asked] = self.policy.admit(offer.samples[asked], offer.sizes[asked])
        if admitted.all() and index.used_bytes + int(offer.costs.sum()) <= usable:
            self._enter(offer, np.arange(len(fresh)), plan)
            return admitted
        taken = np.zeros(len(fresh), dtype=bool)
        for row, sample in enumerate(offer.samples.tolist()):
            if index.resident[sample]:
                taken[row] = holds(row) or self._take(offer, row, plan)
            elif admitted[row] or (not fresh[row] and self._admits(offer, row)):
                taken[row] = self._take(offer, row, plan)
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
                if index.pins[victim] or victim == incoming:
                    continue
                victims.append(victim)
                short_bytes -= int(index.cost_bytes[victim])
                if short_bytes <= 0:
                    break
            else:
                raise NoVictim("the policy keeps what it has")
            self.leave(np.array(victims, np.int64), "evicted")
        return victims

    def evict_for_room(self, payload_bytes: int, plan: Plan) -> list[int]:
        """Evict until payloads of that charge, as they are stored, have left, or nothing is left.

        What the plan is about to put stays. Returns the victims.
        """
        index = self.index
        victims: list[int] = []
        with closing(self.policy.victims(None)) as order:
            for victim in order:
                if payload_bytes <= 0:
                    break
                if not index.pins[victim] and victim not in plan.puts:
                    victims.append(victim)
                    payload_bytes -= int(cost(index.length_bytes[victim]))
            self.leave(np.array(victims, np.int64), "evicted")
        self.stats.evicted_for_room += len(victims)
        return victims

    def shrink(self) -> list[int]:
        """Bring an index that was saved under a larger budget within this one."""
        short_bytes = self.index.used_bytes - self.usable_bytes
        try:
            return self.evict(short_bytes, None)
        except NoVictim:
            # The policy never evicts: the highest numbers go.
            highest = self.index.residents[::-1]
            freed = np.cumsum(self.index.cost_bytes[highest])
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

    def _admits(self, offer: Offer, row: int) -> bool:
        """Ask about one that was resident when the batch came and has made room since."""
        one = slice(row, row + 1)
        return bool(self.policy.admit(offer.samples[one], offer.sizes[one])[0])

    def _take(self, offer: Offer, row: int, plan: Plan) -> bool:
        """Make room for a sample and take it in; False when there is none to be made."""
        index, sample = self.index, int(offer.samples[row])
        if offer.costs[row] > self.usable_bytes:
            return False
        replaced = bool(index.resident[sample])
        held_bytes = int(index.cost_bytes[sample]) if replaced else 0
        more_bytes = int(offer.costs[row]) - held_bytes
        try:
            plan.remove(self.evict(index.used_bytes + more_bytes - self.usable_bytes, sample))
        except NoVictim:
            self.stats.no_victim += self.policy.evicts
            return False
        if replaced:
            self.leave(offer.samples[row : row + 1], "overwritten")
        self._enter(offer, np.array([row]), plan)
        return True

    def _enter(self, offer: Offer, rows: np.ndarray, plan: Plan) -> None:
        samples, sizes = offer.samples[rows], offer.sizes[rows]
        before_bytes = self.index.resident_bytes
        self.index.add(samples, sizes, offer.lengths[rows], offer.costs[rows])
        self.policy.inserted(samples)
        self.stats.written_samples += len(rows)
        self.stats.written_bytes += self.index.resident_bytes - before_bytes
        for sample, row in zip(samples.tolist(), rows.tolist(), strict=True):
            plan.put(sample, row)
