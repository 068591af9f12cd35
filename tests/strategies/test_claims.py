"""Predictions from claims: what they amount to, and that no claim can break or burden them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from fedio.costs import Phases
from fedio.profiles import Speeds
from strategies.selector import View
from strategies.selectors import claims
from strategies.selectors.claims import predicted_phases

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


def test_blocks_are_put_together_again(view_of: ViewOf, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    view = view_of(10, 1, compute_s=rng.random(10), depth=rng.integers(1, 5, 10))
    clients = np.array([9, 3, 4, 0, 7, 8, 2])
    whole = predicted_phases(view, clients)
    monkeypatch.setattr(claims, "BLOCK_CLIENTS", 3)
    in_blocks = predicted_phases(view, clients)
    for phase in fields(Phases):
        np.testing.assert_array_equal(
            getattr(in_blocks, phase.name), getattr(whole, phase.name), strict=True
        )


@pytest.mark.parametrize(
    "name", [*Speeds.__dataclass_fields__, "mean_size_bytes", "mean_cached_bytes", "decoded_share"]
)
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
