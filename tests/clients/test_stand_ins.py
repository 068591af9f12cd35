"""A policy that substitutes: the model trains on what was served, and everything counts that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clients.central import Central
from clients.client_data import ClientData
from clients.datapath import Ahead, Buffers, DataPath
from clients.device import Host
from fedio.config import Experiment
from fedio.runs import hash_arrays
from storage import Read, SampleCache, open_cache
from storage.policies import ICache

Small = Callable[..., Experiment]
BATCH = 8


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, Read]]:
    """What caches are asked for from now on, and what they answer."""
    found: list[tuple[np.ndarray, Read]] = []
    read = SampleCache.read

    def watched(cache: SampleCache, samples: np.ndarray, buffer: np.ndarray) -> Read:
        found.append((samples.copy(), read(cache, samples, buffer)))
        return found[-1][1]

    monkeypatch.setattr(SampleCache, "read", watched)
    return found


def images_of(data: ClientData, samples: np.ndarray) -> np.ndarray:
    lengths = data.origin.size_bytes[samples]
    buffer = np.empty(int(lengths.sum()), np.uint8)
    images = np.empty((len(samples), *data.dataset.shape), np.uint8)
    data.dataset.decode(buffer, data.origin.read(samples, buffer, 0), lengths, images)
    return images


def test_batches_are_what_was_served_and_the_meter_counts_that(
    small: Small, tmp_path: Path, reads: list[tuple[np.ndarray, Read]]
) -> None:
    data = Host(small(), tmp_path).device(1).data
    samples, sizes, rng = len(data.labels), data.size_bytes, np.random.default_rng(0)
    cache = open_cache(None, int(sizes.sum()) // 2, ICache(samples, important_share=0.3))
    substituted = 0
    for _ in range(12):
        cache.policy.plan(np.empty(0, np.int64))
        before = cache.stats.copy()
        reads.clear()
        order = rng.integers(0, samples, 5 * BATCH)
        path = DataPath(order, BATCH, data, cache, Buffers(), Ahead())
        for batch in path.batches():
            np.testing.assert_array_equal(batch.samples, reads[-1][1].samples)
            np.testing.assert_array_equal(batch.labels, data.labels[batch.samples])
            np.testing.assert_array_equal(batch.images, images_of(data, batch.samples))
            path.feedback(batch.samples, rng.exponential(size=BATCH))
        path.finish()
        counts = path.meter.result(cache.stats - before)
        counts.check()
        served = np.concatenate([read.samples for _, read in reads])
        missed = np.concatenate([samples[~read.served] for samples, read in reads])
        assert counts.requests == counts.trained_samples == len(served)
        assert counts.requests == counts.hits + counts.substituted + counts.misses
        assert counts.misses == len(missed)
        assert counts.substituted == np.count_nonzero(served != order)
        assert counts.unique_samples == len(np.unique(served))
        assert counts.origin_bytes == sizes[missed].sum()
        assert counts.hit_bytes + counts.origin_bytes == sizes[served].sum()
        assert counts.decoded_samples == len(served)
        assert counts.decoded_bytes == sizes[served].sum()
        substituted += counts.substituted
    assert substituted > 20


def test_losses_go_to_what_was_trained(
    small: Small,
    tmp_path: Path,
    reads: list[tuple[np.ndarray, Read]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[np.ndarray] = []
    feedback = SampleCache.feedback

    def watched(cache: SampleCache, samples: np.ndarray, losses: np.ndarray) -> None:
        told.append(samples.copy())
        feedback(cache, samples, losses)

    monkeypatch.setattr(SampleCache, "feedback", watched)
    experiment = small("icache")
    host, arrays = Host(experiment, tmp_path), Central(experiment).initial_arrays
    for server_round in range(1, 6):
        arrays = host.device(1).train(arrays, server_round, local_steps=5).arrays
    served = np.concatenate([read.samples for _, read in reads])
    assert np.any(served != np.concatenate([samples for samples, _ in reads]))
    np.testing.assert_array_equal(np.concatenate(told), served)


def test_stores_new_hosts_and_rounds_trained_again_make_no_difference(
    small: Small, tmp_path: Path
) -> None:
    results, substituted = [], 0
    for name, store, renew in (("a", "lmdb", False), ("b", "memory", False), ("c", "lmdb", True)):
        experiment = small("icache", cache={"store": store})
        host, arrays = Host(experiment, tmp_path / name), Central(experiment).initial_arrays
        for server_round in range(1, 9):
            if renew:
                host.device(2).train(arrays, server_round, local_steps=4)
                host.close()
                host = Host(experiment, tmp_path / name)
            done = host.device(2).train(arrays, server_round, local_steps=4)
            arrays = done.arrays
            substituted += done.meter.substituted
        hashed = hash_arrays({name: array.numpy() for name, array in arrays.items()})
        results.append((hashed, done.meter, done.claims))
        host.close()
    assert results[0] == results[1] == results[2]
    assert substituted > 0
