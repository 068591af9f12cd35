"""A cache that is opened again is what was saved, or says what it lost; damage is never trusted."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from storage import POLICIES, MemoryStore, NotAllowed, SampleCache, Status, open_cache
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


def test_what_was_never_saved_is_not_trusted(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.close()
    again = watch(tmp_path, BUDGET)
    assert (len(again.cache), again.cache.tag) == (0, None)
    fill(again)
    again.check()
    assert again.hits(list(range(30))) == [True] * 30


def test_of_data_newer_than_the_saved_state_only_what_is_proved_comes_back(
    folder: Path | None, watch: Watch
) -> None:
    first = watch(folder, BUDGET)
    fill(first)
    first.cache.save(5)
    saved = dict(first.taken)
    first.cache.delete(np.array([3, 7, 8]))
    first.offer([40, 41, 42], [784, 9000, 3073])
    first.offer([10], [4096])
    first.cache.close()
    if folder is None:
        again = type(first)(SampleCache(first.cache.store, BUDGET, POLICIES["lru"](64)))
    else:
        again = watch(folder, BUDGET)
    again.taken = saved
    missing = set(again.cache.missing.tolist())
    assert again.cache.tag == 5
    assert missing
    assert missing <= {3, 7, 8, 10}
    assert again.cache.residents.tolist() == [s for s in range(30) if s not in missing]
    again.check()
    assert again.hits(again.cache.residents.tolist()) == [True] * (30 - len(missing))
    assert again.hits([*missing, 40, 41, 42]) == [False] * (len(missing) + 3)


def test_a_page_that_was_lost_while_closed_is_reported_on_opening(
    tmp_path: Path, watch: Watch
) -> None:
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.save(1)
    taken = dict(first.taken)
    first.cache.close()
    with lmdb.open(str(tmp_path), map_size=BUDGET) as file, file.begin(write=True) as writer:
        lost = [bytes(key) for key in writer.cursor().iternext(values=False) if len(key) == 4][2:5]
        for key in lost:
            writer.delete(key)
    again = watch(tmp_path, BUDGET)
    again.taken = taken
    missing = again.cache.missing.tolist()
    assert 0 < len(missing) < 30
    assert sorted([*missing, *again.cache.residents.tolist()]) == list(range(30))
    assert again.hits(again.cache.residents.tolist()) == [True] * (30 - len(missing))
    assert again.cache.stats.corrupt == 0
    again.check()


def test_a_value_that_is_gone_while_open_is_a_miss_and_forgotten(
    tmp_path: Path, watch: Watch
) -> None:
    watched = watch(tmp_path, BUDGET)
    fill(watched)
    watched.cache.store.remove([3, 5])
    assert watched.hits([2, 3, 4]) == [True, False, True]
    assert 3 not in watched.cache
    assert watched.cache.get(5) is None
    assert watched.cache.stats.corrupt == 2
    watched.check()


def missing_payloads(watched: Any, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The payloads that samples had, one behind the other, and the bytes of each."""
    payloads = [watched.taken[sample] for sample in samples.tolist()]
    lengths = np.array([len(content) for content in payloads], np.int64)
    return np.frombuffer(b"".join(payloads), np.uint8), lengths


def test_what_is_missing_can_be_brought_back_as_if_it_had_stayed(
    folder: Path | None, watch: Watch, policy_name: str
) -> None:
    first, twin = watch(folder, BUDGET, policy_name), watch(None, BUDGET, policy_name)
    for watched in (first, twin):
        fill(watched)
        watched.read([4, 9, 2, 11])
        watched.cache.feedback(np.array([4, 9]), np.array([0.5, 2.0]))
        watched.cache.mark_staged(np.array([7]))
    first.cache.save(5)
    saved = dict(first.taken)
    first.cache.delete(np.arange(12))
    first.offer(list(range(40, 52)), SIZES * 3)
    first.cache.close()
    store = first.cache.store
    again = watch(folder, BUDGET, policy_name) if folder else first
    if folder is None:
        again.cache = SampleCache(store, BUDGET, POLICIES[policy_name](64))
    again.taken, twin.taken = dict(saved), dict(saved)
    missing = again.cache.missing
    assert 0 < len(missing) <= 12
    payloads, lengths = missing_payloads(again, missing)
    again.cache.refill(missing, payloads, np.cumsum(lengths) - lengths, lengths)
    assert len(again.cache.missing) == 0
    assert again.cache.residents.tolist() == twin.cache.residents.tolist() == list(range(30))
    assert again.cache.stats.written_samples == 0
    again.check()
    assert again.read([7, 8]).status.tolist() == twin.read([7, 8]).status.tolist() == [1, 0]
    assert decide(again.cache, 3, 40) == decide(twin.cache, 3, 40)


def test_only_what_is_missing_can_be_brought_back_and_only_at_first(
    tmp_path: Path, watch: Watch
) -> None:
    first = watch(tmp_path, BUDGET)
    fill(first)
    first.cache.save(5)
    first.cache.delete(np.arange(12))
    first.offer(list(range(40, 52)), SIZES * 3)
    first.cache.close()
    again = watch(tmp_path, BUDGET)
    missing, one = again.cache.missing, np.array([0])
    payload = np.frombuffer(first.taken[missing[0]], np.uint8)
    length = np.array([len(payload)])
    with pytest.raises(ValueError, match="only what is missing"):
        again.cache.refill(np.array([29]), payload, one, length)
    again.cache.delete(np.array([29]))
    with pytest.raises(ValueError, match="before any change"):
        again.cache.refill(missing[:1], payload, one, length)
    again.taken = first.taken
    again.check()


def test_an_older_state_comes_back_with_its_residents_policy_and_notes(
    folder: Path | None, policy_name: str
) -> None:
    cache = open_cache(folder, BUDGET, POLICIES[policy_name](150))
    decide(cache, seed=3)
    cache.save(4, {"draws": np.arange(3)})
    kept = cache.residents.tolist()
    twin = open_cache(None, BUDGET, POLICIES[policy_name](150))
    decide(twin, seed=3)
    twin.save(4)
    twin = SampleCache(twin.store, BUDGET, POLICIES[policy_name](150))
    payloads = {sample: twin.get(sample) for sample in kept}
    twin = SampleCache(twin.store, BUDGET, POLICIES[policy_name](150))
    decide(cache, seed=4)
    cache.save(9, {"draws": np.arange(7)})
    cache.close()

    def back(before: int) -> SampleCache:
        policy = POLICIES[policy_name](150)
        if folder is None:
            return SampleCache(cache.store, BUDGET, policy, before)
        return open_cache(folder, BUDGET, policy, before=before)

    cache = back(9)
    assert cache.tag == 4
    assert cache.notes["draws"].tolist() == [0, 1, 2]
    missing = cache.missing
    lengths = np.array([len(payloads[s]) for s in missing.tolist()], np.int64)
    joined = np.frombuffer(b"".join(payloads[s] for s in missing.tolist()), np.uint8)
    cache.refill(missing, joined, np.cumsum(lengths) - lengths, lengths)
    assert cache.residents.tolist() == kept
    assert decide(cache, seed=5) == decide(twin, seed=5)
    cache.save(9)
    cache.close()
    cache = back(5)
    assert cache.tag == 4
    cache.close()
    cache = back(4)
    assert (cache.tag, len(cache)) == (None, 0)
    cache.close()


def test_a_state_that_is_no_longer_kept_is_refused(tmp_path: Path, watch: Watch) -> None:
    first = watch(tmp_path, BUDGET, samples=20_000)  # Its states fill the index file soon.
    for tag in range(20):
        first.offer([tag], [784])
        first.cache.save(tag)
    first.cache.close()
    with pytest.raises(NotAllowed, match="no state before 1, the oldest is"):
        watch(tmp_path, BUDGET, samples=20_000, before=1)
    again = watch(tmp_path, BUDGET, samples=20_000, before=19)
    assert (again.cache.tag, again.cache.residents.tolist()) == (18, list(range(19)))


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
    gone = (name, kind) in {("index", "missing"), ("index", "empty")}
    assert cache.rebuilt or len(cache.missing) == 30 or gone
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
        previous=None,
        samples=9,
        policy="LRU",
        residents=np.array([1, 4]),
        sizes=np.array([10, 20]),
        lengths=np.array([7, 8]),
        checksums=np.array([1, 2**64 - 1], np.uint64),
        staged=np.array([True, False]),
        columns={"scores": np.arange(9.0)},
        notes={"draws": np.array([4])},
    )
    encoded = snapshot.encode()
    decoded = Snapshot.decode(encoded)
    assert (decoded.tag, decoded.previous) == (-3, None)
    assert (decoded.samples, decoded.policy) == (9, "LRU")
    assert decoded.checksums.tolist() == [1, 2**64 - 1]
    assert decoded.residents.tolist() == [1, 4]
    assert decoded.staged.tolist() == [True, False]
    assert decoded.columns["scores"].tolist() == list(range(9))
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(encoded), 50).tolist():
        broken = bytearray(encoded)
        broken[at] ^= 1
        with pytest.raises(CorruptCache):
            Snapshot.decode(bytes(broken))


def test_a_refill_under_another_policy_tells_it_of_newcomers_alone() -> None:
    store, payload = MemoryStore(), bytes(1000)
    cache = SampleCache(store, 30_000, POLICIES["lru"](40))
    for sample in range(20):
        cache.put(sample, payload)
    cache.save(1)
    cache.delete(cache.residents[-1:])
    cache.close()
    cache = SampleCache(store, 30_000, POLICIES["random"](40))
    buffer, none = np.zeros(1000, np.uint8), np.zeros(1, np.int64)
    cache.refill(cache.missing, buffer, none, none + 1000)
    assert sorted(cache.policy.victims(None)) == cache.residents.tolist()
    for sample in range(20, 40):
        cache.put(sample, payload)
    assert cache.used_bytes <= cache.usable_bytes
    assert len(cache) == len(cache.residents)


# --- saved states of a cache in memory that outlive its process ----------------------------------


def in_memory(file: Path, before: int | None = None) -> SampleCache:
    """A cache whose store has been made anew, as in another process."""
    return SampleCache(MemoryStore(file), 20_000, POLICIES["lru"](40), before)


def bring_back(cache: SampleCache) -> None:
    """Give a cache the payloads that it lacks; sample s has 1,000 bytes of s."""
    for sample in cache.missing.tolist():
        payload = np.full(1000, sample, np.uint8)
        start = np.zeros(1, np.int64)
        cache.refill(np.array([sample]), payload, start, start + 1000)


def use(cache: SampleCache, samples: Iterable[int]) -> list[int]:
    """Read samples, and put those that are not there; return how many hits each read had."""
    hits, buffer = [], np.zeros(1000, np.uint8)
    for sample in samples:
        hits.append(int(cache.read(np.array([sample]), buffer).served.sum()))
        if not hits[-1]:
            cache.put(sample, bytes([sample]) * 1000)
    return hits


def test_a_cache_in_memory_goes_on_in_another_process_as_if_it_had_not_ended(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    first, later = rng.integers(0, 40, (2, 200)).tolist()
    cache = in_memory(tmp_path / "states")
    use(cache, first)
    cache.save(1, {"x": np.arange(3)})
    again = in_memory(tmp_path / "states")
    assert (again.tag, again.notes["x"].tolist()) == (1, [0, 1, 2])
    assert again.missing.tolist() == cache.residents.tolist() != []
    bring_back(again)
    assert use(again, later) == use(cache, later)
    assert again.residents.tolist() == cache.residents.tolist()


def test_it_goes_back_to_any_of_the_states_that_are_kept(tmp_path: Path) -> None:
    cache, held = in_memory(tmp_path / "states"), {}
    for tag in range(1, 6):
        use(cache, range(7 * tag, 7 * tag + 5))
        cache.save(tag)
        held[tag] = cache.residents.tolist()
    for tag in (5, 4, 3):
        assert in_memory(tmp_path / "states", before=tag + 1).missing.tolist() == held[tag]
    again = in_memory(tmp_path / "states")
    assert again.tag == 3  # what came after it is forgotten
    bring_back(again)
    again.save(4)
    assert in_memory(tmp_path / "states").missing.tolist() == held[3]


def test_damaged_states_of_a_cache_in_memory_are_not_trusted(tmp_path: Path) -> None:
    cache = in_memory(tmp_path / "states")
    use(cache, range(5))
    cache.save(1)
    (tmp_path / "states").write_bytes(b"garbage")
    again = in_memory(tmp_path / "states")
    assert again.rebuilt
    assert (len(again), again.missing.tolist()) == (0, [])
    assert sum(use(again, range(5))) == 0
