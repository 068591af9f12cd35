"""The order by loss rank and uses, beside a model that sorts everything each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import Policy
from storage.policies import Experience, Importance
from storage.policies.ranks import UNSCORED, normalised, weights
from storage.policies.scale import Scale
from storage.victim_queue import NOBODY

NAN = float("nan")
SAMPLES = 8
MAKE: dict[str, Callable[[], Importance | Experience]] = {
    "importance": lambda: Importance(SAMPLES),
    "favour": lambda: Experience(SAMPLES),
    "penalise": lambda: Experience(SAMPLES, frequency="penalise"),
    "ignore": lambda: Experience(SAMPLES, frequency="ignore"),
    "artifact": lambda: Experience(SAMPLES, victims="artifact"),
    "artifact penalise": lambda: Experience(SAMPLES, frequency="penalise", victims="artifact"),
}


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def experience(policy: Importance | Experience, frequency: str) -> np.ndarray:
    """e of all samples, from the formula."""
    w, f, trained = weights(policy.ranks), policy.uses, policy.ranks != UNSCORED
    if not trained.any():
        return np.zeros(len(w))
    nw = normalised(w, w[trained].min(), w[trained].max())
    low, high = f[trained].min(), f[trained].max()
    if frequency == "favour":
        return nw + normalised(f, low, high)
    return nw + normalised(-f, -high, -low) if frequency == "penalise" else nw


def model(policy: Importance | Experience, name: str) -> tuple[list[Any], list[Any]]:
    """What orders victims, and what an incoming sample must have more of: one entry a sample."""
    by_rank = list(zip(policy.ranks.tolist(), policy.uses.tolist(), range(SAMPLES), strict=True))
    if name == "importance":
        return by_rank, [entry[:2] for entry in by_rank]
    e = experience(policy, name.removeprefix("artifact ").replace("artifact", "favour")).round(12)
    if name.startswith("artifact"):
        return by_rank, e.tolist()
    sign = {"favour": 1, "penalise": -1, "ignore": 0}[name]
    return list(zip(e, sign * policy.uses, range(SAMPLES), strict=True)), e.tolist()


def one_turn(
    policy: Importance | Experience, name: str, held: set[int], rng: np.random.Generator
) -> None:
    """A batch is used, what is missing competes for a place, and perhaps the batch is trained."""
    batch = rng.integers(0, SAMPLES, rng.integers(1, 6))
    policy.access(batch, np.zeros(len(batch), dtype=bool))
    for sample in sorted(set(batch.tolist()) - held):
        order, rank = model(policy, name)
        expected = sorted(held, key=order.__getitem__)
        outranked = [rank[sample] > rank[victim] for victim in expected]
        allowed = outranked.index(False) if False in outranked else len(expected)
        taken: list[int] = []
        victims = policy.victims(sample)
        wanted = int(rng.integers(0, 4))
        while len(taken) < wanted and (victim := next(victims, None)) is not None:
            taken.append(victim)
        assert taken == expected[: min(wanted, allowed)]
        leaving = taken if rng.random() < 0.6 else taken[1:]  # the first may be pinned
        policy.removed(array(*leaving), "evicted")
        victims.close()
        held -= set(leaving)
        if leaving or len(held) < 4:
            policy.inserted(array(sample))
            held.add(sample)
    if rng.random() < 0.7:
        policy.feedback(batch, rng.choice([0.1, 0.2, 0.3, 0.4, NAN], len(batch)))


@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 40))
def test_the_order_equals_a_full_sort(name: str, seed: int, turns: int) -> None:
    policy, held, rng = MAKE[name](), set[int](), np.random.default_rng(seed)
    for _ in range(turns):
        one_turn(policy, name, held, rng)
        order, _ = model(policy, name)
        assert list(policy.victims(None)) == sorted(held, key=order.__getitem__)
    twin = MAKE[name]()
    twin.restore({key: column.copy() for key, column in policy.columns().items()})
    for _ in range(3):
        state = rng.bit_generator.state
        one_turn(policy, name, set(held), rng)
        rng.bit_generator.state = state
        one_turn(twin, name, held, rng)
        assert list(twin.victims(None)) == list(policy.victims(None))


@pytest.mark.parametrize("few", [0, 4096])
@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 40))
def test_an_exchange_equals_taking_in_one_by_one(
    name: str, few: int, seed: int, turns: int
) -> None:
    rng = np.random.default_rng(seed)
    swift, steady, held = MAKE[name](), MAKE[name](), set[int]()
    with (
        patch("storage.victim_queue._FEW_SAMPLES", few),
        patch("storage.policies.loss_order._FEW_SAMPLES", few),
        patch("storage.policies.loss_order._LEAST_ROOM", 4),
    ):
        for _ in range(turns):
            batch = rng.integers(0, SAMPLES, rng.integers(1, 9))
            losses = rng.choice([0.1, 0.2, 0.3, 0.4, NAN], len(batch))
            missing = [sample for sample in dict.fromkeys(batch.tolist()) if sample not in held]
            entering = missing[: max(0, 4 - len(held))]
            late = missing[len(entering) :]
            for policy in (swift, steady):
                policy.access(batch, np.zeros(len(batch), dtype=bool))
                policy.inserted(array(*entering))
            held |= set(entering)
            left = swift.exchange(late) if late else []
            assert left == Policy.exchange(steady, late)
            for sample, victim in zip(late, left, strict=True):
                if victim != NOBODY:
                    held ^= {sample, victim}
            if rng.random() < 0.7:
                for policy in (swift, steady):
                    policy.feedback(batch, losses)
            if rng.random() < 0.5:  # else it is asked for nothing but exchanges
                assert list(swift.victims(None)) == list(steady.victims(None))
        assert list(swift.victims(None)) == list(steady.victims(None))


@pytest.mark.parametrize("name", MAKE)
def test_a_restored_twin_decides_alike_for_ever(name: str) -> None:
    rng = np.random.default_rng(0)
    policy, twin, held = MAKE[name](), MAKE[name](), set[int]()
    for _ in range(100):
        one_turn(policy, name, held, rng)
        if rng.random() < 0.5:  # else it was in use before
            twin = MAKE[name]()
        twin.restore({key: column.copy() for key, column in policy.columns().items()})
        assert list(twin.victims(None)) == list(policy.victims(None))
        policy, twin = twin, policy


@pytest.mark.parametrize("name", MAKE)
def test_the_order_stays_in_proportion(name: str) -> None:
    policy = MAKE[name]()
    rng = np.random.default_rng(0)
    policy.inserted(np.arange(SAMPLES))
    for _ in range(2000):
        batch = rng.integers(0, SAMPLES, 8)
        policy.access(batch, np.ones(8, dtype=bool))
        policy.feedback(batch, rng.random(8))
        victims = policy.victims(None)
        victim = next(victims)
        policy.removed(array(victim), "evicted")
        victims.close()
        policy.inserted(array(victim))
    order = policy._queue if isinstance(policy, Importance) else policy._order
    assert len(order) < 2000


@pytest.mark.parametrize("name", MAKE)
def test_reads_alone_leave_little_behind(name: str) -> None:
    """Nobody has to leave, so nothing is settled; what waits for that must not pile up."""
    policy = MAKE[name]()
    batch = np.arange(SAMPLES)
    policy.inserted(batch)
    policy.feedback(batch, np.arange(SAMPLES, dtype=float))
    for _ in range(500):
        policy.access(batch, np.ones(SAMPLES, dtype=bool))
    if isinstance(policy, Importance):
        assert len(policy._changed) < 64
    else:
        assert len(policy._trained_uses.counts) < 2000
    assert list(policy.victims(None)) == sorted(batch, key=model(policy, name)[0].__getitem__)


def test_a_scale_is_to_the_bit_the_same_for_one_and_for_many() -> None:
    rng = np.random.default_rng(0)
    for sign in (-1, 0, 1):
        ranks, uses = rng.integers(-1, 30, 1000), rng.integers(0, 10**9, 1000)
        zero = int(min(sign * uses))
        scale = Scale(np.sort(rng.random(31)).tolist(), sign, zero, int(np.ptp(uses)))
        one_by_one = [scale.of(*at) for at in zip(ranks.tolist(), uses.tolist(), strict=True)]
        assert scale.of_all(ranks, uses).tolist() == one_by_one
