"""A device: what it reads, keeps, counts and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients.central import Central
from clients.datapath import Ahead
from clients.device import Device, Host, oort_utility
from clients.feed import Batch
from clients.trainer import Trained, Trainer
from fedio.config import Experiment
from fedio.runs import hash_arrays
from storage import POLICIES, SampleCache
from tests.clients.participations import state_of, threads_of_ours

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
        meter.check()
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


PROFILE = """
description = "a device that reads far ahead, with three readers"
source = "a test"
inference_ms = 20.0
download_bytes_per_s = 1e6
upload_bytes_per_s = 1e6
memory_bytes = 4_000_000_000

[prefetch]
readers = 3
batches = 5

[origin]
read_latency_s = 0.01
read_bytes_per_s = 1e7
write_latency_s = 0.01
write_bytes_per_s = 1e7

[cache]
read_latency_s = 0.001
read_bytes_per_s = 1e9
write_latency_s = 0.001
write_bytes_per_s = 1e9
"""


@pytest.fixture
def far(tmp_path: Path) -> dict[str, dict[str, float]]:
    """A fleet of such devices."""
    profile = tmp_path / "far.toml"
    profile.write_text(PROFILE)
    return {"profiles": {str(profile): 1.0}}


@pytest.mark.parametrize("sampler", ["uniform", "pads"])
@pytest.mark.parametrize("policy", POLICIES)
def test_threads_make_no_difference(
    small: Small, tmp_path: Path, far: dict[str, dict[str, float]], policy: str, sampler: str
) -> None:
    experiment = small(
        fleet=far,
        data={"clients": 1},
        rounds={"cohort": 1},
        arms={"a": {"policy": policy, "sampler": sampler}},
    )
    results = []
    for threads in (False, True):
        host = Host(experiment, tmp_path / str(threads), threads=threads)
        arrays = Central(experiment).initial_arrays
        for server_round in (1, 2, 3):
            done = host.device(0).train(arrays, server_round, local_steps=8)
            arrays = done.arrays
        with host.device(0)._cache.newest() as cache:
            state = state_of(cache)
        results.append((hash_of(arrays), done.train_loss, done.meter, done.claims, state))
        host.close()
    assert results[0] == results[1]
    assert (done.meter.depth, done.meter.readers) == (5, 3)
    assert done.meter.hits > 0
    assert not threads_of_ours()


def test_policy_and_trainer_hear_what_the_sampler_says(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[np.ndarray] = []
    weights: list[np.ndarray | None] = []
    plan, train = SampleCache.plan, Trainer.train

    def heard(cache: SampleCache, order: np.ndarray) -> None:
        planned.append(order.copy())
        plan(cache, order)

    def given(
        trainer: Trainer, arrays: ArrayRecord, batches: Iterable[Batch], *rest: Any
    ) -> Trained:
        def each() -> Iterator[Batch]:
            for batch in batches:
                weights.append(batch[2])
                yield batch

        return train(trainer, arrays, each(), *rest)

    monkeypatch.setattr(SampleCache, "plan", heard)
    monkeypatch.setattr(Trainer, "train", given)
    experiment = small(arms={"a": {"sampler": "unbiased", "policy": "next_use"}})
    device = Host(experiment, tmp_path).device(1)
    arrays = Central(experiment).initial_arrays
    device.train(arrays, 1, local_steps=3)
    with device._cache.newest() as cache:
        sampler, order = device._order(cache, None, 2, 3)
    planned.clear()
    weights.clear()
    device.train(arrays, 2, local_steps=3)
    assert [one.tolist() for one in planned] == [order.tolist()]
    expected = sampler.checked_weights(order)
    assert expected is not None
    assert len(set(expected.tolist())) == 2
    np.testing.assert_array_equal(np.concatenate([w for w in weights if w is not None]), expected)


def test_reading_runs_ahead_as_far_as_memory_and_the_arm_allow(
    small: Small, tmp_path: Path, far: dict[str, dict[str, float]]
) -> None:
    def device(**arm: object) -> Device:
        return Host(small(fleet=far, arms={"a": arm}), tmp_path).device(1)

    encoded, batch_bytes, images_bytes = device(), 50_000, 8 * 3 * 32 * 32
    assert encoded._ahead(batch_bytes) == Ahead(5, 3, threads=True)
    assert device(prefetch=False)._ahead(batch_bytes) == Ahead(1, 1)
    # What is cached prepared is decoded before it is offered, one batch after the other.
    assert device(form="prepared")._ahead(batch_bytes) == Ahead(5, 1, threads=True)
    # Batches of images, beside what three readers are reading.
    for room, depth in ((2.5, 2), (1.0, 1), (0.5, 1), (4.0, 4), (9.0, 5)):
        room_bytes = np.float64(room * images_bytes + 3 * batch_bytes)
        encoded._speeds = replace(encoded._speeds, buffer_bytes=room_bytes)
        assert encoded._ahead(batch_bytes).depth == depth


def test_a_device_does_what_it_says(
    small: Small, tmp_path: Path, far: dict[str, dict[str, float]]
) -> None:
    for number, arm in enumerate(({}, {"prefetch": False}, {"form": "prepared"})):
        experiment = small(fleet=far, arms={"a": arm})
        host = Host(experiment, tmp_path / str(number))
        meter = host.device(1).train(Central(experiment).initial_arrays, 1, local_steps=3).meter
        said = host.device(1).profile()
        assert (said.depth, said.readers) == (meter.depth, meter.readers)
        host.close()


def test_threads_are_for_what_takes_time(small: Small, tmp_path: Path) -> None:
    pixels = small(data={"dataset": "tests.clients.pixels:load"})
    assert Host(small(), tmp_path).threads
    assert not Host(pixels, tmp_path).threads
    assert Host(pixels, tmp_path, slow=lambda _, origin, __: origin).threads
    assert not Host(small(), tmp_path, threads=False).threads


def test_a_profile_says_how_samples_are_cached(small: Small, tmp_path: Path) -> None:
    for form, decoded in (("encoded", 1.0), ("prepared", 0.0)):
        host = Host(small(arms={"a": {"form": form}}), tmp_path / form)
        said, data = host.device(1).profile(), host.device(1).data
        assert said.mean_cached_bytes == data.form.size_bytes.mean()
        assert (said.decoded_share, said.cached_decoded_share) == (1.0, decoded)
    pixels = small(data={"dataset": "tests.clients.pixels:load"})
    said = Host(pixels, tmp_path / "pixels").device(1).profile()
    assert (said.decoded_share, said.cached_decoded_share) == (0.0, 0.0)


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
    losses, steps = np.array([1.0, 3.0, 2.0, 0.0]), np.array([2, 2])
    # The square root of (1 + 9) / 2 and (4 + 0) / 2 together, times min(n, 4).
    assert oort_utility(losses, steps, 10) == pytest.approx(np.sqrt(7) * 4)
    assert oort_utility(losses, steps, 3) == pytest.approx(np.sqrt(7) * 3)
