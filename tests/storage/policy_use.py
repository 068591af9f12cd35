"""Any use of policies by a cache without payloads: whatever happens to one happens to all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import numpy as np

from storage import Policy
from storage.policy import Why
from storage.victim_queue import NOBODY

SAMPLES = 40
Answer = TypeVar("Answer")


class RandomUse:
    """Uses policies at random, all alike, and checks that they decide alike.

    Attributes:
        policies: they start alike; more may join.
        residents: who is cached, and what each is charged.
        pinned: residents that must not leave.
    """

    def __init__(self, policies: list[Policy], seed: int) -> None:
        self.policies = policies
        self.rng = np.random.default_rng(seed)
        self.is_equal = bool(self.rng.integers(2))
        self.residents: dict[int, int] = {}
        self.pinned: set[int] = set()
        self.set_capacity()

    def run(self, steps: int) -> None:
        acts: list[Callable[[], None]] = [self.delete, self.overwrite, self.pin, self.resize]
        for _ in range(steps):
            if self.rng.random() < 0.8:
                self.request()
            else:
                acts[self.rng.integers(len(acts))]()

    def some(self, most: int = 6) -> list[int]:
        weights = np.arange(1, SAMPLES + 1) ** -0.9
        count = self.rng.integers(1, most + 1)
        return self.rng.choice(SAMPLES, count, p=weights / weights.sum()).tolist()

    def request(self) -> None:
        """Read a batch, or nothing, and offer what is not there, or what nobody has asked for."""
        batch = self.some()
        if self.rng.random() < 0.9:
            hit = np.array([sample in self.residents for sample in batch])
            for policy in self.policies:
                policy.access(np.array(batch), hit)
        fresh = [sample for sample in dict.fromkeys(batch) if sample not in self.residents]
        costs = [self.a_cost() for _ in fresh]
        for policy in self.policies:
            policy.weigh(np.array(fresh, np.int64), np.array(costs, np.int64))
        if self.is_equal and not self.pinned and self.rng.integers(2):
            while fresh and self.free >= costs[0]:
                self.come_in(fresh.pop(0), costs[0], [])
            if fresh and self.residents:
                self.exchange(fresh, costs[0])
            return
        for sample, cost in zip(fresh, costs, strict=True):
            if cost <= self.capacity and (victims := self.make_room(sample, cost)) is not None:
                self.come_in(sample, cost, victims)

    def exchange(self, fresh: list[int], cost: int) -> None:
        left = agreed([policy.exchange(fresh) for policy in self.policies])
        for sample, victim in zip(fresh, left, strict=True):
            if victim != NOBODY:
                del self.residents[victim]
                self.residents[sample] = cost

    def make_room(self, sample: int | None, cost: int) -> list[int] | None:
        """Evict for so much; None when that cannot be."""
        answers = [self._evict(policy, sample, cost - self.free) for policy in self.policies]
        return agreed(answers)

    def _evict(self, policy: Policy, sample: int | None, short: int) -> list[int] | None:
        victims: list[int] = []
        with closing(policy.victims(sample)) as order:
            while short > 0:
                victim = next(order, NOBODY)
                if victim == NOBODY:
                    return None
                if victim not in self.pinned and victim != sample:
                    victims.append(victim)
                    short -= self.residents[victim]
            if victims:
                policy.removed(np.array(victims), "evicted")
        return victims

    def come_in(self, sample: int, cost: int, victims: list[int]) -> None:
        for victim in victims:
            del self.residents[victim]
        for policy in self.policies:
            policy.inserted(np.array([sample]))
        self.residents[sample] = cost

    def delete(self) -> None:
        whys: list[Why] = ["deleted", "corrupt", "evicted"]
        self.leave(self.some_residents(), whys[self.rng.integers(3)])

    def overwrite(self) -> None:
        for sample in self.some_residents()[:1]:
            cost = self.a_cost()
            for policy in self.policies:
                policy.weigh(np.array([sample]), np.array([cost]))
            grown = cost - self.residents[sample]
            victims = self.make_room(sample, grown) if cost <= self.capacity else None
            if victims is not None:
                for victim in victims:
                    del self.residents[victim]
                self.leave([sample], "overwritten")
                self.come_in(sample, cost, [])

    def leave(self, samples: list[int], why: Why) -> None:
        for policy in self.policies:
            policy.removed(np.array(samples, np.int64), why)
        for sample in samples:
            del self.residents[sample]
            self.pinned.discard(sample)

    def pin(self) -> None:
        self.pinned = set() if self.rng.integers(2) else set(self.some_residents())

    def resize(self) -> None:
        self.pinned = set()
        self.set_capacity()
        for victim in self.make_room(None, 0) or []:
            del self.residents[victim]

    def set_capacity(self) -> None:
        self.capacity = int(self.rng.integers(1, 12)) * 10
        for policy in self.policies:
            policy.capacity_bytes = self.capacity

    def a_cost(self) -> int:
        return 10 if self.is_equal else int(self.rng.integers(1, 31))

    def some_residents(self) -> list[int]:
        return [s for s in dict.fromkeys(self.some(SAMPLES)) if s in self.residents][:4]

    @property
    def free(self) -> int:
        return self.capacity - sum(self.residents.values())


def agreed(answers: list[Answer]) -> Answer:
    """The answer that all have given."""
    for answer in answers:
        assert answer == answers[0]
    return answers[0]


def order_of(policy: Policy) -> list[int]:
    """All victims in order; nobody leaves."""
    with closing(policy.victims(None)) as order:
        return list(order)
