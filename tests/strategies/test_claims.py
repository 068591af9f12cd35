"""Predictions from claims: what they amount to, and that no claim can break or burden them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.costs import Phases, expected_work, phases
from fedio.expected_hits import expected_hit_share
from fedio.profiles import Speeds
from strategies.selector import View
from strategies.selectors import claims
from strategies.selectors.claims import (
    UTILITY_CEILING,
    predicted_phases,
    predicted_s,
    usable_samples,
    usable_seconds,
    usable_utility,
)

ViewOf = Callable[..., View]
ODD = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e9, 5e-324, 0.0, -1.0, 2.5])


def test_reading_ahead_is_predicted_as_far_as_it_is_claimed(view_of: ViewOf) -> None:
    # Cold, a step reads 20 * 0.11 = 2.2 s, decodes 0.04 s and trains 0.2 s; 1 s down and 2 s up.
    view = view_of(4, 1, depth=[1.0, 4.0, 4.0, 1.0], readers=[1.0, 1.0, 2.0, 4.0])
    took = predicted_phases(view, np.arange(4))
    in_turns, ahead, decoded_ahead = 8 * 2.44, 8 * 2.24 + 0.2, 8 * 2.2 + 0.04 + 0.2
    np.testing.assert_allclose(
        took.total_s, np.array([in_turns, ahead, decoded_ahead, in_turns]) + 3
    )
    np.testing.assert_allclose(took.stall_s, took.total_s - 3 - 1.6)
    np.testing.assert_allclose(took.io_s, 8 * 2.24)


def test_the_cached_form_tells_what_a_hit_costs(view_of: ViewOf) -> None:
    # Of 160 accesses 40 are hits, of 1 ms and 4e5 / 1e8 s each; none needs decoding, the others do.
    view = view_of(
        2,
        1,
        resident_samples=50,
        mean_cached_bytes=4e5,
        cached_decoded_share=[0.0, 1.0],
        decoded_share=[1.0, 0.5],
    )
    took = predicted_phases(view, np.arange(2))
    np.testing.assert_allclose(took.cache_s, 40 * (0.001 + 0.004))
    np.testing.assert_allclose(took.decode_s, [120 * 0.002, (40 + 60) * 0.002])


def test_nothing_is_predicted_of_those_of_whom_nothing_is_known(view_of: ViewOf) -> None:
    view = view_of(3, 1, mean_size_bytes=[1e5, np.nan, 1e5], decoded_share=[1.0, 1.0, np.nan])
    known = np.isfinite(predicted_phases(view, np.arange(3)).total_s)
    assert known.tolist() == [True, False, False]
    assert len(predicted_phases(view, np.zeros(0, dtype=np.int64)).total_s) == 0


CLAIMED = (
    *Speeds.__dataclass_fields__,
    "mean_size_bytes",
    "mean_cached_bytes",
    "decoded_share",
    "cached_decoded_share",
)


def any_columns(clients: int, odd_share: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw what clients claim: some of it ordinary, `odd_share` of it anything."""
    columns: dict[str, np.ndarray] = {}
    for name in CLAIMED:
        ordinary = rng.integers(1, 5, clients) * 0.5
        columns[name] = np.where(
            rng.random(clients) < odd_share, rng.choice(ODD, clients), ordinary
        )
    whole = np.array([-1, 0, 1, 20, 119, 300, 2**53])
    return columns | {
        "samples": rng.choice(whole, clients),
        "resident_samples": rng.choice(whole, clients),
    }


def one_by_one(view: View, hit_share: np.ndarray | None) -> list[Phases]:
    """The cost model's own answer for each row of the table, asked on its own."""
    fleet, found = view.fleet, []
    for client in range(len(fleet)):
        row = np.array([client])
        samples = np.maximum(fleet.samples[row], 1)
        held, work = fleet.resident_share[row], (view.accesses, view.batch_size)
        share = expected_hit_share(view.sampler, held, samples, *work)
        if hit_share is not None:
            share = hit_share[row]
        speeds, mean = fleet.speeds.take(row), fleet.mean_samples(row)
        with np.errstate(all="ignore"):
            work_of = (view.local_steps, view.batch_size, share, mean, view.model_bytes, speeds)
            found.append(phases(expected_work(*work_of), speeds))
    return found


@given(
    st.integers(1, 12),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.sampled_from(["uniform", "pads", "unbiased"]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_every_row_is_predicted_as_the_cost_model_has_it(
    view_of: ViewOf, clients: int, odd_share: float, sampler: str, is_given: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = any_columns(clients, odd_share, rng)
    view = replace(view_of(clients, 1, **columns), sampler=sampler)
    hit_share = rng.random(clients) if is_given else None
    expected = one_by_one(view, hit_share)
    few = rng.choice(clients, clients // 3, replace=False)
    most = rng.choice(clients, clients - clients // 3, replace=False)
    with patch.object(claims, "BLOCK_CLIENTS", 3):
        for asked in (None, few, most, np.sort(most), np.arange(clients)):
            rows = np.arange(clients) if asked is None else asked
            share = None if hit_share is None else hit_share[rows]
            took, took_s = predicted_phases(view, asked, share), predicted_s(view, asked, share)
            for phase in fields(Phases):
                each = [getattr(expected[i], phase.name).item() for i in rows]
                np.testing.assert_array_equal(getattr(took, phase.name), np.array(each))
            np.testing.assert_array_less(off_by(took_s, took), 1e-12)


def off_by(total_s: np.ndarray, took: Phases) -> np.ndarray:
    """How far a total is from that of the phases, as a share of the largest of its parts."""
    with np.errstate(all="ignore"):
        expected_s = took.total_s
        parts = np.abs([took.download_s, took.stall_s, took.compute_s, took.upload_s])
        off = np.abs(total_s - expected_s) / np.maximum(parts.max(axis=0), 1e-300)
    alike = (total_s == expected_s) | (np.isnan(total_s) & np.isnan(expected_s))
    return np.where(alike, 0.0, np.where(np.isnan(off), np.inf, off))


@given(st.floats(0, 1), st.integers(1, 6), st.integers(1, 2), st.sampled_from([1e3, 1e5, 5e6]))
def test_warm_saves_the_missed_bytes_and_latencies(
    view_of: ViewOf, share: float, depth: int, readers: int, size_bytes: float
) -> None:
    held = round(200 * share)
    view = view_of(
        2,
        1,
        resident_samples=[0, held],
        mean_size_bytes=size_bytes,
        mean_cached_bytes=3 * size_bytes,
        cached_decoded_share=0.0,
        depth=depth,
        readers=readers,
    )
    took, hits = predicted_phases(view), 160 * held / 200
    of_origin_s, of_cache_s = 0.01 + size_bytes / 1e6, 0.001 + 3 * size_bytes / 1e8
    saved_s = hits * (of_origin_s - of_cache_s)
    (cold_io_s, warm_io_s), (cold_s, warm_s) = took.io_s, took.total_s
    assert cold_io_s - warm_io_s == pytest.approx(saved_s + hits * 0.002)  # 2 ms an image
    assert took.compute_s[0] == took.compute_s[1]
    # Reading ahead hides some of it; in turns, nothing is hidden.
    if depth == 1:
        assert cold_s - warm_s == pytest.approx(saved_s + hits * 0.002)
    else:
        assert -1e-9 <= cold_s - warm_s <= saved_s + hits * 0.002 + 1e-9


def test_a_prediction_knows_how_the_sampler_makes_use_of_the_cache(view_of: ViewOf) -> None:
    view = view_of(1, 1, resident_samples=100)
    hits = {
        name: predicted_phases(replace(view, sampler=name)).cache_s / 0.002
        for name in ("uniform", "unbiased", "pads")
    }
    # Of 160 accesses: a half; 4 of 5; all, for what is cached is repeated until it suffices.
    assert hits == {"uniform": [pytest.approx(80)], "unbiased": [128], "pads": [160]}


def test_what_is_odd_counts_as_unknown_and_the_table_stays_as_it_is(view_of: ViewOf) -> None:
    claimed = np.array([np.nan, np.inf, -np.inf, -1.0, 0.0, 2.5, 1e300])
    given_away = claimed.copy()
    assert usable_utility(claimed).tolist() == [0, 0, 0, 0, 0, 2.5, UTILITY_CEILING]
    nan = np.nan
    np.testing.assert_array_equal(usable_seconds(claimed), [nan, np.inf, nan, nan, 0, 2.5, 1e300])
    np.testing.assert_array_equal(claimed, given_away)
    view = view_of(4, 1, samples=[-1, 7, 2**60, 160])
    assert usable_samples(view, np.arange(4)).tolist() == [0.0, 7.0, 160.0, 160.0]


@pytest.mark.parametrize("name", CLAIMED)
def test_any_claim_is_borne_and_concerns_nobody_else(view_of: ViewOf, name: str) -> None:
    plain = view_of(1, 1, resident_samples=50, depth=4.0, readers=2.0)
    honest = float(predicted_phases(plain, np.arange(1)).total_s[0])
    normal = getattr(plain.fleet.speeds, name, getattr(plain.fleet, name, None))
    columns = {"depth": 4.0, "readers": 2.0, name: [*ODD, *normal.tolist()]}
    view = view_of(len(ODD) + 1, 1, resident_samples=50, **columns)
    found = predicted_phases(view, np.arange(len(ODD) + 1)).total_s
    assert found[-1] == honest
    if name in {"depth", "readers"}:
        assert np.isfinite(found).all()


def test_no_memory_is_taken_for_what_is_claimed(view_of: ViewOf) -> None:
    view = view_of(50, 1, depth=1e9, readers=1e9)
    tracemalloc.start()
    predicted_phases(view, np.arange(50))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1e6
