"""Stop and resume: a participation that was killed goes as it would have gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients.central import Central
from clients.device import Device, Host
from clients.feed import Batch
from clients.samplers import SAMPLERS
from clients.staging import Kept, Limits
from clients.trainer import Trained, Trainer
from fedio.config import Experiment
from fedio.runs import hash_arrays
from storage import LRU, MemoryStore, Read, SampleCache, StoreFull
from tests.clients.participations import state_of, threads_of_ours

Small = Callable[..., Experiment]
STEPS, EPOCH = 14, 9  # 72 samples by 8


class Killed(BaseException):
    """As if the process had ended."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """What caches are asked for from now on, and how they answer."""
    seen: list[tuple[list[int], list[int]]] = []
    read = SampleCache.read

    def watched(cache: SampleCache, samples: np.ndarray, buffer: np.ndarray) -> Read:
        answer = read(cache, samples, buffer)
        seen.append((samples.tolist(), answer.status.tolist()))
        return answer

    monkeypatch.setattr(SampleCache, "read", watched)
    return seen


def killed_after(steps: int) -> Callable[..., Trained]:
    """A training that does not come to its end."""
    train = Trainer.train

    def some(
        trainer: Trainer, arrays: ArrayRecord, batches: Iterable[Batch], *rest: Any
    ) -> Trained:
        def each() -> Iterator[Batch]:
            for _, batch in zip(range(steps), batches, strict=False):
                yield batch
            raise Killed

        return train(trainer, arrays, each(), *rest)

    return some


def hash_of(arrays: ArrayRecord) -> str:
    return hash_arrays({name: array.numpy() for name, array in arrays.items()})


def experiment_of(small: Small, store: str, **arm: Any) -> Experiment:
    return small(
        data={"clients": 1},
        rounds={"cohort": 1},
        cache={"share": 0.4, "store": store},
        arms={"a": arm},
    )


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("store", "renew"), [("lmdb", False), ("lmdb", True), ("memory", False)])
@pytest.mark.parametrize(
    ("policy", "sampler"),
    [("lru", "uniform"), ("importance", "pads"), ("next_use", "unbiased"), ("icache", "uniform")],
)
def test_a_participation_that_was_killed_is_trained_as_if_it_had_not_been(
    small: Small,
    tmp_path: Path,
    asked: list[tuple[list[int], list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    sampler: str,
    *,
    store: str,
    renew: bool,
    threads: bool,
) -> None:
    """In mid-epoch, at its boundary, and in the second epoch."""
    experiment = experiment_of(small, store, policy=policy, sampler=sampler)
    results = []
    for name, kills in (("straight", ()), ("killed", (4, EPOCH, EPOCH + 2))):
        host, arrays = Host(experiment, tmp_path / name, threads=threads), None
        for server_round in (1, 2):
            arrays = arrays or Central(experiment).initial_arrays
            arrays = host.device(0).train(arrays, server_round, STEPS).arrays
        assert arrays is not None
        for steps in kills:
            with monkeypatch.context() as patch:
                patch.setattr(Trainer, "train", killed_after(steps))
                with pytest.raises(Killed):
                    host.device(0).train(arrays, 3, STEPS)
            assert not threads_of_ours()
            if renew:
                host.close()
                host = Host(experiment, tmp_path / name, threads=threads)
        asked.clear()
        done = host.device(0).train(arrays, 3, STEPS)
        with host.device(0)._cache.newest() as cache:
            results.append(
                (hash_of(done.arrays), done.meter, done.claims, state_of(cache), [*asked])
            )
        host.close()
    assert results[0] == results[1]
    assert done.meter.hits > 0


def test_what_finds_no_room_any_more_stays_lost(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of(small, "lmdb", policy="lru")
    host, arrays = Host(experiment, tmp_path), Central(experiment).initial_arrays
    host.device(0).train(arrays, 1, STEPS)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", killed_after(EPOCH))
        with pytest.raises(Killed):
            host.device(0).train(arrays, 2, STEPS)

    def full(*_: object) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(SampleCache, "refill", full)
    done = host.device(0).train(arrays, 2, STEPS)
    done.meter.check()
    assert done.meter.trained_samples == 8 * STEPS
    host.close()


def test_killed_while_it_stages_or_after_it(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = experiment_of(small, "lmdb", policy="lru", staging=True)
    results = []
    for name, killed in (("straight", False), ("killed", True)):
        host, arrays = Host(experiment, tmp_path / name), Central(experiment).initial_arrays
        host.device(0).train(arrays, 1, STEPS)
        if killed:
            limits = Limits(is_over=_over_after(2))
            with pytest.raises(Killed):
                host.device(0).stage(2, STEPS, limits)
        staged = host.device(0).stage(2, STEPS, Limits())
        if killed:
            with monkeypatch.context() as patch:
                patch.setattr(Trainer, "train", killed_after(EPOCH))
                with pytest.raises(Killed):
                    host.device(0).train(arrays, 2, STEPS)
            host.close()
            host = Host(experiment, tmp_path / name)
        done = host.device(0).train(arrays, 2, STEPS)
        results.append((hash_of(done.arrays), done.meter, done.claims, staged))
        host.close()
    assert results[0] == results[1]
    assert done.meter.staged > 0


def _over_after(reads: int) -> Callable[[], bool]:
    left = iter(range(reads))

    def is_over() -> bool:
        if next(left, None) is None:
            raise Killed
        return False

    return is_over


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_order_follows_from_seed_client_round_notes_and_residents(
    small: Small, tmp_path: Path, sampler: str
) -> None:
    """And from nothing else: not from how the cache came to be as it is."""
    experiment = small(arms={"a": {"sampler": sampler}})
    host = Host(experiment, tmp_path)
    device = host.device(1)
    samples = len(device.data)
    notes: dict[str, np.ndarray] = {}
    for participation in range(3):
        made = SAMPLERS[sampler](samples, 8)
        made.restore(notes)
        made.order(np.ones(samples, dtype=bool), 24, np.random.default_rng(5))
        losses = np.random.default_rng(6).random(samples) / (1 + participation)
        made.feedback(np.arange(samples), losses)
        notes = made.columns()

    def cache_of(arrivals: list[int], reads: int, notes: dict[str, np.ndarray]) -> SampleCache:
        cache = SampleCache(MemoryStore(), 1 << 20, LRU(samples))
        for sample in arrivals:
            cache.put(sample, bytes([sample]) * 100)
        for sample in arrivals[:reads]:
            cache.get(sample)
        cache.save(reads, notes)
        return cache

    def order_of(device: Device, cache: SampleCache, server_round: int = 3) -> list[int]:
        order: list[int] = device._order(cache, None, server_round, 3)[1].tolist()
        return order

    one, other = cache_of([2, 5, 9], 0, notes), cache_of([9, 2, 5], 2, notes)
    expected = order_of(device, one)
    assert order_of(device, other) == expected
    assert order_of(Host(experiment, tmp_path).device(1), one) == expected
    beside = notes | Kept(2, np.array([1]), np.array([4, 5])).notes()
    assert order_of(device, cache_of([2, 5, 9], 0, beside)) == expected
    # And each of them matters, as far as the sampler looks at it.
    assert order_of(device, one, server_round=4) != expected
    assert order_of(Host(experiment, tmp_path).device(2), one) != expected
    seeded = experiment.model_copy(update={"seed": 1})
    assert order_of(Host(seeded, tmp_path).device(1), one) != expected
    elsewhere = order_of(device, cache_of([1, 3, 4, 7], 0, notes))
    assert (elsewhere != expected) == SAMPLERS[sampler].uses_resident
    forgotten = order_of(device, cache_of([2, 5, 9], 0, {}))
    assert (forgotten != expected) == bool(notes)
