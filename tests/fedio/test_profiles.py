"""Profiles and fleets."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fedio.config import Experiment
from fedio.errors import InputError
from fedio.profiles import PROFILES, Speeds, draw_fleet, fleet_of, known_profiles, load_profile


@pytest.mark.parametrize("name", known_profiles())
def test_every_profile_has_a_cache_faster_than_its_origin(name: str) -> None:
    profile = load_profile(name)
    assert profile.source
    assert profile.cache.read_bytes_per_s > profile.origin.read_bytes_per_s
    assert profile.cache.read_latency_s <= profile.origin.read_latency_s


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


MEASURED = """
[decode]
sample_s = 0.002
bytes_per_s = 3e7
[training.mlp]
step_s = 0.01
sample_s = 0.0005
[prefetch]
readers = 2
batches = 3
memory_share = 0.5
"""


def test_what_a_profile_has_measured_stands_for_what_is_assumed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(PROFILES.joinpath("phone-mid.toml").read_text() + MEASURED)
    shares = {str(mine): 1.0, "phone-mid": 1.0}
    rng = np.random.default_rng(0)
    classes, speeds = draw_fleet(shares, 2, rng, decode_bytes_per_s=1e8)
    measured, assumed = speeds.take(int(np.argmin(classes))), speeds.take(int(np.argmax(classes)))
    assert (measured.decode_sample_s, measured.decode_bytes_per_s) == (0.002, 3e7)
    assert (assumed.decode_sample_s, assumed.decode_bytes_per_s) == (0.0, 1e8)
    assert (measured.readers, measured.depth) == (2, 3)
    assert (assumed.readers, assumed.depth) == (1, 4)
    assert measured.buffer_bytes == measured.memory_bytes / 2
    assert assumed.step_s == measured.step_s == 0
    assert assumed.compute_s == measured.compute_s == pytest.approx(3 * 64 / 1000)
    assert measured.decode_s(3, 6e7) == pytest.approx(3 * 0.002 + 2)


def test_the_own_timing_model_is_the_one_that_trains_and_must_be_measured(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(PROFILES.joinpath("phone-mid.toml").read_text() + MEASURED)

    def experiment(profile: str, model: str) -> Experiment:
        values = {"name": "x", "timing": {"model": "own"}, "model": model}
        return Experiment.model_validate(values | {"fleet": {"profiles": {profile: 1.0}}})

    names, speeds = fleet_of(experiment(str(mine), "mlp"))
    assert set(names) == {str(mine)}
    assert (speeds.step_s[0], speeds.compute_s[0]) == (0.01, 0.0005)
    with pytest.raises(InputError, match=r"not measured model 'cnn' \(measured: mlp\)"):
        fleet_of(experiment(str(mine), "cnn"))
    with pytest.raises(InputError, match=r"phone-mid has not measured .* \(measured: none\)"):
        fleet_of(experiment("phone-mid", "mlp"))


def test_figures_by_step_go_with_counts_by_step() -> None:
    _, speeds = draw_fleet({"phone-mid": 1.0}, 3, np.random.default_rng(0))
    counts = np.arange(6.0).reshape(3, 2)
    by_step = speeds.by_step.origin.read_s(counts, counts)
    np.testing.assert_array_equal(
        by_step[1], [speeds.take(1).origin.read_s(c, c) for c in counts[1]]
    )


def test_spread_varies_devices_of_a_class_around_its_figures() -> None:
    _, speeds = draw_fleet({"phone-mid": 1.0}, 4000, np.random.default_rng(1), spread=0.3)
    logs = np.log(speeds.compute_s / (64 * 3 / 1000))
    assert abs(logs.mean()) < 0.03
    assert logs.std() == pytest.approx(0.3, rel=0.1)
    # One factor per device and tier: latency and bandwidth move together.
    products = speeds.origin_read_latency_s * speeds.origin_read_bytes_per_s
    assert products == pytest.approx(products[0])


def test_all_devices_have_the_storage_of_one_profile() -> None:
    shares, same = {"phone-low": 1.0, "phone-high": 3.0}, "fedcase-artifact"
    classes, own = draw_fleet(shares, 8, np.random.default_rng(2), spread=0.3)
    again, lent = draw_fleet(shares, 8, np.random.default_rng(2), spread=0.3, storage=same)
    np.testing.assert_array_equal(classes, again)
    tiers = load_profile(same)
    for field in fields(Speeds):
        ours, before = getattr(lent, field.name), getattr(own, field.name)
        tier, _, figure = field.name.partition("_")
        if tier not in ("origin", "cache"):
            np.testing.assert_array_equal(ours, before)
            continue
        figures = [getattr(getattr(load_profile(name), tier), figure) for name in shares]
        factors = before / np.array(figures)[classes]
        assert ours == pytest.approx(factors * getattr(getattr(tiers, tier), figure))


def test_an_experiment_names_the_storage_of_its_devices() -> None:
    values = {"name": "x", "fleet": {"storage": "fedcase-artifact"}}
    _, speeds = fleet_of(Experiment.model_validate(values))
    assert speeds.origin.read_s(3, 20e6) == pytest.approx(2.0)
    assert speeds.cache.read_s(3, 20e9) == pytest.approx(1.0)
    assert (speeds.cache.write_s(1000, 1e9) < 1e-5).all()
    with pytest.raises(InputError, match="did you mean 'fedcase-artifact'"):
        fleet_of(Experiment.model_validate(values | {"fleet": {"storage": "fedcase-artefact"}}))
