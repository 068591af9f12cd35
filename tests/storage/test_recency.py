"""LRU and FIFO name who was touched longest ago, whatever came of the log meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.policies import FIFO, LRU
from storage.policies import recency as module
from storage.policies.recency import Recency

SAMPLES = 10


class Model:
    """Numbers in a dictionary, and a full sort."""

    def __init__(self, *, uses_count: bool) -> None:
        self.numbers: dict[int, int] = {}
        self.cached: set[int] = set()
        self.count = 0
        self.uses_count = uses_count

    def touch(self, sample: int) -> None:
        self.count += 1
        self.numbers[sample] = self.count

    def access(self, batch: list[int]) -> None:
        for sample in batch if self.uses_count else []:
            self.touch(sample)

    def insert(self, sample: int) -> None:
        if not self.numbers.get(sample):
            self.touch(sample)
        self.cached.add(sample)

    def remove(self, sample: int, why: str) -> None:
        self.cached.discard(sample)
        if why != "overwritten" or not self.uses_count:
            self.numbers[sample] = 0

    def order(self) -> list[int]:
        return sorted(self.cached, key=self.numbers.__getitem__)


class Pair:
    """A policy and the model, and what can happen to both."""

    def __init__(self, kind: type[Recency], data: st.DataObject) -> None:
        self.policy, self.model, self.data = kind(SAMPLES), Model(uses_count=kind is LRU), data

    def access(self) -> None:
        batch = self.data.draw(st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=6))
        self.policy.access(np.array(batch), np.zeros(len(batch), dtype=bool))
        self.model.access(batch)

    def insert(self) -> None:
        new = self._some(set(range(SAMPLES)) - self.model.cached)
        self.policy.inserted(np.array(new, np.int64))
        for sample in new:
            self.model.insert(sample)

    def remove(self) -> None:
        gone = self._some(self.model.cached)
        why = self.data.draw(st.sampled_from(["evicted", "overwritten", "deleted"]))
        self.policy.removed(np.array(gone, np.int64), why)
        for sample in gone:
            self.model.remove(sample, why)

    def exchange(self) -> None:
        new = self._some(set(range(SAMPLES)) - self.model.cached)
        if new and self.model.cached:
            expected = []
            for sample in new:
                expected.append(self.model.order()[0])
                self.model.remove(expected[-1], "evicted")
                self.model.insert(sample)
            assert self.policy.exchange(new) == expected

    def restore(self) -> None:
        columns = {name: column.copy() for name, column in self.policy.columns().items()}
        self.policy = type(self.policy)(SAMPLES)
        self.policy.restore(columns)

    def compare(self) -> None:
        assert list(self.policy.victims(None)) == self.model.order()

    def _some(self, samples: set[int]) -> list[int]:
        return self.data.draw(st.permutations(sorted(samples)))[:3]


@pytest.mark.parametrize("kind", [LRU, FIFO])
@pytest.mark.parametrize("shortest_log", [0, 6, 1024])
@given(data=st.data())
def test_any_history_leaves_the_order_of_a_full_sort(
    kind: type[Recency], shortest_log: int, data: st.DataObject
) -> None:
    pair = Pair(kind, data)
    changes = [pair.access, pair.insert, pair.remove, pair.exchange, pair.restore, pair.compare]
    with patch.object(module, "_SHORTEST_LOG", shortest_log):
        for change in data.draw(st.lists(st.sampled_from(changes), max_size=25)):
            change()
        pair.compare()


class Reversed(LRU):
    """Evicts what was used last."""

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        yield from list(super().victims(incoming))[::-1]


def test_a_subclass_with_an_order_of_its_own_is_asked_for_it() -> None:
    policy = Reversed(9)
    policy.access(np.array([3, 4, 5]), np.zeros(3, dtype=bool))
    policy.inserted(np.array([3, 4, 5]))
    assert policy.exchange([6, 7]) == [5, 6]
    assert not policy.outlasts(np.array([8]), 3)


def test_a_log_takes_few_bytes_per_resident() -> None:
    policy = LRU(100_000)
    for first in range(0, 1_000_000, 1000):
        batch = np.arange(first, first + 1000) % 5000
        policy.access(batch, np.ones(1000, dtype=bool))
        if first == 4000:
            policy.inserted(np.arange(5000))
        next(policy.victims(None), None)
    assert len(policy._log) <= 100_000 // 8
