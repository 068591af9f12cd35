"""The lazy order equals a full sort, whatever happens between two victims."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import islice
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import LRU, POLICIES, Policy, ScorePolicy
from storage.victim_queue import VictimQueue

ADVANCE = VictimQueue._advance
SAMPLES = 40
SCORES = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
SOME = st.lists(st.integers(0, SAMPLES - 1), max_size=12, unique=True)
CHANGES = st.one_of(
    st.tuples(st.just("rescore"), st.lists(st.tuples(st.integers(0, SAMPLES - 1), SCORES))),
    st.tuples(st.just("insert"), SOME),
    st.tuples(st.just("insert"), st.just(list(range(SAMPLES)))),
    st.tuples(st.just("remove"), SOME),
    # How many to look at, and which of them to refuse.
    st.tuples(st.just("ask"), st.tuples(st.integers(0, SAMPLES + 1), SOME)),
)


class Owner:
    """Scores and cached samples, a queue over them, and what it should name."""

    def __init__(self, samples: int, cached: bool = True) -> None:
        self.scores = np.zeros(samples)
        self.cached = np.full(samples, cached)
        self.queue = VictimQueue(self.scores, self.cached)

    def rescore(self, samples: list[int], scores: list[float]) -> None:
        for sample, score in zip(samples, scores, strict=True):
            self.scores[sample] = score
        self.queue.put(np.array(samples, np.int64))

    def insert(self, samples: list[int]) -> None:
        self.cached[samples] = True
        self.queue.put(np.array(samples, np.int64))

    def ask(self, count: int, refused: list[int] | None = None) -> list[int]:
        """The next `count` victims; all leave but the refused ones."""
        with closing(self.queue.victims()) as order:
            named = list(islice(order, count))
            self.cached[[sample for sample in named if sample not in (refused or [])]] = False
        return named

    def expected(self) -> list[int]:
        residents = np.flatnonzero(self.cached).tolist()
        return sorted(residents, key=lambda sample: (self.scores[sample], sample))


class Latest(ScorePolicy):
    """Evicts the sample that was used longest ago, by means of `rescore` alone."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.uses = 0.0

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        self.rescore(samples, self.uses + np.arange(1.0, len(samples) + 1))
        self.uses += len(samples)


class FirstIn(ScorePolicy):
    """Evicts what came first."""

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        pass

    def inserted(self, samples: np.ndarray) -> None:
        self.rescore(samples, self.scores.max() + np.arange(1.0, len(samples) + 1))
        super().inserted(samples)


class Choosy(Latest):
    """Names nobody for an incoming sample of an even number."""

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        return super().victims(None) if incoming is None or incoming % 2 else nobody()


class Humble(Latest):
    """What comes in is the first to leave."""

    def inserted(self, samples: np.ndarray) -> None:
        super().inserted(samples)
        self.rescore(samples, -np.arange(1.0, len(samples) + 1))


class Forgetful(Latest):
    """A sample that leaves takes all scores with it."""

    def removed(self, samples: np.ndarray, why: str) -> None:
        super().removed(samples, why)  # type: ignore[arg-type]
        everyone = np.arange(self.samples)
        self.rescore(everyone, np.zeros(self.samples))


def nobody() -> Generator[int, None, None]:
    yield from ()


@given(st.lists(CHANGES, max_size=40))
def test_the_order_equals_a_full_sort(changes: list[tuple[str, Any]]) -> None:
    with patch("storage.victim_queue._SHORTEST_FRONT", 3):
        owner = Owner(SAMPLES, cached=False)
        for kind, change in changes:
            if kind == "rescore":
                owner.rescore([sample for sample, _ in change], [score for _, score in change])
            elif kind == "insert":
                owner.insert([sample for sample in change if not owner.cached[sample]])
            elif kind == "remove":
                owner.cached[change] = False
            else:
                count, refused = change
                expected = owner.expected()
                assert owner.ask(count, refused) == expected[:count]
        expected = owner.expected()
        assert owner.ask(SAMPLES) == expected


@pytest.mark.parametrize("samples", [1, 63, 64, 65, 1000, 5000])
def test_equal_scores_go_by_number(samples: int) -> None:
    owner = Owner(samples)
    half = samples // 2
    assert owner.ask(half) == list(range(half))
    owner.insert(list(range(half)))
    assert owner.ask(samples) == list(range(samples))


def test_ties_are_cut_at_the_border_by_number() -> None:
    owner = Owner(1000)
    scores = np.random.default_rng(0).integers(0, 3, 1000).astype(float)
    owner.rescore(list(range(1000)), scores.tolist())
    expected = owner.expected()
    named = [owner.ask(1)[0] for _ in range(1000)]
    assert named == expected


def test_all_are_named_once_and_named_again_when_nobody_leaves() -> None:
    owner = Owner(3000)
    owner.rescore(list(range(3000)), np.random.default_rng(0).random(3000).tolist())
    everyone = list(range(3000))
    first = owner.ask(4000, refused=everyone)
    assert first == owner.expected()
    assert owner.ask(4000, refused=everyone) == first
    assert owner.ask(200, refused=everyone) == first[:200]
    assert owner.ask(3000) == first


def test_one_that_is_refused_time_and_again_stays_in_front() -> None:
    owner = Owner(2000)
    named = [owner.ask(2, refused=[0]) for _ in range(1999)]
    assert named == [[0, sample] for sample in range(1, 2000)]
    assert len(owner.queue) <= 250


def test_scores_that_keep_falling_stay_in_order_and_in_proportion() -> None:
    owner = Owner(1000)
    for turn in range(1, 3000):
        fallen = turn * 7 % 1000
        owner.rescore([fallen], [-float(turn)])
        if turn % 10 == 0:
            assert owner.ask(1, refused=[fallen]) == [fallen]
        assert len(owner.queue) <= 250


def test_one_that_comes_back_with_its_old_score_is_named_once() -> None:
    owner = Owner(100)
    assert owner.ask(2) == [0, 1]
    owner.cached[5] = False
    owner.insert([5, 1])
    owner.rescore([7, 8], [1.0, 1.0])
    owner.rescore([7], [0.0])
    assert owner.ask(100) == [1, *range(2, 8), *range(9, 100), 8]


@pytest.mark.parametrize("back", [[63], [62, 63]])
def test_what_comes_back_at_the_border_is_below_it(back: list[int]) -> None:
    owner = Owner(100)
    assert owner.ask(64, refused=[0]) == list(range(64))
    owner.insert(back)
    assert owner.ask(100) == [0, *back, *range(64, 100)]


def test_nothing_is_kept_before_anybody_asks() -> None:
    owner = Owner(1000)
    owner.insert(list(range(1000)))
    owner.rescore(list(range(500)), [1.0] * 500)
    assert len(owner.queue) == 0
    owner.ask(1)
    assert len(owner.queue) == 124


def test_nothing_is_kept_of_what_comes_to_lie_above_the_border() -> None:
    owner = Owner(1000)
    owner.ask(1)
    before = len(owner.queue)
    owner.rescore(list(range(200, 1000)), [5.0] * 800)
    owner.rescore([50], [2.0])
    owner.rescore([0], [-1.0])
    owner.rescore([0, 0], [-2.0, -3.0])  # it is not cached
    owner.insert([0])
    assert len(owner.queue) == before + 1  # sample 0 has gone below it


def test_a_queue_that_was_cleared_looks_again() -> None:
    owner = Owner(200)
    owner.ask(1)
    owner.scores[150] = -1.0
    owner.queue.clear()
    assert owner.ask(2) == [150, 1]


def test_few_fronts_are_cut() -> None:
    with patch.object(VictimQueue, "_advance", autospec=True, side_effect=ADVANCE) as cut:
        Owner(10_000).ask(10_000)  # 1/8, 1/8, 1/4 and 1/2 of all
        assert cut.call_count == 4
        cut.reset_mock()
        few_of_many = Owner(10**6, cached=False)
        few_of_many.insert(list(range(0, 10**6, 5000)))
        assert [few_of_many.ask(1)[0] for _ in range(200)] == list(range(0, 10**6, 5000))
        assert cut.call_count == 1


def test_a_restored_policy_forgets_the_order_that_it_had() -> None:
    policy, saved = Latest(10), Latest(10)
    for each, batch in (policy, [3, 5, 4]), (saved, [3, 9, 8]):
        each.access(np.array(batch), np.zeros(3, dtype=bool))
        each.inserted(np.array(batch))
        assert list(each.victims(None)) == batch
    policy.restore(saved.columns())
    assert list(policy.victims(None)) == [3, 9, 8]
    policy.rescore(np.array([9]), np.array([0.5]))
    assert list(policy.victims(None)) == [9, 3, 8]
    assert list(saved.victims(None)) == [3, 9, 8]


@pytest.mark.parametrize("size", [1, 2, 32, 4096, 20_000])
def test_of_a_repeated_sample_the_last_use_counts(size: int) -> None:
    rng = np.random.default_rng(size)
    backwards = rng.integers(0, 50, size)[::-1]
    for batch in (backwards, backwards.copy(), np.repeat(backwards, 2)[::2]):
        tried = Latest(50)
        tried.access(batch, np.zeros(size, dtype=bool))
        last = {sample: position + 1 for position, sample in enumerate(batch.tolist())}
        assert tried.scores.tolist() == [last.get(sample, 0) for sample in range(50)]


@given(
    policy=st.sampled_from([*POLICIES.values(), Latest, FirstIn, Choosy, Humble, Forgetful]),
    batches=st.lists(st.lists(st.integers(0, 11), min_size=1), max_size=5),
    residents=st.sets(st.integers(0, 11), min_size=1, max_size=11),
    data=st.data(),
)
def test_what_outlasts_a_victim_is_named_after_it(
    policy: type[Policy], batches: list[list[int]], residents: set[int], data: st.DataObject
) -> None:
    tried = policy(12)
    for batch in batches:
        tried.access(np.array(batch), np.zeros(len(batch), dtype=bool))
    tried.inserted(np.array(sorted(residents)))
    absent = sorted(set(range(12)) - residents)
    incoming = np.array(data.draw(st.lists(st.sampled_from(absent), min_size=1, unique=True)))
    victim = data.draw(st.sampled_from(sorted(residents)))
    claimed = tried.outlasts(incoming, victim)
    tried.inserted(incoming)
    named = list(tried.victims(None))
    if claimed:
        assert named.index(victim) < min(named.index(sample) for sample in incoming.tolist())
    elif policy in {LRU, Latest}:  # these can always tell
        assert named.index(victim) > min(named.index(sample) for sample in incoming.tolist())


@pytest.mark.parametrize("policy", [FirstIn, Choosy, Humble, Forgetful])
def test_a_policy_with_hooks_of_its_own_cannot_tell(policy: type[ScorePolicy]) -> None:
    tried = policy(5)
    tried.inserted(np.array([0]))
    tried.rescore(np.array([1]), np.array([9.0]))
    assert not tried.outlasts(np.array([1]), 0)


@pytest.mark.parametrize("few", [0, 4096])
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 60))
def test_an_exchange_is_each_for_the_first_in_order(few: int, seed: int, turns: int) -> None:
    rng = np.random.default_rng(seed)
    with (
        patch("storage.victim_queue._SHORTEST_FRONT", 3),
        patch("storage.victim_queue._FEW_SAMPLES", few),
    ):
        owner = Owner(SAMPLES, cached=False)
        owner.insert(rng.choice(SAMPLES, rng.integers(1, SAMPLES), replace=False).tolist())
        for _ in range(turns):
            some = rng.choice(SAMPLES, rng.integers(0, 12), replace=False).tolist()
            owner.rescore(some, rng.choice([-np.inf, 0.0, 1.0, 2.0, 3.0], len(some)).tolist())
            absent = np.flatnonzero(~owner.cached)
            incoming = rng.permutation(absent)[: rng.integers(0, 12)].tolist()
            claims = rng.choice([-np.inf, 0.0, 1.0, 2.0, np.inf], len(incoming)).tolist()
            cached, expected = owner.cached.copy(), []
            for sample, claim in zip(incoming, claims, strict=True):
                victim = min(np.flatnonzero(cached), key=lambda s: (owner.scores[s], s)).item()
                accepted = claim > owner.scores[victim]
                cached[[victim, sample]] = [not accepted, accepted]
                expected.append(victim if accepted else -1)
            assert owner.queue.exchange(incoming, claims) == expected
            assert (owner.cached == cached).all()
            asked = int(rng.integers(0, 4))
            assert owner.ask(asked, refused=list(range(SAMPLES))) == owner.expected()[:asked]


def test_without_claims_all_come_in() -> None:
    owner = Owner(6, cached=False)
    owner.insert([0, 1])
    assert owner.queue.exchange([5, 4, 3]) == [0, 1, 4]
