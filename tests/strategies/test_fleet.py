from __future__ import annotations

import numpy as np
import pytest

from fedio.protocol import ProfileClaims
from strategies.fleet import CLAIMS, Fleet


def profile(partition: int, **changes: float) -> ProfileClaims:
    values = {
        "samples": 30,
        "mean_size_bytes": 2e3,
        "mean_cached_bytes": 3e3,
        "decoded_share": 1.0,
        "cached_decoded_share": 0.0,
        "budget_bytes": 10_000,
        "resident_samples": 5,
        "resident_bytes": 9_000,
        "compute_s": 0.02,
        "step_s": 0.001,
        "decode_sample_s": 0.01,
        "decode_bytes_per_s": 1e8,
        "readers": 2,
        "depth": 4,
        "buffer_bytes": 1e9,
        "slowdown": 1.0,
        "download_bytes_per_s": 1e6,
        "upload_bytes_per_s": 2e6,
        "memory_bytes": 4e9,
        "origin_read_latency_s": 0.003,
        "origin_read_bytes_per_s": 4e6,
        "cache_read_latency_s": 0.0001,
        "cache_read_bytes_per_s": 1e9,
        "cache_write_latency_s": 0.0002,
        "cache_write_bytes_per_s": 5e8,
    }
    return ProfileClaims(partition=partition, **(values | changes))  # type: ignore[arg-type]


def test_nothing_is_known_of_a_new_fleet() -> None:
    fleet = Fleet.unknown(3)
    assert len(fleet) == 3
    for name in ("samples", "resident_samples", "resident_bytes", "budget_bytes"):
        assert getattr(fleet, name).tolist() == [-1, -1, -1]
    for column in (fleet.utility, fleet.loss, fleet.duration_s, fleet.speeds.compute_s):
        assert np.isnan(column).all()
    assert not fleet.tried.any()
    assert not fleet.feasible(0.0).any()


def test_registered_clients_have_their_claims_in_their_own_rows() -> None:
    fleet = Fleet.unknown(4)
    fleet.registered([profile(3, samples=7, compute_s=0.5), profile(1)])
    assert fleet.samples.tolist() == [-1, 30, -1, 7]
    assert fleet.budget_bytes.tolist() == [-1, 10_000, -1, 10_000]
    np.testing.assert_array_equal(fleet.speeds.compute_s, [np.nan, 0.02, np.nan, 0.5])
    np.testing.assert_array_equal(fleet.speeds.upload_bytes_per_s, [np.nan, 2e6, np.nan, 2e6])
    np.testing.assert_array_equal(fleet.speeds.depth, [np.nan, 4, np.nan, 4])
    assert np.isnan(fleet.utility).all()
    assert fleet.feasible(0.0).tolist() == [False, True, False, True]
    like = fleet.mean_samples(np.array([3, 0]))
    np.testing.assert_array_equal(like.size_bytes, [2e3, np.nan])
    np.testing.assert_array_equal(like.cached_bytes, [3e3, np.nan])
    np.testing.assert_array_equal(like.decoded_share, [1.0, np.nan])
    np.testing.assert_array_equal(like.cached_decoded_share, [0.0, np.nan])
    assert len(fleet.mean_samples().size_bytes) == 4


def test_claims_change_only_the_given_rows_and_columns() -> None:
    fleet = Fleet.unknown(4)
    fleet.claimed([2, 0], 5, utility=[1.5, 2.5], resident_samples=[3, 4])
    np.testing.assert_array_equal(fleet.utility, [2.5, np.nan, 1.5, np.nan])
    assert fleet.resident_samples.tolist() == [4, -1, 3, -1]
    assert fleet.claimed_round.tolist() == [5, 0, 5, 0]
    assert fleet.last_round.tolist() == [0, 0, 0, 0]
    assert np.isnan(fleet.loss).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_claim_that_is_no_whole_number_is_unknown(value: float) -> None:
    fleet = Fleet.unknown(2)
    fleet.claimed([0, 1], 1, resident_samples=[value, 6])
    assert fleet.resident_samples.tolist() == [-1, 6]


@pytest.mark.parametrize("name", ["duration_s", "busy_until_s", "speeds", "nothing"])
def test_observations_cannot_be_claimed(name: str) -> None:
    fleet = Fleet.unknown(2)
    with pytest.raises(ValueError, match=f"{name}.*cannot be claimed"):
        fleet.claimed([0], 1, utility=[3.0], **{name: [1.0]})
    assert np.isnan(fleet.utility).all()
    assert name not in CLAIMS


def test_observations_of_a_round() -> None:
    fleet = Fleet.unknown(5)
    fleet.selected([4, 1, 2], 3)
    fleet.busy([4, 1, 2], [10.0, 20.0, 30.0])
    fleet.observed([4, 1], 3, [9.5, 19.0])
    fleet.trained([4])
    fleet.failed([2])
    assert fleet.times_selected.tolist() == [0, 1, 1, 0, 1]
    assert fleet.selected_round.tolist() == [0, 3, 3, 0, 3]
    assert fleet.last_round.tolist() == [0, 3, 0, 0, 3]
    assert fleet.tried.tolist() == [False, True, False, False, True]
    assert fleet.times_trained.tolist() == [0, 0, 0, 0, 1]
    assert fleet.failures.tolist() == [0, 0, 1, 0, 0]
    np.testing.assert_array_equal(fleet.duration_s, [np.nan, 19.0, np.nan, np.nan, 9.5])
    assert fleet.age_rounds(7).tolist() == [7, 4, 7, 7, 4]


def test_a_late_answer_does_not_make_a_client_younger() -> None:
    fleet = Fleet.unknown(1)
    fleet.observed([0], 6, [1.0])
    fleet.observed([0], 4, [50.0])
    assert fleet.last_round.tolist() == [6]
    assert fleet.duration_s.tolist() == [50.0]


def test_a_client_is_feasible_from_the_moment_its_work_ends() -> None:
    fleet = Fleet.unknown(3)
    fleet.registered([profile(0), profile(1), profile(2, samples=0)])
    fleet.busy([0], [10.0])
    assert fleet.feasible(9.99).tolist() == [False, True, False]
    assert fleet.feasible(10.0).tolist() == [True, True, False]


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    with pytest.raises(IndexError):
        Fleet.unknown(3).selected([0, partition], 1)


def test_read_only_shares_the_memory_and_refuses_writes() -> None:
    fleet = Fleet.unknown(3)
    view = fleet.read_only()
    fleet.selected([1], 1)
    fleet.registered([profile(1)])
    assert view.times_selected.tolist() == [0, 1, 0]
    assert view.speeds.compute_s[1] == 0.02
    for array in view.arrays().values():
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        view.selected([0], 2)


def test_a_table_made_of_its_columns_is_the_same_table() -> None:
    fleet = Fleet.unknown(3)
    fleet.registered([profile(2)])
    fleet.selected([0, 2], 4)
    fleet.claimed([2], 4, utility=[2.0])
    again = Fleet.from_arrays({name: a.copy() for name, a in fleet.arrays().items()})
    assert again.arrays().keys() == fleet.arrays().keys()
    for name, array in fleet.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
        assert again.arrays()[name].dtype == array.dtype
    with pytest.raises(KeyError):
        Fleet.from_arrays({"samples": fleet.samples})
