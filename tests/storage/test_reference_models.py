"""FIFO, LRU and LFU name the same victims in the same order as models of twenty lines (S22)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Policy
from storage.policies import FIFO, LFU, LRU
from storage.victim_queue import NOBODY

SAMPLES = 12
SOME = st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=6)
TRACES = st.lists(
    st.tuples(st.sampled_from(["request", "request", "request", "stage", "delete"]), SOME),
    min_size=1,
    max_size=40,
)


class Model:
    """Of each sample the uses, and the numbers of its last use and of its arrival."""

    def __init__(self, key: str, *, is_choosy: bool = False) -> None:
        self.key, self.is_choosy = key, is_choosy
        self.now = 0
        self.rows: dict[int, dict[str, int]] = {}
        self.cached: set[int] = set()

    def use(self, sample: int) -> None:
        self.now += 1
        row = self.rows.setdefault(sample, {"uses": 0})
        row |= {"uses": row["uses"] + 1, "used": self.now}

    def arrive(self, sample: int) -> None:
        if sample not in self.rows:
            self.use(sample)
        self.now += 1
        self.rows[sample]["arrived"] = self.now
        self.cached.add(sample)

    def leave(self, sample: int) -> None:
        self.cached.remove(sample)
        if not self.is_choosy:
            del self.rows[sample]

    def order(self) -> list[int]:
        return sorted(self.cached, key=lambda s: [self.rows[s][k] for k in self.key.split()])

    def exchange(self, sample: int) -> int:
        first = self.order()[0]
        uses = self.rows.get(sample, {"uses": 1})["uses"]
        if self.is_choosy and uses <= self.rows[first]["uses"]:
            return NOBODY
        self.leave(first)
        self.arrive(sample)
        return first


MODELS: dict[str, tuple[Callable[[], Policy], Callable[[], Model]]] = {
    "fifo": (lambda: FIFO(SAMPLES), lambda: Model("arrived")),
    "lru": (lambda: LRU(SAMPLES), lambda: Model("used")),
    "lfu": (lambda: LFU(SAMPLES), lambda: Model("uses used")),
    "choosy lfu": (
        lambda: LFU(SAMPLES, admission="more used"),
        lambda: Model("uses used", is_choosy=True),
    ),
}


def victims(policy: Policy, count: int) -> list[int]:
    with closing(policy.victims(None)) as order:
        return list(islice(order, count))


@pytest.mark.parametrize("name", MODELS)
@given(trace=TRACES, slots=st.integers(1, 8), data=st.data())
def test_the_same_victims_in_the_same_order(
    name: str, trace: list[tuple[str, list[int]]], slots: int, data: st.DataObject
) -> None:
    policy, model = (make() for make in MODELS[name])
    for what, some in trace:
        if what == "delete":
            leaving = [sample for sample in dict.fromkeys(some) if sample in model.cached]
            policy.removed(np.array(leaving, np.int64), "deleted")
            for sample in leaving:
                model.leave(sample)
            continue
        if what == "request":
            policy.access(np.array(some), np.array([sample in model.cached for sample in some]))
            for sample in some:
                model.use(sample)
        fresh = [sample for sample in dict.fromkeys(some) if sample not in model.cached]
        free = slots - len(model.cached)
        policy.inserted(np.array(fresh[:free], np.int64))
        for sample in fresh[:free]:
            model.arrive(sample)
        if fresh[free:]:
            expected = [model.exchange(sample) for sample in fresh[free:]]
            assert policy.exchange(fresh[free:]) == expected
        count = data.draw(st.integers(0, len(model.cached)))
        assert victims(policy, count) == model.order()[:count]
    assert victims(policy, SAMPLES) == model.order()


@pytest.mark.parametrize("name", MODELS)
@given(uses=st.lists(st.integers(0, SAMPLES - 1), max_size=30))
def test_ties(name: str, uses: list[int]) -> None:
    """All come in one after another, unread, and some are used: the model breaks all ties."""
    policy, model = (make() for make in MODELS[name])
    policy.inserted(np.arange(SAMPLES))
    for sample in range(SAMPLES):
        model.arrive(sample)
    policy.access(np.array(uses, np.int64), np.ones(len(uses), dtype=bool))
    for sample in uses:
        model.use(sample)
    assert victims(policy, SAMPLES) == model.order()
