"""The expected share of hits: by hand, at its ends, and beside what the samplers really do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.samplers import SAMPLERS
from fedio.expected_hits import expected_hit_share

NAMES = [*SAMPLERS, "somebody's own"]
SHARES, SIZES = (0.0, 0.02, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0), (22, 119, 300)
WORK = ((160, 20), (100, 20), (40, 10), (320, 32))


def expected(sampler: str, share: float, samples: int, accesses: int, batch_size: int) -> float:
    found = expected_hit_share(
        sampler, np.array([share]), np.array([samples]), accesses, batch_size
    )
    return float(found.item())


def errors(name: str) -> Iterator[float]:
    """How far the expectation is from the mean of 40 participations, setting by setting."""
    rng = np.random.default_rng(0)
    for samples in SIZES:
        for accesses, batch_size in WORK:
            for share in SHARES:
                resident = np.arange(samples) < round(share * samples)
                sampler = SAMPLERS[name](samples, batch_size)
                orders = [sampler.order(resident, accesses, rng) for _ in range(40)]
                hits = float(resident[np.concatenate(orders)].mean())
                told = expected(name, float(resident.mean()), samples, accesses, batch_size)
                yield told - hits


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_hits_as_often_as_expected(name: str) -> None:
    found = np.abs(list(errors(name)))
    # PADS repeats by whole factors of a random number; the others are off by chance alone.
    mean, most = (0.01, 0.1) if name == "pads" else (0.005, 0.03)
    assert found.mean() < mean
    assert found.max() < most


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_cache_hits_never_and_a_full_one_always(name: str) -> None:
    for samples in SIZES:
        for accesses, batch_size in WORK:
            assert expected(name, 0.0, samples, accesses, batch_size) == 0.0
            assert expected(name, 1.0, samples, accesses, batch_size) == pytest.approx(1.0)


def test_who_does_not_look_at_the_cache_hits_what_is_in_it() -> None:
    shares = np.linspace(0, 1, 7)
    for name in ("uniform", "fedbalancer", "somebody's own"):
        found = expected_hit_share(name, shares, np.full(7, 90), 160, 20)
        np.testing.assert_array_equal(found, shares)


def test_unbiased_takes_cached_samples_four_times_as_often() -> None:
    assert expected("unbiased", 0.2, 100, 160, 20) == pytest.approx(0.8 / 1.6)


@pytest.mark.parametrize(
    ("share", "samples", "accesses", "hits"),
    [
        # h is 100 s +- sqrt(100 s (1 - s)), of which the first two here are exact.
        (0.5, 100, 100, 100),  # 45 and 55: m is 3 and 2, so all are hits
        (0.1, 100, 100, (4 * 7 + 4 * 13) / 2),  # 7 and 13: 4 = 0.2 B, and m = 8 halved
        (0.1, 100, 250, (2 * 40 + (4 * 7 + 3 * 13) / 2)),  # two passes, and 50 are left: m = 4
    ],
)
def test_pads_by_hand(share: float, samples: int, accesses: int, hits: float) -> None:
    assert expected("pads", share, samples, accesses, 20) * accesses == pytest.approx(hits)


@given(
    st.sampled_from(NAMES),
    st.floats(0, 1),
    st.integers(1, 2**60),
    st.integers(1, 10_000),
    st.integers(1, 512),
)
def test_it_is_a_share_whatever_the_numbers(
    name: str, share: float, samples: int, accesses: int, batch_size: int
) -> None:
    assert 0.0 <= expected(name, share, samples, accesses, batch_size) <= 1.0


def test_many_at_once_are_as_each_alone() -> None:
    rng = np.random.default_rng(2)
    shares, samples = rng.random(200), rng.integers(1, 400, 200)
    for name in NAMES:
        alone = [expected(name, *one, 160, 20) for one in zip(shares, samples, strict=True)]
        np.testing.assert_array_equal(expected_hit_share(name, shares, samples, 160, 20), alone)
