"""The budget of a client's cache, and what is in one that begins warm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.budget import room_for
from clients.central import Central
from clients.client_cache import FIRST_TAG, trained_tag
from clients.client_data import Slow
from clients.device import Device, Host
from clients.injection import corrupt
from fedio.config import Experiment
from fedio.errors import RunError
from storage import LRU, MemoryStore, SampleCache
from storage.policies import POLICIES
from tests.clients.participations import state_of

Small = Callable[..., Experiment]
STORES, FORMS = ["lmdb", "memory"], ["encoded", "prepared", "best"]


class Choosy(LRU):
    """Wants no sample with an odd number."""

    def admit(self, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        admitted: np.ndarray = samples % 2 == 0
        return admitted


def bound(small: Small, kind: str, store: str = "lmdb", **arm: Any) -> Experiment:
    """An experiment with an arm whose cache is that, although the share leaves it no room."""
    return small(cache={"share": 0.0, "store": store}, arms={"a": {"cache": kind, **arm}})


def hurdle(reads: list[int]) -> Slow:
    """Stand between a client and its samples, and write down what is read of them."""

    class Watched:
        def __init__(self, origin: Any) -> None:
            self._origin, self.size_bytes = origin, origin.size_bytes

        def read(self, samples: np.ndarray, *rest: Any) -> np.ndarray:
            reads.extend(samples.tolist())
            found: np.ndarray = self._origin.read(samples, *rest)
            return found

    return lambda _, origin, __: Watched(origin)  # type: ignore[return-value]


@pytest.mark.parametrize("scale", [1, 30, 1e3, 4e4, 1e6])
@pytest.mark.parametrize("samples", [1, 7, 300])
def test_there_is_room_for_everything_and_little_more(scale: float, samples: int) -> None:
    drawn = np.random.default_rng(samples).lognormal(0.0, 1.0, samples)
    sizes = np.ceil(scale * drawn).astype(np.int64)
    budget_bytes = room_for(sizes)
    payload, nothing = np.zeros(1, np.uint8), np.zeros(samples, np.int64)

    def taken(budget_bytes: int) -> int:
        cache = SampleCache(MemoryStore(), budget_bytes, LRU(samples))
        cache.offer(np.arange(samples), payload, nothing, nothing, sizes)
        return len(cache)

    assert taken(budget_bytes) == samples
    assert taken(int(0.99 * budget_bytes)) < samples


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("inflated", [False, True])
def test_a_warm_cache_has_everything_from_the_first_and_nothing_counts_it(
    small: Small, tmp_path: Path, store: str, form: str, *, inflated: bool
) -> None:
    drawn = {"median": 2e5, "sigma": 0.5, "min": 1e5, "max": 9e5}
    nominal = {"nominal": {"size_bytes": drawn, "prepared_bytes": 150_528}} if inflated else {}
    arm = bound(small, "warm", store, form=form)
    experiment = small(
        data=nominal, cache=arm.cache.model_dump(exclude_none=True), arms=arm.model_dump()["arms"]
    )
    reads: list[int] = []
    host = Host(experiment, tmp_path, hurdle(reads))
    device, arrays = host.device(1), Central(experiment).initial_arrays
    said = device.profile()
    assert said.resident_samples == said.samples == 18
    assert said.resident_bytes == device.data.form.size_bytes.sum()
    assert said.budget_bytes >= said.resident_bytes
    with device._cache.newest() as cache:
        assert cache.tag == FIRST_TAG
        assert set(dataclasses.astuple(cache.stats)) == {0}
    for server_round in (1, 2):
        meter = device.train(arrays, server_round, local_steps=3).meter
        assert meter.hits == meter.requests == 24
        assert (meter.misses, meter.origin_bytes, meter.written_samples) == (0, 0, 0)
    assert reads == []
    host.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("store", STORES)
def test_an_unbounded_cache_begins_cold_and_reads_nothing_twice(
    small: Small, tmp_path: Path, store: str, policy: str
) -> None:
    experiment = bound(small, "unbounded", store, policy=policy)
    host, arrays = Host(experiment, tmp_path), Central(experiment).initial_arrays
    device = host.device(1)
    assert device.profile().resident_samples == 0
    meters = [device.train(arrays, r, local_steps=2).meter for r in (1, 2, 3)]
    assert meters[0].misses == 16
    assert sum(meter.origin_bytes for meter in meters) == device.data.size_bytes.sum()
    assert sum(meter.evicted_samples for meter in meters) == 0
    assert device.profile().resident_samples == 18
    host.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_warm_cache_is_the_same_whoever_opens_it(
    small: Small, tmp_path: Path, policy: str
) -> None:
    """The process that filled it or another one, on disk or in memory, before or after a return."""
    found = []
    for store, renew in (("lmdb", False), ("lmdb", True), ("memory", False), ("memory", True)):
        experiment = bound(small, "warm", store, policy=policy)
        home, arrays = tmp_path / f"{store}{renew}", Central(experiment).initial_arrays
        host = Host(experiment, home)
        host.device(1).profile()
        for server_round in (1, 2, 1, 2):  # and the first once more
            if renew:
                host.close()
                host = Host(experiment, home)
            done = host.device(1).train(arrays, server_round, local_steps=3)
            assert done.meter.origin_bytes == 0
        with host.device(1)._cache.before(trained_tag(9)) as cache:
            found.append((done.meter, done.claims, state_of(cache)))
        host.close()
    assert found[1:] == found[:1] * 3


def test_a_warm_cache_that_is_damaged_on_purpose_begins_empty(small: Small, tmp_path: Path) -> None:
    host = Host(bound(small, "warm"), tmp_path)
    device = host.device(1)
    assert device.profile().resident_samples == 18
    corrupt(device._cache)
    assert device.profile().resident_samples == 0
    host.close()
    again: Device = Host(host.experiment, tmp_path).device(1)
    assert again.profile().resident_samples == 0


@pytest.mark.parametrize("store", STORES)
def test_a_policy_that_keeps_samples_out_cannot_be_warm(
    small: Small, tmp_path: Path, store: str
) -> None:
    experiment = bound(small, "warm", store, policy=f"{__name__}:Choosy").for_arm("a")
    with pytest.raises(RunError, match="arm a: its policy keeps samples out of a warm cache"):
        Host(experiment, tmp_path).device(1).profile()
