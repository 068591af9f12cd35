"""A cache that is opened again is what was saved, or says what it lost; damage is never trusted."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import POLICIES, SampleCache, Status, open_cache
from storage.errors import CorruptCache
from storage.snapshot import Snapshot

Watch = Callable[..., Any]
BUDGET = 1 << 20
SIZES = [784, 3073, 4096, 20_000]


def fill(watched: Any, count: int = 30) -> None:
    for sample in range(count):
        watched.offer([sample], [SIZES[sample % 4]])


def decide(cache: SampleCache, seed: int, batches: int = 200) -> list[object]:
    """Hits and residents of a random trace."""
    rng = np.random.default_rng(seed)
    decisions: list[object] = []
    buffer = np.zeros(4 * 30_000, np.uint8)
    sizes = np.random.default_rng(1).integers(300, 30_000, cache.policy.samples)
    for _ in range(batches):
        samples = rng.integers(0, cache.policy.samples, 4)
        read = cache.read(samples, buffer)
        missed = np.unique(samples[~read.served])
        lengths = sizes[missed]
        taken = cache.offer(missed, buffer, np.cumsum(lengths) - lengths, lengths)
        decisions.append([read.status.tolist(), taken.tolist(), cache.residents.tolist()])
    return decisions


def _decide_elsewhere(folder: Path, policy: str, answer: Path) -> None:
    with open_cache(folder, BUDGET, POLICIES[policy](150)) as cache:
        head = [cache.tag, cache.residents.tolist(), cache.rebuilt]
        answer.write_text(json.dumps([head, decide(cache, seed=9)]))


def test_another_process_goes_on_as_if_the_cache_had_stayed_open(
    tmp_path: Path, policy_name: str
) -> None:
    folder, answer = tmp_path / "cache", tmp_path / "answer.json"
    cache = open_cache(folder, BUDGET, POLICIES[policy_name](150))
    twin = open_cache(None, BUDGET, POLICIES[policy_name](150))
    decide(cache, seed=3)
    decide(twin, seed=3)
    cache.save(tag=17)
    cache.close()
    child = multiprocessing.get_context("spawn").Process(
        target=_decide_elsewhere, args=(folder, policy_name, answer)
    )
    child.start()
    child.join()
    head, decisions = json.loads(answer.read_text())
    assert head == [17, twin.residents.tolist(), False]
    assert decisions == decide(twin, seed=9)


def test_a_memory_store_keeps_what_was_saved(policy_name: str) -> None:
    cache = open_cache(None, BUDGET, POLICIES[policy_name](150))
    decide(cache, seed=3)
    cache.save(tag=2)
    cache.close()
    again = SampleCache(cache.store, BUDGET, POLICIES[policy_name](150))
    assert again.tag == 2
    assert again.residents.tolist() == cache.residents.tolist()


def test_staging_marks_are_saved(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.mark_staged(np.array([4]))
    first.cache.save(1)
    first.cache.close()
    again = watch(tmp_path, BUDGET)
    again.taken = first.taken
    assert again.read([4, 5]).status.tolist() == [Status.STAGED, Status.HIT]


def test_what_was_never_saved_is_removed_and_reported(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.close()
    again = watch(tmp_path, BUDGET)
    assert (len(again.cache), again.cache.surplus, again.cache.tag) == (0, 30, None)
    assert not again.cache.rebuilt
    again.check()


def test_data_newer_than_the_index_are_removed_and_lost_ones_reported(
    folder: Path | None, watch: Watch
) -> None:
    first = watch(folder, BUDGET)
    fill(first)
    first.cache.save(5)
    first.cache.delete(np.array([3, 7, 8]))
    first.offer([40, 41, 42], [784, 9000, 3073])
    first.offer([10], [111])
    first.cache.close()
    if folder is None:
        again = type(first)(SampleCache(first.cache.store, BUDGET, POLICIES["lru"](64)))
    else:
        again = watch(folder, BUDGET)
    again.taken = first.taken
    assert again.cache.tag == 5
    assert again.cache.missing.tolist() == [3, 7, 8, 10]
    assert again.cache.surplus == 4
    assert again.cache.residents.tolist() == [s for s in range(30) if s not in {3, 7, 8, 10}]
    again.check()
    assert again.hits(again.cache.residents.tolist()) == [True] * 26
    assert again.hits([3, 7, 8, 10, 40, 41, 42]) == [False] * 7


def test_a_value_that_is_gone_while_open_is_a_miss_and_forgotten(
    tmp_path: Path, watch: Watch
) -> None:
    watched = watch(tmp_path, BUDGET)
    fill(watched)
    watched.cache.store.write([3, 5], [], np.zeros(0, np.uint8), [], [])
    assert watched.hits([2, 3, 4]) == [True, False, True]
    assert 3 not in watched.cache
    assert watched.hits([5]) == [False]
    watched.check()


def damage(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "cut short":
        path.write_bytes(content[:100])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "garbage":
        path.write_bytes(np.random.default_rng(0).bytes(len(content)))
    elif kind == "zeros":
        path.write_bytes(bytes(len(content)))
    elif kind == "missing":
        path.unlink()


DAMAGE = ["truncated", "cut short", "empty", "garbage", "zeros", "missing"]


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["data.mdb", "index"])
def test_a_damaged_file_empties_the_cache_and_never_crashes(
    tmp_path: Path, watch: Watch, name: str, kind: str
) -> None:
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.save(1)
    first.cache.close()
    damage(tmp_path / name, kind)
    again = watch(tmp_path, BUDGET)
    cache = again.cache
    assert len(cache) == 0
    assert again.hits(list(range(30))) == [False] * 30
    # A missing or empty file holds nothing that could be mistrusted: it is reported as lost.
    reported = cache.rebuilt or len(cache.missing) == 30 or cache.surplus == 30
    assert reported
    assert cache.rebuilt == (kind != "missing" and (name, kind) != ("data.mdb", "empty"))
    fill(again)
    again.check()
    assert again.hits(list(range(30))) == [True] * 30
    cache.save(2)
    cache.close()
    last = watch(tmp_path, BUDGET)
    assert (len(last.cache), last.cache.tag, last.cache.rebuilt) == (30, 2, False)


def test_flipped_bytes_of_values_are_never_served(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.save(1)
    data = tmp_path / "data.mdb"
    content = bytearray(data.read_bytes())
    hurt = [2, 5, 8, 11]
    for sample in hurt:
        at = content.find(first.taken[sample][:50])
        assert at > 0
        content[at + 25] ^= 0x10
    first.cache.close()
    data.write_bytes(content)
    again = watch(tmp_path, BUDGET)
    again.taken = first.taken
    read = again.read(list(range(30)))
    corrupt = [s for s in range(30) if read.status[s] == Status.CORRUPT]
    assert corrupt == hurt
    assert read.served.sum() == 26
    assert again.cache.stats.corrupt == 4
    assert again.cache.stats.misses == 4
    again.check()
    for sample in hurt:
        again.offer([sample], [SIZES[sample % 4]])
    assert again.hits(hurt) == [True] * 4


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_of_cell_pages_are_never_served(
    tmp_path: Path, watch: Watch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.save(1)
    with first.cache.store._environment.handle.begin(write=True) as writer:
        pages = [(bytes(k), bytearray(v)) for k, v in writer.cursor() if bytes(k)[0] == 1]
        for key, value in pages:
            for at in rng.integers(0, len(value), 3):
                value[at] ^= 1 << int(rng.integers(8))
            writer.put(key, value)
    first.cache.close()
    again = watch(tmp_path, BUDGET)
    again.taken = first.taken
    for _ in range(2):
        for sample in range(30):
            again.read([sample])
    again.check()
    fill(again)
    assert again.hits(list(range(30))) == [True] * 30


def test_an_index_of_another_number_of_samples_is_not_trusted(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, BUDGET, samples=64)
    fill(first)
    first.cache.save(1)
    first.cache.close()
    again = watch(tmp_path, BUDGET, samples=65)
    assert "64 samples" in again.cache.rebuilt_reason
    again.taken = {}
    again.check()


@pytest.mark.parametrize("smaller", [BUDGET, 60_000, 20_000, 0])
def test_a_smaller_budget_is_kept_to_on_opening(
    tmp_path: Path, policy_name: str, watch: Watch, smaller: int
) -> None:
    # Both budgets have a file of the same, smallest size.
    first = watch(tmp_path, BUDGET, policy_name)
    fill(first)
    first.cache.save(1)
    first.cache.close()
    again = watch(tmp_path, smaller, policy_name)
    again.taken = first.taken
    assert (len(again.cache) == 30) == (smaller == BUDGET)
    again.check()


def test_a_file_larger_than_the_new_budget_is_emptied(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, 4 << 20, samples=400)
    fill(first, 400)
    first.cache.save(1)
    first.cache.close()
    again = watch(tmp_path, BUDGET, samples=400)
    assert "larger than its budget" in again.cache.rebuilt_reason
    assert (tmp_path / "data.mdb").stat().st_size <= BUDGET


def test_another_policy_takes_over_the_residents(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, BUDGET, "static")
    fill(first)
    first.cache.save(1)
    first.cache.close()
    again = watch(tmp_path, BUDGET, "lru")
    again.taken = first.taken
    assert len(again.cache) == 30
    assert len(again.cache.evict(again.cache.usable_bytes)) == 30
    again.check()


def test_a_snapshot_reads_back_as_it_was_or_not_at_all() -> None:
    snapshot = Snapshot(
        tag=-3,
        samples=9,
        policy="LRU",
        residents=np.array([1, 4]),
        sizes=np.array([10, 20]),
        lengths=np.array([7, 8]),
        staged=np.array([True, False]),
        columns={"scores": np.arange(9.0)},
        notes={"draws": np.array([4])},
    )
    encoded = snapshot.encode()
    decoded = Snapshot.decode(encoded)
    assert (decoded.tag, decoded.samples, decoded.policy) == (-3, 9, "LRU")
    assert decoded.residents.tolist() == [1, 4]
    assert decoded.staged.tolist() == [True, False]
    assert decoded.columns["scores"].tolist() == list(range(9))
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(encoded), 50).tolist():
        broken = bytearray(encoded)
        broken[at] ^= 1
        with pytest.raises(CorruptCache):
            Snapshot.decode(bytes(broken))
