"""Profiles and fleets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedio.errors import InputError
from fedio.profiles import PROFILES, draw_fleet, known_profiles, load_profile


@pytest.mark.parametrize("name", known_profiles())
def test_every_profile_has_a_cache_faster_than_its_origin(name: str) -> None:
    profile = load_profile(name)
    assert profile.source
    assert profile.cache.read_bytes_per_s > profile.origin.read_bytes_per_s
    assert profile.cache.read_latency_s < profile.origin.read_latency_s


def test_a_profile_of_ones_own_is_a_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(PROFILES.joinpath("phone-mid.toml").read_text())
    assert load_profile(str(mine)) == load_profile("phone-mid")
    mine.write_text("inference_ms = -1")
    with pytest.raises(InputError, match="inference_ms"):
        load_profile(str(mine))
    with pytest.raises(InputError, match="did you mean 'phone-mid'"):
        load_profile("phone-mit")


def test_a_fleet_keeps_the_declared_mix_and_the_figures() -> None:
    shares = {"phone-low": 1.0, "phone-high": 3.0}
    classes, speeds = draw_fleet(shares, 10, np.random.default_rng(0), timing_model="resnet")
    assert sorted(np.bincount(classes).tolist()) in ([2, 8], [3, 7])
    high = load_profile("phone-high")
    expected_s = high.inference_ms * 3 * 2.44 / 1000
    assert speeds.compute_s[classes == 1] == pytest.approx(expected_s)
    assert (speeds.origin_read_bytes_per_s[classes == 1] == high.origin.read_bytes_per_s).all()
    one = speeds.take(3)
    assert one.compute_s == speeds.compute_s[3]


def test_spread_varies_devices_of_a_class_around_its_figures() -> None:
    _, speeds = draw_fleet({"phone-mid": 1.0}, 4000, np.random.default_rng(1), spread=0.3)
    logs = np.log(speeds.compute_s / (64 * 3 / 1000))
    assert abs(logs.mean()) < 0.03
    assert logs.std() == pytest.approx(0.3, rel=0.1)
    # One factor per device and tier: latency and bandwidth move together.
    products = speeds.origin_read_latency_s * speeds.origin_read_bytes_per_s
    assert products == pytest.approx(products[0])
