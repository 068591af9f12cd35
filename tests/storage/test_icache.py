"""iCache: who is important, who stands in and who leaves; against a model of plain lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from storage.policies import ICache
from storage.victim_queue import NOBODY

UNTRAINED = float(np.finfo(np.float64).max)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def drained(policy: ICache, incoming: int | None = None) -> list[int]:
    """All who may leave for a sample, in order; nobody does."""
    order = policy.victims(incoming)
    victims = list(order)
    order.close()
    return victims


def requested(policy: ICache, *samples: int) -> list[int]:
    """Request samples that are not cached, as a batch; returns who stands in for each."""
    named: list[int] = policy.stand_ins(array(*samples)).tolist()
    policy.access(array(*samples), np.zeros(len(samples), dtype=bool))
    return named


def trained(slots: int = 6, residents: tuple[int, ...] = (), **arguments: Any) -> ICache:
    """Samples 0..9 with losses 0..9, at the start of an epoch: the highest are important."""
    policy = ICache(10, **arguments)
    policy.capacity_bytes = 10 * slots
    policy.weigh(np.arange(10), np.full(10, 10))
    policy.feedback(np.arange(10), np.arange(10.0))
    policy.plan(np.arange(10))
    policy.inserted(array(*residents))
    policy.plan(np.arange(10))
    return policy


def important(policy: ICache) -> list[int]:
    return np.flatnonzero(policy.columns()["important"]).tolist()


def test_the_share_with_the_highest_losses_is_important() -> None:
    assert important(trained()) == [3, 4, 5, 6, 7, 8, 9]
    assert important(trained(important_share=0.2)) == [8, 9]
    assert important(trained(important_share=0)) == []
    assert important(trained(important_share=1)) == list(range(10))


def test_what_was_never_trained_is_important_and_outranks_all() -> None:
    policy = ICache(10, important_share=0.5)
    policy.plan(np.arange(10))
    assert important(policy) == list(range(10))
    policy.feedback(array(0, 1, 2, 3), np.array([1.0, 4.0, 3.0, 2.0]))
    policy.plan(np.arange(10))
    assert important(policy) == [1, 2, 4, 5, 6, 7, 8, 9]
    policy.inserted(array(1, 2, 4))
    assert drained(policy, 5) == [2, 1]
    assert drained(policy, 1) == [2]


def test_ties_at_the_border_are_all_important() -> None:
    policy = ICache(4, important_share=0.5)
    policy.feedback(np.arange(4), np.array([2.0, 1.0, 2.0, 2.0]))
    policy.plan(np.arange(4))
    assert important(policy) == [0, 2, 3]


def test_losses_count_from_the_next_epoch_on() -> None:
    policy = trained(residents=(7, 8, 9))
    policy.feedback(array(9), np.array([0.5]))
    assert drained(policy) == [7, 8, 9]
    policy.plan(np.arange(10))
    assert important(policy) == [2, 3, 4, 5, 6, 7, 8]
    assert drained(policy) == [9, 7, 8]


def test_losses_that_are_no_number_come_last_and_are_counted() -> None:
    policy = ICache(6, important_share=0.5)
    losses = np.array([1.0, np.nan, -5.0, np.inf, -np.inf, 2.0])
    policy.feedback(np.arange(6), losses)
    policy.plan(np.arange(6))
    assert policy.quarantined == 3
    assert important(policy) == [0, 2, 5]


def test_the_least_important_leaves_for_a_more_important_one() -> None:
    policy = trained(slots=4, residents=(5, 9, 4, 8), important_space=1)
    assert drained(policy, 7) == [4, 5]
    assert drained(policy, 3) == []
    assert policy.exchange([7, 3, 4, 6, 5]) == [4, NOBODY, NOBODY, 5, NOBODY]
    assert drained(policy) == [6, 7, 8, 9]


def test_unimportant_ones_stand_in_once_an_epoch_as_they_came() -> None:
    policy = trained(residents=(2, 0, 9, 8), times=2)
    assert requested(policy, 1) == [2]
    assert requested(policy, 7, 1, 1, 6) == [NOBODY, 0, NOBODY, NOBODY]
    assert requested(policy, 1) == [NOBODY]
    policy.plan(np.arange(10))
    assert requested(policy, 1, 1, 1) == [2, 0, NOBODY]


def test_who_was_requested_itself_stands_in_for_nobody() -> None:
    policy = trained(residents=(2, 0, 1))
    policy.access(array(2), np.ones(1, dtype=bool))
    assert policy.stand_ins(array(2, 2, 2)).tolist() == [0, 1, NOBODY]


def test_who_stood_in_often_enough_waits_until_a_miss_brings_in_another() -> None:
    policy = trained(slots=2, residents=(2, 0), important_space=0)
    assert requested(policy, 1) == [2]
    policy.plan(np.arange(10))
    assert requested(policy, 1, 1) == [0, NOBODY]
    policy.plan(np.arange(10))
    assert requested(policy, 1) == [NOBODY]
    assert policy.exchange([1]) == [2]
    assert requested(policy, 2) == [NOBODY]
    policy.plan(np.arange(10))
    assert requested(policy, 2) == [1]
    policy.removed(array(0), "overwritten")
    policy.inserted(array(0))
    policy.plan(np.arange(10))
    assert requested(policy, 2) == [0]


def test_who_came_in_unrequested_stands_in_at_once() -> None:
    policy = trained(residents=(9,))
    policy.inserted(array(1))
    assert requested(policy, 0) == [1]


def test_an_epoch_is_over_after_n_requests() -> None:
    policy = trained(residents=(2, 0), times=9)
    assert requested(policy, 1, 3, 3, 3) == [2, NOBODY, NOBODY, NOBODY]
    assert requested(policy, 1, 1, 3, 3, 3) == [0, NOBODY, NOBODY, NOBODY, NOBODY]
    assert requested(policy, 1) == [NOBODY]
    assert requested(policy, 1) == [2]


@pytest.mark.parametrize("seed", range(5))
def test_it_makes_no_difference_how_requests_are_told(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples, hit = rng.integers(0, 10, 57), rng.random(57) < 0.5
    at_once, by_parts = trained(residents=(2, 0, 9)), trained(residents=(2, 0, 9))
    at_once.access(samples, hit)
    start = 0
    while start < len(samples):
        end = start + int(rng.integers(1, 30))
        by_parts.access(samples[start:end], hit[start:end])
        start = end
    for name, column in at_once.columns().items():
        np.testing.assert_array_equal(column, by_parts.columns()[name], name)


def test_a_read_that_came_to_nothing_uses_nobody() -> None:
    policy = trained(residents=(2, 0))
    assert policy.stand_ins(array(1, 1)).tolist() == [2, 0]
    policy.access(array(9), np.zeros(1, dtype=bool))
    assert policy.stand_ins(array(1, 1)).tolist() == [2, 0]
    assert policy.stand_ins(array(1)).tolist() == [2]
    policy.access(array(1), np.zeros(1, dtype=bool))
    assert policy.stand_ins(array(1, 1)).tolist() == [0, NOBODY]


def test_the_region_above_its_share_gives_up_a_sample_first() -> None:
    policy = trained(slots=6, residents=(9, 8, 7, 6, 5, 0), important_space=0.5)
    assert drained(policy) == [5, 6, 0, 7, 8, 9]
    assert drained(policy, 4) == []  # one too many already, and 4 is the least important
    assert policy.exchange([1, 2, 4]) == [5, 6, NOBODY]
    assert drained(policy) == [0, 1, 2, 7, 8, 9]
    policy = trained(slots=6, residents=(9, 8, 0, 1, 2), important_space=0.5)
    assert drained(policy, 3) == [0, 1, 2]
    assert policy.exchange([3, 4, 0]) == [0, 3, 1]


def test_unimportant_ones_never_drive_out_important_ones_within_their_share() -> None:
    policy = trained(slots=2, residents=(9, 8), important_space=1)
    assert drained(policy, 0) == []
    assert policy.exchange([0, 1]) == [NOBODY, NOBODY]


def test_an_important_one_that_has_grown_beyond_its_region_drives_out_others() -> None:
    policy = trained(slots=6, residents=(9, 0, 1), important_space=0.2)
    policy.weigh(array(9), array(50))
    assert drained(policy, 9) == [0, 1]


@pytest.mark.parametrize(
    "arguments",
    [{"important_share": 1.1}, {"important_share": -0.1}, {"important_space": 2}, {"times": 0}],
)
def test_arguments_are_checked(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="times in 1"):
        ICache(5, **arguments)  # type: ignore[arg-type]


class Model:
    """The same rules, over lists and sets, with everything looked for anew each time."""

    def __init__(self, samples: int, share: float, space: float, times: int) -> None:
        self.samples, self.share, self.space, self.times = samples, share, space, times
        self.losses = [UNTRAINED] * samples
        self.costs = [0] * samples  # when they came in
        self.offered = [0] * samples
        self.capacity_bytes = 0
        self.leading: set[int] = set()
        self.others: list[int] = []
        self.stood = [0] * samples
        self.epoch()

    def epoch(self) -> None:
        self.used: set[int] = set()
        self.requests = 0
        self.scores = list(self.losses)
        known = sorted((x for x in self.losses if x < UNTRAINED), reverse=True)
        count = round(self.share * len(known))
        border = known[count - 1] if count else UNTRAINED
        self.important = {s for s, loss in enumerate(self.losses) if loss >= border}
        residents = [*self.others, *sorted(self.leading)]
        self.leading = {s for s in residents if s in self.important}
        self.others = [s for s in residents if s not in self.important]

    def stand_ins(self, samples: list[int]) -> list[int]:
        free = [s for s in self.others if s not in self.used and self.stood[s] < self.times]
        return [free.pop(0) if free and s not in self.important else NOBODY for s in samples]

    def access(self, samples: list[int], named: list[int]) -> None:
        for sample in named:
            if sample != NOBODY:
                self.used.add(sample)
                self.stood[sample] += 1
        for sample in samples:
            self.used.add(sample)
            self.requests += 1
            if self.requests == self.samples:
                self.epoch()

    def victims(self, incoming: int | None) -> list[int]:
        leads = incoming in self.important
        over = sum(self.costs[s] for s in self.leading) - self.space * self.capacity_bytes
        if incoming is not None and leads and incoming not in self.leading:
            over += self.offered[incoming]
        queue = sorted(self.leading - {incoming}, key=lambda s: (self.scores[s], s))
        if incoming is not None and leads:
            ends = [i for i, s in enumerate(queue) if self.scores[s] >= self.scores[incoming]]
            allowed = ends[0] if ends else len(queue)
        else:
            allowed = len(queue)
        found: list[int] = []
        while over > 0 and queue[len(found) :]:
            if len(found) == allowed:
                return found
            over -= self.costs[queue[len(found)]]
            found.append(queue[len(found)])
        rest = queue[len(found) : allowed] if incoming is None or leads else []
        return [*found, *self.others, *rest]

    def enter(self, sample: int) -> None:
        self.stood[sample] = 0
        self.costs[sample] = self.offered[sample]
        if sample in self.important:
            self.leading.add(sample)
        else:
            self.others.append(sample)

    def leave(self, sample: int) -> None:
        self.leading.discard(sample)
        if sample in self.others:
            self.others.remove(sample)


class Play:
    """A policy, a twin that is restored now and then, and the model, in the same random use."""

    SAMPLES = 40

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        share, space = float(rng.random()), float(rng.random())
        self.arguments = (self.SAMPLES, share, space, int(rng.integers(1, 4)))
        self.policies = [ICache(*self.arguments), ICache(*self.arguments)]
        self.model = Model(*self.arguments)
        self.equal = bool(rng.random() < 0.5)
        self.capacity = int(rng.integers(20, 300))
        self.model.capacity_bytes = self.capacity
        for policy in self.policies:
            policy.capacity_bytes = self.capacity
        self.resident: set[int] = set()
        if self.equal:
            self.weigh(list(range(self.SAMPLES)), [10] * self.SAMPLES)

    def some(self, most: int) -> list[int]:
        found: list[int] = self.rng.integers(
            0, self.SAMPLES, self.rng.integers(1, most + 1)
        ).tolist()
        return found

    def weigh(self, samples: list[int], costs: list[int]) -> None:
        for policy in self.policies:
            policy.weigh(array(*samples), array(*costs))
        for sample, cost in zip(samples, costs, strict=True):
            self.model.offered[sample] = cost

    def request(self) -> None:
        batch = self.some(8)
        missing = [s for s in batch if s not in self.resident]
        named = self.model.stand_ins(missing)
        hit = np.array([s in self.resident for s in batch])
        for policy in self.policies:
            if missing:
                assert policy.stand_ins(array(*missing)).tolist() == named
            policy.access(array(*batch), hit)
        self.model.access(batch, named)
        self.offer([s for s, who in zip(missing, named, strict=True) if who == NOBODY])
        losses = self.rng.normal(size=len(batch))
        losses[self.rng.random(len(batch)) < 0.02] = np.nan
        if self.rng.random() < 0.3:
            losses = np.round(losses)
        for policy in self.policies:
            policy.feedback(array(*batch), losses)
        for sample, loss in zip(batch, losses.tolist(), strict=True):
            self.model.losses[sample] = loss if np.isfinite(loss) else -np.inf

    def offer(self, samples: list[int]) -> None:
        samples = list(dict.fromkeys(samples))
        if not self.equal:
            self.weigh(samples, self.rng.integers(1, 60, len(samples)).tolist())
        slots = self.capacity // 10
        if self.equal and len(self.resident) == slots and samples:
            left = [policy.exchange(samples) for policy in self.policies]
            assert left[0] == left[1] == [self.exchange(sample) for sample in samples]
            return
        for sample in samples:
            self.take(sample)

    def overwrite(self) -> None:
        for sample in set(self.some(3)) & self.resident:
            if not self.equal:
                self.weigh([sample], [int(self.rng.integers(1, 60))])
            self.take(sample)

    def exchange(self, sample: int) -> int:
        victims = self.model.victims(sample)
        if not victims:
            return NOBODY
        self.model.leave(victims[0])
        self.model.enter(sample)
        self.resident = self.resident - {victims[0]} | {sample}
        return victims[0]

    def take(self, sample: int) -> None:
        """As a placement does: as many victims as it takes, or none."""
        costs, before = self.model.costs, self.resident & {sample}
        short = sum(costs[s] for s in self.resident - {sample}) - self.capacity
        short += self.model.offered[sample]
        order = self.model.victims(sample)
        leaving: list[int] = []
        for victim in order:
            if short > 0 and victim != sample:
                leaving.append(victim)
                short -= costs[victim]
        for policy in self.policies:
            assert drained(policy, sample) == order
            if short <= 0:
                policy.removed(array(*leaving), "evicted")
                policy.removed(array(*before), "overwritten")
                policy.inserted(array(sample))
        if short <= 0:
            for victim in [*leaving, *before]:
                self.model.leave(victim)
            self.model.enter(sample)
            self.resident = self.resident - set(leaving) | {sample}

    def delete(self) -> None:
        gone = [s for s in dict.fromkeys(self.some(3)) if s in self.resident]
        for policy in self.policies:
            policy.removed(array(*gone), "deleted")
        for sample in gone:
            self.model.leave(sample)
        self.resident -= set(gone)

    def plan(self) -> None:
        for policy in self.policies:
            policy.plan(array(1, 2, 3))
        self.model.epoch()

    def restore(self) -> None:
        columns = self.policies[0].columns()
        twin = ICache(*self.arguments)
        twin.capacity_bytes = self.capacity
        twin.restore({name: column.copy() for name, column in columns.items()})
        self.policies[1] = twin


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 400))]
)
def test_it_decides_as_the_model_does_and_so_does_a_restored_twin(seed: int) -> None:
    play = Play(seed)
    actions = [play.request, play.overwrite, play.delete, play.plan, play.restore]
    for number in play.rng.choice(len(actions), 250, p=[0.8, 0.05, 0.05, 0.05, 0.05]):
        actions[number]()
        victims = play.model.victims(None)
        assert drained(play.policies[0]) == drained(play.policies[1]) == victims
        assert set(victims) == play.resident
    assert play.policies[0].quarantined == play.policies[1].quarantined
