"""Forms: the same images however they are cached, charged and decoded as each form says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients import client_cache
from clients.central import Central
from clients.client_cache import trained_tag
from clients.client_data import client_data
from clients.datasets.dataset import Images
from clients.device import Host
from clients.feed import Batch
from clients.forms import Weights, form_of
from clients.trainer import Trained, Trainer
from fedio.config import Experiment
from fedio.profiles import Speeds, fleet_of
from fedio.runs import hash_arrays
from storage import Layout

Small = Callable[..., Experiment]
FORMS = ["encoded", "prepared", "best"]
NOMINAL = {
    "size_bytes": {"median": 2e6, "sigma": 1.0, "min": 1e5, "max": 9e6},
    "prepared_bytes": 1_000_000,
}
PIXELS = {"dataset": "tests.clients.pixels:load", "nominal": NOMINAL}


class Killed(BaseException):
    """As if the process had ended."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The images of all that is trained from now on, a copy of each batch."""
    seen: list[np.ndarray] = []
    train = Trainer.train

    def watched(
        trainer: Trainer, arrays: ArrayRecord, batches: Iterable[Batch], *rest: Any
    ) -> Trained:
        def each() -> Iterator[Batch]:
            for batch in batches:
                seen.append(batch[0].copy())
                yield batch

        return train(trainer, arrays, each(), *rest)

    monkeypatch.setattr(Trainer, "train", watched)
    return seen


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each file that is decoded from now on."""
    seen: list[int] = []
    decode = Images._decode

    def watched(images: Images, payload: np.ndarray) -> np.ndarray:
        seen.append(len(payload))
        return decode(images, payload)

    monkeypatch.setattr(Images, "_decode", watched)
    return seen


def with_form(small: Small, form: str, **sections: Any) -> Experiment:
    return small(arms={"a": {"policy": "lru", "form": form}}, **sections)


def speeds(**figures: float) -> Speeds:
    """A device of which nothing takes any time but what is said."""
    values = {
        name: np.float64(0.0 if name.endswith(("_s", "latency_s")) else 1.0)
        for name in Speeds.__dataclass_fields__
    }
    values |= {name: np.float64(np.inf) for name in values if name.endswith("_bytes_per_s")}
    return Speeds(**(values | {name: np.float64(value) for name, value in figures.items()}))


def test_the_best_form_by_hand() -> None:
    """Files of 3000 and 200 bytes, 3072 when prepared, charged 3120 or 165 and 3120 at that."""
    layout = Layout.for_budget(1 << 20)
    costs = [layout.cost_of(size) for size in (3000, 200, 3072)]
    device = speeds(
        origin_read_latency_s=0.010,
        origin_read_bytes_per_s=1e6,
        cache_read_latency_s=0.001,
        cache_read_bytes_per_s=1e8,
        decode_sample_s=0.002,
        decode_bytes_per_s=1e6,
    )
    # From the origin 13 ms and 10.2 ms, decoding 5 ms and 2.2 ms, from the cache 1 ms and a bit.
    encoded = [(0.0130 - 0.001030) / costs[0], (0.0102 - 0.001002) / costs[1]]
    ready = [(0.0130 + 0.0050 - 0.00103072) / costs[2], (0.0102 + 0.0022 - 0.00103072) / costs[2]]
    assert [one > other for one, other in zip(ready, encoded, strict=True)] == [True, False]
    weights = Weights(np.array([3000, 200]), np.array([3072, 3072]), is_timed=True)
    form = form_of("best", weights, device, layout)
    assert form.prepared.tolist() == [True, False]
    assert form.size_bytes.tolist() == [3072, 200]
    # Far away both forms save as much, and the cheaper one is better. Here it is the file.
    far = replace(device, origin_read_latency_s=np.float64(10.0))
    assert layout.cost_of(2500) < costs[2]
    weights = Weights(np.array([2500]), np.array([3072]), is_timed=True)
    assert form_of("best", weights, device, layout).prepared.tolist() == [True]
    assert form_of("best", weights, far, layout).prepared.tolist() == [False]
    # A slow cache is slower for what is larger there: 0.7 ms are lost, or 71 ms.
    slow = replace(device, cache_read_latency_s=np.float64(0.0))
    slow = replace(slow, cache_read_bytes_per_s=np.float64(1e5))
    weights = Weights(np.array([9000]), np.array([3072]), is_timed=True)
    assert (0.019 + 0.011 - 0.03072) / costs[2] > (0.019 - 0.09) / layout.cost_of(9000)
    assert form_of("best", weights, slow, layout).prepared.tolist() == [True]


@pytest.mark.parametrize("name", FORMS)
def test_a_form_says_what_each_sample_weighs(name: str) -> None:
    weights = Weights(np.array([5000, 100]), np.array([3072, 3072]), is_timed=True)
    form = form_of(name, weights, speeds(), Layout.for_budget(1 << 20))
    assert form.size_bytes.tolist() == np.where(form.prepared, 3072, [5000, 100]).tolist()
    untimed = replace(weights, is_timed=False)
    form = form_of(name, untimed, speeds(), Layout.for_budget(1 << 20))
    assert not form.some_prepared
    assert form.size_bytes.tolist() == [5000, 100]


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("data", [{}, PIXELS], ids=["photos", "inflated"])
def test_images_are_the_same_in_every_form(
    small: Small,
    tmp_path: Path,
    data: dict[str, Any],
    trained: list[np.ndarray],
    *,
    prefetch: bool,
) -> None:
    images, hashes, hits = [], set(), []
    for form in FORMS:
        arms = {"a": {"policy": "lru", "form": form, "prefetch": prefetch}}
        experiment = small(data=data, arms=arms)
        host = Host(experiment, tmp_path / form, threads=True)
        arrays = Central(experiment).initial_arrays
        trained.clear()
        for server_round in range(1, 5):
            done = host.device(1).train(arrays, server_round, local_steps=3)
            done.meter.check()
            arrays = done.arrays
        host.close()
        images.append(np.concatenate(trained))
        hits.append(done.meter.hits)
        hashes.add(hash_arrays({name: array.numpy() for name, array in arrays.items()}))
    np.testing.assert_array_equal(images[0], images[1])
    np.testing.assert_array_equal(images[0], images[2])
    assert len(hashes) == 1
    assert min(hits) > 0


@pytest.mark.parametrize("form", FORMS)
def test_only_what_is_not_prepared_is_decoded(
    small: Small, tmp_path: Path, decoded: list[int], form: str
) -> None:
    experiment = with_form(small, form)
    host = Host(experiment, tmp_path)
    arrays = Central(experiment).initial_arrays
    data, decodes = host.device(1).data, []
    for server_round in range(1, 5):
        decoded.clear()
        meter = host.device(1).train(arrays, server_round, local_steps=3).meter
        assert len(decoded) == meter.decoded_samples
        assert sum(decoded) == meter.decoded_bytes
        decodes.append(meter.decoded_samples)
        if form == "prepared":
            assert meter.decoded_samples == meter.misses
        if form == "encoded":
            assert meter.decoded_samples == meter.requests
    if form == "best":
        assert 0 < np.count_nonzero(data.form.prepared) < len(data)
        assert decodes[-1] < 24
    host.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("store", ["lmdb", "memory"])
def test_payloads_are_charged_what_they_are(
    small: Small, tmp_path: Path, form: str, store: str
) -> None:
    experiment = with_form(small, form, cache={"store": store})
    host = Host(experiment, tmp_path)
    device, arrays = host.device(1), Central(experiment).initial_arrays
    for server_round in (1, 2):
        device.train(arrays, server_round, local_steps=3)
    data = device.data
    with device._cache.newest() as cache:
        residents = cache.residents
        assert len(residents) > 3
        assert cache.used_bytes <= cache.usable_bytes <= cache.budget_bytes
        sizes = data.form.size_bytes[residents]
        assert cache.resident_bytes == sizes.sum()
        lengths = [len(cache.get(sample) or b"") for sample in residents.tolist()]
        assert lengths == sizes.tolist() == data.cached_length_bytes[residents].tolist()
        assert all(sizes[data.form.prepared[residents]] == 3 * 32 * 32)
        assert cache.used_bytes == cache._index.layout.cost(sizes).sum()
    host.close()


@pytest.mark.parametrize("form", FORMS)
def test_inflated_samples_are_charged_what_is_declared(
    small: Small, tmp_path: Path, form: str
) -> None:
    experiment = with_form(small, form, data=PIXELS, cache={"share": 0.15})
    host = Host(experiment, tmp_path)
    device, arrays = host.device(1), Central(experiment).initial_arrays
    for server_round in (1, 2):
        meter = device.train(arrays, server_round, local_steps=3).meter
    data = device.data
    with device._cache.newest() as cache:
        residents = cache.residents
        assert cache.resident_bytes == data.form.size_bytes[residents].sum()
        assert cache.used_bytes <= cache.usable_bytes
        assert {len(cache.get(s) or b"") for s in residents.tolist()} == {3 * 8 * 8}
    assert 0 < meter.hits < meter.requests
    assert (meter.decoded_samples == meter.requests) == (form == "encoded")
    assert (meter.decoded_samples == meter.misses) == (form == "prepared")
    if form == "best":
        assert 0 < np.count_nonzero(data.form.prepared) < len(data)
    expected = np.where(data.form.prepared, 1_000_000, data.size_bytes)
    assert data.form.size_bytes.tolist() == expected.tolist()
    host.close()


def test_a_cache_in_another_form_is_not_trusted(
    small: Small, tmp_path: Path, trained: list[np.ndarray]
) -> None:
    arrays = Central(small()).initial_arrays
    first: dict[str, list[np.ndarray]] = {}
    for number, form in enumerate(["encoded", "prepared", "best", "prepared", "prepared"]):
        host = Host(with_form(small, form), tmp_path)
        trained.clear()
        meter = host.device(1).train(arrays, 1 + number, local_steps=2).meter
        # 16 of 18 samples, no one twice: hits are from the participation before.
        assert (meter.hits > 0) == (number == 4)
        host.close()
        alone = Host(with_form(small, "encoded"), tmp_path / str(number))
        first[form] = list(trained)
        trained.clear()
        alone.device(1).train(arrays, 1 + number, local_steps=2)
        alone.close()
        for ours, theirs in zip(first[form], trained, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_best_form_is_known_by_what_it_chose(small: Small, tmp_path: Path) -> None:
    """A device as fast as others but for its origin may choose otherwise."""
    experiment = with_form(small, "best", data=PIXELS)
    host = Host(experiment, tmp_path)
    _, fleet = fleet_of(experiment)
    mine = fleet.take(1)
    near = replace(mine, origin_read_latency_s=np.float64(0.0))
    near = replace(near, origin_read_bytes_per_s=np.float64(1e12))
    ours = client_data(experiment, host.data, 1, mine)
    theirs = client_data(experiment, host.data, 1, near)
    assert ours.form.prepared.tolist() == host.device(1).data.form.prepared.tolist()
    assert ours.form.prepared.tolist() != theirs.form.prepared.tolist()
    arrays = Central(experiment).initial_arrays
    host.device(1).train(arrays, 1, local_steps=2)
    host.close()
    host.speeds.origin_read_latency_s[1], host.speeds.origin_read_bytes_per_s[1] = 0.0, 1e12
    other = Host(experiment, tmp_path)
    other.speeds = host.speeds
    assert other.device(1).train(arrays, 2, local_steps=2).meter.hits == 0
    other.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("renew", [False, True])
def test_lost_payloads_come_back_in_their_form(
    small: Small, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, *, renew: bool
) -> None:
    monkeypatch.setattr(client_cache, "LOADED_AT_ONCE", 2)
    experiment = with_form(small, form, cache={"share": 0.4})
    host, arrays = Host(experiment, tmp_path), Central(experiment).initial_arrays
    for server_round in (1, 2):
        host.device(1).train(arrays, server_round, local_steps=3)
    with host.device(1)._cache.newest() as cache:
        expected = {sample: cache.get(sample) for sample in cache.residents.tolist()}
        assert not len(cache.missing)
    train = Trainer.train

    def killed(trainer: Trainer, arrays: ArrayRecord, batches: Iterable[Batch], *rest: Any) -> None:
        def some() -> Iterator[Batch]:
            for _, batch in zip(range(3), batches, strict=False):
                yield batch
            raise Killed

        train(trainer, arrays, some(), *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", killed)
        with pytest.raises(Killed):
            host.device(1).train(arrays, 3, local_steps=4)
    if renew:
        host.close()
        host = Host(experiment, tmp_path)
    with host.device(1)._cache.newest() as cache:
        assert len(cache.missing) > 2
        written = cache.stats.written_samples
        host.device(1)._cache._refill(cache)
        assert not len(cache.missing)
        assert cache.residents.tolist() == sorted(expected)
        for sample, payload in expected.items():
            assert cache.get(sample) == payload
        assert cache.stats.written_samples == written
    with host.device(1)._cache.before(trained_tag(3)) as cache:
        assert cache.residents.tolist() == sorted(expected)
    host.close()
