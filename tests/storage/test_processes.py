"""Several processes, forked and spawned, and the loaders of PyTorch: right bytes or a miss."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from storage import LRU, POLICIES, NotAllowed, SampleCache, open_cache

SAMPLES = 200
BUDGET = 1 << 20
SIZE = 3000


def content(sample: int) -> np.ndarray:
    return np.random.default_rng(sample).integers(0, 256, SIZE, dtype=np.uint8)


def opened(folder: Path) -> SampleCache:
    return open_cache(folder, BUDGET, POLICIES["lru"](SAMPLES), identity="data")


def put(cache: SampleCache, samples: range) -> None:
    for sample in samples:
        cache.offer(np.array([sample]), content(sample), np.array([0]), np.array([SIZE]))


def from_bytes(pickled: bytes) -> SampleCache:
    cache = pickle.loads(pickled)  # noqa: S301 - made here
    assert isinstance(cache, SampleCache)
    return cache


class Samples(Dataset[torch.Tensor]):
    """Samples through a cache that is opened here, or there when first asked."""

    def __init__(self, folder: Path, cache: SampleCache | None) -> None:
        self.folder = folder
        self.cache = cache

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> torch.Tensor:
        self.cache = self.cache or opened(self.folder)
        payload = self.cache.get(sample)
        found = content(sample) if payload is None else np.frombuffer(payload, np.uint8)
        return torch.from_numpy(found.copy())


LOADERS = [
    pytest.param(workers, method, marks=[pytest.mark.slow] if method == "spawn" else [])
    for workers, method in [(0, None), (1, "fork"), (4, "fork"), (1, "spawn"), (4, "spawn")]
]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("unsaved", [False, True])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("workers", "method"), LOADERS)
def test_loaders_get_the_same_batches_however_they_work(
    tmp_path: Path, workers: int, method: str | None, before: bool, unsaved: bool
) -> None:
    cache = opened(tmp_path)
    put(cache, range(100))
    cache.save(1)
    if unsaved:
        put(cache, range(100, 180))
    if not before:
        cache.close()
    loader = DataLoader(
        Samples(tmp_path, cache if before else None),
        batch_size=16,
        num_workers=workers,
        multiprocessing_context=method,
    )
    batches = torch.cat(list(loader))
    assert torch.equal(batches, torch.from_numpy(np.stack([content(s) for s in range(SAMPLES)])))
    if before:
        put(cache, range(180, 190))
        cache.save(2)
        cache.close()


def _in(method: str, target: Callable[..., None], *args: object) -> None:
    child = multiprocessing.get_context(method).Process(target=target, args=args)
    child.start()
    child.join()
    assert child.exitcode == 0


def _use_a_pickled_handle(pickled: bytes, expected: list[int]) -> None:
    cache = from_bytes(pickled)
    assert cache.residents.tolist() == expected
    assert cache.tag == 3
    assert all(cache.get(s) == content(s).tobytes() for s in expected)
    put(cache, range(150, 155))
    cache.save(4)
    cache.close()


def test_a_pickled_handle_carries_path_and_options_and_works_elsewhere(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    put(cache, range(50))
    cache.save(3)
    pickled = pickle.dumps(cache)
    assert len(pickled) < 1000
    with from_bytes(pickled) as twin:
        put(twin, range(50, 60))
        assert 55 in cache
        twin.delete(np.arange(50, 60))
        twin.save(3)
    cache.close()
    _in("spawn", _use_a_pickled_handle, pickled, list(range(50)))
    with opened(tmp_path) as again:
        assert again.tag == 4
        assert 152 in again


class Odd(LRU):
    """A policy with an argument of its own."""

    def __init__(self, samples: int, parity: int) -> None:
        super().__init__(samples)
        self.parity = parity


def test_a_pickled_handle_makes_its_policy_as_it_was_made(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, BUDGET, Odd(SAMPLES, parity=1))
    pickled = pickle.dumps(cache)
    cache.close()
    with from_bytes(pickled) as again:
        assert isinstance(again.policy, Odd)
        assert (again.policy.samples, again.policy.parity) == (SAMPLES, 1)


def test_a_cache_in_memory_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="open_cache"):
        pickle.dumps(open_cache(None, BUDGET, POLICIES["lru"](9)))


def _try_to_change(folder: Path) -> None:
    cache = opened(folder)
    with pytest.raises(NotAllowed, match="being written by process"):
        put(cache, range(1))
    with pytest.raises(NotAllowed, match="being written by process"):
        cache.save(9)
    assert all(cache.get(s) in {None, content(s).tobytes()} for s in range(SAMPLES))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_process_changes_a_cache_while_others_read_it(tmp_path: Path, method: str) -> None:
    cache = opened(tmp_path)
    put(cache, range(20))
    cache.save(1)
    put(cache, range(20, 40))
    _in(method, _try_to_change, tmp_path)
    put(cache, range(40, 60))
    cache.save(2)
    assert cache.residents.tolist() == list(range(60))


def _change_and_save(folder: Path) -> None:
    with opened(folder) as cache:
        put(cache, range(100, 120))
        cache.save(2)


def test_who_missed_a_change_of_another_process_has_to_open_the_cache_again(
    tmp_path: Path,
) -> None:
    cache = opened(tmp_path)
    put(cache, range(20))
    cache.save(1)
    _in("spawn", _change_and_save, tmp_path)
    assert not cache.is_current
    assert all(cache.get(s) in {None, content(s).tobytes()} for s in range(SAMPLES))
    with pytest.raises(NotAllowed, match="another process has changed"):
        put(cache, range(30, 31))
    with pytest.raises(NotAllowed, match="another process has changed"):
        cache.save(3)
    with opened(tmp_path) as again:
        assert again.tag == 2
        put(again, range(130, 131))
        assert 110 in again
        assert 110 not in cache
    cache.close()


def _hold(folder: Path, ready: Connection) -> None:
    cache = opened(folder)
    put(cache, range(5))
    ready.send(None)
    signal.pause()


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    mine, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path, theirs))
    child.start()
    mine.recv()
    with opened(tmp_path) as cache, pytest.raises(NotAllowed, match=f"process {child.pid}"):
        put(cache, range(9))
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    with opened(tmp_path) as cache:
        put(cache, range(9))
        assert len(cache) == 9


def test_a_reader_of_a_folder_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="there is no cache"):
        open_cache(tmp_path / "none", BUDGET, POLICIES["lru"](SAMPLES), read_only=True)
    assert not (tmp_path / "none").exists()
    with opened(tmp_path) as cache:
        put(cache, range(9))
        cache.save(1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".mdb"}
    policy = POLICIES["lru"](SAMPLES)
    with open_cache(tmp_path, BUDGET, policy, identity="data", read_only=True) as reader:
        assert reader.get(3) == content(3).tobytes()
        assert reader.get(50) is None
        for change in (lambda: put(reader, range(1)), lambda: reader.save(2), reader.compact):
            with pytest.raises(NotAllowed, match="read-only"):
                change()
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".mdb"}
    assert before == after


def _put_and_save(folder: Path, first: int, last: int, tag: int) -> None:
    with opened(folder) as cache:
        put(cache, range(first, last))
        cache.save(tag)


def test_what_others_wrote_is_not_taken_for_damage(tmp_path: Path) -> None:
    _in("fork", _put_and_save, tmp_path, 0, 60, 1)
    old = opened(tmp_path)
    _in("fork", _put_and_save, tmp_path, 60, 160, 2)
    for _ in range(3):
        with opened(tmp_path) as cache:
            assert (cache.tag, len(cache)) == (2, 160)
    with opened(tmp_path) as cache:
        put(cache, range(160, 170))
        assert not cache.rebuilt
        assert len(cache) == 170
        cache.save(3)
    old.close()


def test_a_failed_opening_leaves_nothing_open(tmp_path: Path) -> None:
    mine, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path, theirs))
    child.start()
    mine.recv()
    for _ in range(2):
        with pytest.raises(NotAllowed, match="being written"):
            open_cache(tmp_path, BUDGET, POLICIES["lru"](SAMPLES), identity="other")
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    with open_cache(tmp_path, BUDGET, POLICIES["lru"](SAMPLES), identity="other") as cache:
        assert "other data" in cache.rebuilt_reason
        put(cache, range(3))


def test_who_only_declines_keeps_nobody_from_writing(tmp_path: Path) -> None:
    with open_cache(tmp_path, 100_000, POLICIES["static"](SAMPLES), identity="data") as cache:
        put(cache, range(SAMPLES))
        cache.save(1)
        before = len(cache)
        cache.offer(np.array([199]), content(199), np.array([0]), np.array([SIZE]))
        assert len(cache) == before
        _in("fork", _delete_and_save, tmp_path)
        assert not cache.is_current


def _delete_and_save(folder: Path) -> None:
    with open_cache(folder, 100_000, POLICIES["static"](SAMPLES), identity="data") as cache:
        cache.delete(cache.residents[:3])
        cache.save(2)
