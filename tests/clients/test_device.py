"""A device: what it reads, keeps, counts and claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients.central import Central
from clients.device import Host, oort_utility
from fedio.config import Experiment
from fedio.runs import hash_arrays

Small = Callable[..., Experiment]


def hash_of(arrays: ArrayRecord) -> str:
    return hash_arrays({name: array.numpy() for name, array in arrays.items()})


@pytest.mark.parametrize("policy", ["lru", "static"])
def test_the_meter_adds_up(small: Small, tmp_path: Path, policy: str) -> None:
    experiment = small(policy)
    host = Host(experiment, tmp_path)
    arrays = Central(experiment).initial_arrays
    sizes = host.data.size_bytes[host.data.samples_of(1)]
    for server_round in (1, 2, 3):
        done = host.device(1).train(arrays, server_round, local_steps=3)
        meter = done.meter
        assert meter.steps == 3
        assert meter.trained_samples == meter.requests == 24
        assert meter.requests == meter.hits + meter.substituted + meter.misses
        assert meter.unique_samples == done.samples == len(sizes) == 18
        # Every sample is read once and six twice: what is not hit comes from the origin.
        assert meter.hit_bytes + meter.origin_bytes >= sizes.sum()
        assert done.claims.resident_bytes <= experiment.cache.budget_of(int(sizes.sum()))
    assert meter.hits > 0
    assert (meter.evicted_samples > 0) == (policy == "lru")


@pytest.mark.parametrize("policy", ["lru", "static"])
def test_stores_and_fresh_processes_make_no_difference(
    small: Small, tmp_path: Path, policy: str
) -> None:
    """Cache content and policy state outlive the host, in another one as in a new process."""
    results = []
    for name, store, renew in (("a", "lmdb", False), ("b", "memory", False), ("c", "lmdb", True)):
        experiment = small(policy, cache={"store": store})
        host = Host(experiment, tmp_path / name)
        arrays = Central(experiment).initial_arrays
        for server_round in range(1, 21):
            if renew:
                host = Host(experiment, tmp_path / name)
            done = host.device(2).train(arrays, server_round, local_steps=3)
            arrays = done.arrays
        results.append((hash_of(arrays), done.meter, done.claims))
        assert done.meter.hits > 0
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("store", "renew"), [("lmdb", False), ("lmdb", True), ("memory", False)])
@pytest.mark.parametrize("policy", ["lru", "static", "importance", "experience"])
def test_a_round_that_is_trained_again_starts_from_the_state_before_it(
    small: Small, tmp_path: Path, policy: str, store: str, renew: bool
) -> None:
    """As after a server was restored from a checkpoint: the cache goes back with it, uncounted."""
    experiment = small(policy, cache={"store": store})
    results = []
    for name, rounds in (("straight", [1, 2, 3, 6]), ("restored", [1, 2, 3, 3, 3, 6, 6])):
        host = Host(experiment, tmp_path / name)
        arrays = {0: Central(experiment).initial_arrays}
        previous = 0
        for server_round in rounds:
            if renew:
                host.close()
                host = Host(experiment, tmp_path / name)
            if server_round == previous:
                previous = max(number for number in arrays if number < server_round)
            done = host.device(2).train(arrays[previous], server_round, local_steps=3)
            arrays[server_round], previous = done.arrays, server_round
        results.append((hash_of(done.arrays), done.meter, done.claims))
        host.close()
    assert results[0] == results[1]


def test_what_is_sent_is_left_as_it_is(small: Small, tmp_path: Path) -> None:
    experiment = small()
    arrays = Central(experiment).initial_arrays
    before = hash_of(arrays)
    done = Host(experiment, tmp_path).device(0).train(arrays, 1, local_steps=2)
    assert hash_of(arrays) == before
    assert hash_of(done.arrays) != before


def test_a_budget_of_zero_misses_always_and_works(small: Small, tmp_path: Path) -> None:
    experiment = small(cache={"share": None, "budget_bytes": 0})
    host = Host(experiment, tmp_path)
    arrays = Central(experiment).initial_arrays
    for server_round in (1, 2):
        meter = host.device(0).train(arrays, server_round, local_steps=3).meter
        assert (meter.hits, meter.misses) == (0, 24)
        assert meter.written_samples == 0


def test_the_cache_changes_what_is_read_but_not_what_is_learned(
    small: Small, tmp_path: Path
) -> None:
    hashes = set()
    for number, share in enumerate((0.0, 0.3, 2.0)):
        experiment = small(cache={"share": share})
        host = Host(experiment, tmp_path / str(number))
        arrays = Central(experiment).initial_arrays
        for server_round in (1, 2):
            arrays = host.device(3).train(arrays, server_round, local_steps=3).arrays
        hashes.add(hash_of(arrays))
    assert len(hashes) == 1


def test_nominal_sizes_are_charged_and_timed_while_payloads_stay(
    small: Small, tmp_path: Path
) -> None:
    drawn = {"median": 2e6, "sigma": 0.5, "min": 1e6, "max": 9e6}
    experiment = small(data={"nominal": {"size_bytes": drawn, "prepared_bytes": 3072}})
    host = Host(experiment, tmp_path)
    profile = host.device(0).profile()
    assert profile.mean_size_bytes > 1e6
    assert profile.budget_bytes == int(profile.mean_size_bytes * profile.samples * 0.5)
    arrays = Central(experiment).initial_arrays
    meter = host.device(0).train(arrays, 1, local_steps=3).meter
    assert meter.origin_bytes > 1e6 * meter.misses
    files = list((tmp_path / "caches" / "0").iterdir())
    assert sum(path.stat().st_blocks * 512 for path in files) < 2e6


def test_a_profile_says_what_the_device_has(small: Small, tmp_path: Path) -> None:
    host = Host(small(), tmp_path)
    profile = host.device(1).profile()
    assert (profile.partition, profile.samples, profile.resident_samples) == (1, 18, 0)
    assert profile.compute_s == host.speeds.compute_s[1]
    host.device(1).train(Central(small()).initial_arrays, 1, local_steps=3)
    assert host.device(1).profile().resident_samples > 0


def test_held_out_samples_are_evaluated_and_never_trained(small: Small, tmp_path: Path) -> None:
    host = Host(small(), tmp_path)
    found = host.device(1).evaluate(Central(small()).initial_arrays)
    assert found.samples == 2
    assert 0 <= found.accuracy <= 1
    none = Host(small(data={"holdout": 0.0}), tmp_path)
    assert none.device(1).evaluate(Central(small()).initial_arrays).samples == 0


def test_oorts_utility_by_hand() -> None:
    losses = np.array([[1.0, 3.0], [2.0, 0.0]])
    # The square root of (1 + 9) / 2 and (4 + 0) / 2 together, times min(n, 4).
    assert oort_utility(losses, 10) == pytest.approx(np.sqrt(7) * 4)
    assert oort_utility(losses, 3) == pytest.approx(np.sqrt(7) * 3)
