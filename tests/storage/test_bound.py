"""The bound on hits against all that a cache could have done, on traces small enough to try it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from storage import Policy, SampleCache, open_cache
from storage.bound import hit_bound
from storage.space_prices import priced_hits
from storage.stays import Stays
from storage.trace import Stream

Batches = list[list[int]]


def stream(batches: Batches, samples: int) -> Stream:
    lengths = np.array([len(batch) for batch in batches], np.int64)
    first = np.zeros(min(1, len(batches)), np.int64)
    return Stream(
        client=0,
        size_bytes=np.ones(samples, np.int64),
        requests=np.array([sample for batch in batches for sample in batch], np.int64),
        batch_starts=np.cumsum(lengths) - lengths,
        starts=first,
        rounds=first,
    )


def optimum(batches: Batches, costs: np.ndarray, usable_bytes: int) -> int:
    """The most hits, from the best way into every set of residents after every batch."""
    samples = len(costs)
    sets = np.arange(1 << samples)
    members = sets[:, None] >> np.arange(samples) & 1
    fits = members @ costs <= usable_bytes
    best = np.where(sets == 0, 0, -np.inf)
    for batch in batches:
        best += members @ np.bincount(batch, minlength=samples)
        for sample in range(samples):  # from each set the cache may go on with less
            lacks = sets[members[:, sample] == 0]
            best[lacks] = np.maximum(best[lacks], best[lacks | 1 << sample])
        offered = sum(1 << sample for sample in set(batch))
        best = np.where(fits, best[sets & ~offered], -np.inf)
    return int(best.max())


def again(batches: Batches) -> int:
    """The requests that are not the first for their sample, nor in the first one's batch."""
    seen: set[int] = set()
    count = 0
    for batch in batches:
        count += sum(sample in seen for sample in batch)
        seen.update(batch)
    return count


def random_batches(rng: np.random.Generator, samples: int, longest: int, repeats: bool) -> Batches:
    lengths = rng.integers(1, longest + 1, rng.integers(1, 25))
    return [rng.choice(samples, min(k, samples), replace=repeats).tolist() for k in lengths]


def test_the_optimum_of_a_case_by_hand() -> None:
    costs = np.array([2, 1, 1])
    # 0 must stay for its two hits, which leaves no room until then; 1 can stay after that.
    batches = [[0], [1], [2], [0, 0], [1], [2], [1]]
    assert optimum(batches, costs, 2) == 3
    assert optimum(batches, costs, 4) == again(batches) == 5
    assert optimum(batches, costs, 1) == 2


@pytest.mark.parametrize("longest", [1, 5])
def test_equal_costs_without_repeats_give_the_optimum(longest: int) -> None:
    for seed in range(1000):
        rng = np.random.default_rng((seed, longest))
        samples = int(rng.integers(1, 8))
        slots, cost = int(rng.integers(0, samples + 1)), int(rng.integers(1, 4))
        costs = np.full(samples, cost)
        usable_bytes = slots * cost + int(rng.integers(0, cost))
        costs[rng.random(samples) < 0.1] = usable_bytes + 1
        batches = random_batches(rng, samples, longest, repeats=False)
        bound = hit_bound(stream(batches, samples), costs, usable_bytes)
        assert bound.is_exact
        assert bound.hits == optimum(batches, costs, usable_bytes), seed


@pytest.mark.parametrize("traces", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dearest", [1, 2, 9])
def test_mixed_costs_and_repeats_are_never_below_the_optimum(traces: int, dearest: int) -> None:
    bounds, optima, exact = 0, 0, 0
    for seed in range(traces):
        rng = np.random.default_rng((seed, dearest))
        samples = int(rng.integers(1, 8))
        costs = rng.integers(dearest > 1, dearest + 1, samples)
        usable_bytes = int(rng.integers(0, costs.sum() + 1))
        batches = random_batches(rng, samples, 6, repeats=True)
        bound = hit_bound(stream(batches, samples), costs, usable_bytes)
        best = optimum(batches, costs, usable_bytes)
        assert best <= bound.hits <= again(batches), seed
        assert bound.hits == best or not bound.is_exact, seed
        bounds, optima, exact = bounds + bound.hits, optima + best, exact + bound.is_exact
    assert bounds <= 1.05 * optima
    assert 0 < exact < traces


def zipf(rng: np.random.Generator, batch: int) -> Batches:
    weights = 1 / np.arange(1, 201) ** 0.9
    order = rng.permutation(200)[rng.choice(200, 1600, p=weights / weights.sum())]
    return [order[at : at + batch].tolist() for at in range(0, 1600, batch)]


def epochs(rng: np.random.Generator, batch: int) -> Batches:
    order = np.concatenate([rng.permutation(200) for _ in range(8)])
    return [order[at : at + batch].tolist() for at in range(0, 1600, batch)]


def relaxed_optimum(stays: Stays, usable_bytes: int) -> float:
    """The most hits if a part of a sample could stay, by a solver for linear programs."""
    lengths = stays.ends - stays.starts
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = np.repeat(stays.starts, lengths) + within
    columns = np.repeat(np.arange(len(lengths)), lengths)
    taken = csr_array((np.repeat(stays.cost_bytes, lengths) / usable_bytes, (rows, columns)))
    room = np.ones(taken.shape[0])
    return -float(linprog(-stays.hits, A_ub=taken, b_ub=room, bounds=(0, 1)).fun)


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("sigma", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("make", [zipf, epochs])
@pytest.mark.parametrize("batch", [1, 32])
def test_prices_find_the_optimum_of_the_linear_relaxation(
    make: Callable[[np.random.Generator, int], Batches], batch: int, sigma: float, share: float
) -> None:
    rng = np.random.default_rng(0)
    costs = np.ceil(1000 * rng.lognormal(0, sigma, 200)).astype(np.int64)
    usable_bytes = int(share * costs.sum())
    requests = stream(make(rng, batch), 200)
    stays = Stays.of(requests, costs, usable_bytes)
    relaxed = relaxed_optimum(stays, usable_bytes)
    priced = priced_hits(stays, usable_bytes)
    assert np.floor(relaxed - 1e-6) <= priced <= 1.005 * relaxed
    assert hit_bound(requests, costs, usable_bytes).hits <= priced


@pytest.mark.parametrize("longest", [1, 5])
def test_as_many_requests_for_each_sample_of_a_batch_give_the_optimum(longest: int) -> None:
    rng = np.random.default_rng(longest)
    batches = [2 * random_batches(rng, 7, longest, repeats=False)[0] for _ in range(25)]
    for slots in range(8):
        bound = hit_bound(stream(batches, 7), np.ones(7, np.int64), slots)
        assert bound.is_exact
        assert bound.hits == optimum(batches, np.ones(7, np.int64), slots)
    assert bound.hits == again(batches) > 0


def test_the_count_of_the_cheapest_is_the_lower_bound_where_little_fits() -> None:
    rng = np.random.default_rng(0)
    costs = rng.integers(100, 105, 200)
    requests = stream(zipf(rng, 1), 200)
    bound = hit_bound(requests, costs, 199)
    assert bound.method == "relaxation: as many as the cheapest"
    assert bound.hits == hit_bound(requests, np.full(200, 100), 100).hits
    stays = Stays.of(requests, costs, 199)
    assert bound.hits < relaxed_optimum(stays, 199) - 1


def test_a_larger_cache_has_no_lower_bound() -> None:
    rng = np.random.default_rng(1)
    requests = stream(zipf(rng, 1), 200)
    equal = [hit_bound(requests, np.full(200, 3), usable).hits for usable in range(620)]
    assert equal == sorted(equal)
    assert equal[2] == 0 < equal[3]
    costs = rng.integers(1, 100, 200)
    steps = np.linspace(0, costs.sum(), 12).astype(int).tolist()
    mixed = [hit_bound(requests, costs, usable).hits for usable in steps]
    assert mixed == sorted(mixed)
    assert mixed[0] == 0


@pytest.mark.parametrize("dearest", [1, 9])
def test_what_fits_at_once_hits_always(dearest: int) -> None:
    rng = np.random.default_rng(2)
    batches = random_batches(rng, 30, 9, repeats=True)
    costs = rng.integers(1, dearest + 1, 30)
    bound = hit_bound(stream(batches, 30), costs, int(costs.sum()))
    assert bound.hits == again(batches)
    assert bound.is_exact


def test_a_slot_is_free_again_in_the_batch_that_ends_a_stay() -> None:
    bound = hit_bound(stream([[0], [0], [0, 1], [1], [0]], 2), np.array([1, 1]), 1)
    assert bound.hits == 3


def test_what_does_not_fit_by_itself_never_hits_nor_makes_costs_unequal() -> None:
    batches = [[0], [1], [2], [0], [1], [2], [0], [2]]
    bound = hit_bound(stream(batches, 3), np.array([5, 11, 5]), 9)
    assert bound.is_exact
    assert bound.method == "Belady with bypass"
    assert bound.hits == optimum(batches, np.array([5, 11, 5]), 9)


@pytest.mark.parametrize("batches", [[], [[0]], [[0, 0]], [[0], [1]], [[1, 0, 0, 1]]])
def test_without_a_second_request_there_is_no_hit(batches: Batches) -> None:
    bound = hit_bound(stream(batches, 2), np.array([1, 2]), 1)
    assert bound.hits == 0
    assert bound.is_exact


def test_the_unit_of_costs_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    requests, costs = stream(zipf(rng, 32), 200), rng.integers(1, 100, 200)
    usable_bytes = int(costs.sum()) // 5
    bounds = [hit_bound(requests, costs * unit, usable_bytes * unit) for unit in (1, 10**9)]
    assert bounds[0] == bounds[1]


def hits_of(cache: SampleCache, batches: Batches, sizes: np.ndarray) -> int:
    """Read batch after batch and offer what was missed."""
    buffer = np.zeros(int(sizes.sum()) * max(map(len, batches)), np.uint8)
    for batch in batches:
        samples = np.array(batch, np.int64)
        missed = np.unique(samples[~cache.read(samples, buffer).served])
        lengths = sizes[missed]
        cache.offer(missed, buffer, np.cumsum(lengths) - lengths, lengths)
    return cache.stats.hits


@pytest.mark.parametrize("equal", [True, False])
def test_no_policy_has_more_hits(
    policy_name: str, new_policy: Callable[[str, int], Policy], equal: bool
) -> None:
    some = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        sizes = np.full(10, 400) if equal else rng.integers(1, 3000, 10)
        budget_bytes = int(rng.integers(0, 8000))
        batches = random_batches(rng, 10, 1 + 3 * (seed % 3), repeats=not equal)
        with open_cache(None, budget_bytes, new_policy(policy_name, 10)) as cache:
            costs = cache._index.layout.cost(sizes)
            bound = hit_bound(stream(batches, 10), costs, cache.usable_bytes)
            hits = hits_of(cache, batches, sizes)
        assert hits <= bound.hits, seed
        some += hits
    assert some
