"""Anything in any order for a long time: right bytes, the budget, and what was saved."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from storage import POLICIES, NoVictim, SampleCache, Status, open_cache

BUDGETS = [100_000, 1 << 20, 3 << 20, 8 << 20, 16 << 20]
SIZES = {
    "tiny": (0, 200),
    "small": (0, 4000),
    "middle": (2000, 20_000),
    "any": (0, 70_000),
}
NOISE = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)


class User:
    """Uses a cache at random, and remembers the bytes that each sample had when it was taken."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.folder = folder
        self.samples = int(self.rng.choice([50, 700, 3000]))
        self.policy = str(self.rng.choice(list(POLICIES)))
        self.smallest, self.largest = SIZES[str(self.rng.choice(list(SIZES)))]
        self.budget = int(self.rng.choice(BUDGETS))
        self.taken: dict[int, bytes] = {}
        self.saved: list[tuple[int, dict[int, bytes], set[int]]] = []
        self.cache = self.open()

    def open(self, before: int | None = None) -> SampleCache:
        policy = POLICIES[self.policy](self.samples)
        return open_cache(self.folder, self.budget, policy, before=before)

    def some(self, most: int) -> np.ndarray:
        return self.rng.integers(0, self.samples, self.rng.integers(0, most + 1))

    def offer(self) -> None:
        samples = np.unique(self.some(150))
        lengths = self.rng.integers(self.smallest, self.largest + 1, len(samples))
        starts = self.rng.integers(0, len(NOISE) - self.largest, len(samples))
        taken = self.cache.offer(samples, NOISE, starts, lengths)
        for sample, start, length in zip(
            samples[taken], starts[taken], lengths[taken], strict=True
        ):
            self.taken[int(sample)] = NOISE[start : start + length].tobytes()

    def put(self) -> None:
        for sample in self.some(20).tolist():
            start = self.rng.integers(0, len(NOISE) - self.largest)
            payload = NOISE[start : start + self.rng.integers(self.smallest, self.largest + 1)]
            if self.cache.put(sample, payload):
                self.taken[sample] = payload.tobytes()

    def read(self) -> None:
        samples = self.some(150)
        buffer = np.empty(150 * self.largest, np.uint8)
        read = self.cache.read(samples, buffer)
        replaced = read.status == Status.SUBSTITUTED
        assert (read.samples == samples)[~replaced].all()
        there = [sample in self.cache for sample in samples.tolist()]
        assert (read.served & ~replaced).tolist() == there
        for sample, start, length in zip(read.samples, read.starts, read.lengths, strict=True):
            if sample in self.cache:
                assert buffer[start : start + length].tobytes() == self.taken[int(sample)]

    def get(self) -> None:
        for sample in self.some(20).tolist():
            expected = self.taken[sample] if sample in self.cache else None
            assert self.cache.get(sample) == expected

    def delete(self) -> None:
        self.cache.delete(self.rng.permutation(self.cache.residents)[: self.rng.integers(300)])

    def evict(self) -> None:
        try:
            self.cache.evict(int(self.rng.integers(self.budget // 3)))
        except NoVictim:
            assert self.policy == "static" or self.cache._index.pinned_bytes

    def pin(self) -> None:
        self.cache.pin(self.some(5))

    def unpin(self) -> None:
        self.cache.unpin(np.arange(self.samples))

    def stage(self) -> None:
        self.cache.mark_staged(self.some(5))

    def learn(self) -> None:
        samples = self.some(20)
        self.cache.feedback(samples, self.rng.exponential(size=len(samples)))

    def save(self) -> None:
        tag = self.saved[-1][0] + 1 if self.saved else 0
        self.cache.save(tag)
        self.saved.append((tag, dict(self.taken), set(self.cache.residents.tolist())))

    def resize(self) -> None:
        self.budget = int(self.rng.choice([*BUDGETS, self.rng.integers(1 << 20, 16 << 20)]))
        current = self.cache.is_current
        self.cache.resize(self.budget)
        self.note_state(current)

    def compact(self) -> None:
        current = self.cache.is_current
        self.cache.compact()
        self.note_state(current)

    def note_state(self, saved_again: bool) -> None:
        """What was saved was saved again, or lies elsewhere now."""
        if saved_again and self.saved:
            tag, taken, _ = self.saved.pop()
            self.saved.append((tag, taken, set(self.cache.residents.tolist())))

    def reopen(self) -> None:
        self.cache.close()
        self.cache = self.open()
        self.restored()

    def go_back(self) -> None:
        if len(self.saved) > 1:
            self.cache.close()
            self.cache = self.open(before=self.saved[-1][0])
            self.restored()

    def restored(self) -> None:
        self.saved = [state for state in self.saved if state[0] == self.cache.tag]
        if self.cache.rebuilt or not self.saved:
            assert len(self.cache) == 0
            self.taken, self.saved = {}, []
            return
        _, taken, residents = self.saved[-1]
        self.taken = dict(taken)
        there = set(self.cache.residents.tolist())
        assert there.isdisjoint(self.cache.missing.tolist())
        assert there | set(self.cache.missing.tolist()) <= residents

    def pickle(self) -> None:
        with pickle.loads(pickle.dumps(self.cache)) as twin:  # noqa: S301 - made here
            assert twin.residents.tolist() == self.cache.residents.tolist()

    def check(self) -> None:
        cache, index = self.cache, self.cache._index
        residents = cache.residents
        costs = index.layout.cost(index.size_bytes[residents])
        assert cache.used_bytes == costs.sum() <= cache.usable_bytes <= self.budget
        assert cache.store.present().tolist() == residents.tolist()
        assert (self.folder / "data.mdb").stat().st_size <= max(self.budget, 1 << 20)
        assert cache.stats.evicted_for_room == cache.stats.corrupt == 0
        stats = cache.stats
        assert stats.hits + stats.substituted + stats.misses == stats.requests


OPERATIONS = {
    "offer": 20, "put": 20, "read": 10, "get": 8, "delete": 4, "evict": 3, "pin": 2, "unpin": 3,
    "stage": 2, "learn": 3, "save": 5, "resize": 3, "compact": 2, "reopen": 4, "go_back": 2,
    "pickle": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 220))]
)
def test_a_cache_survives_whatever_is_done_with_it(tmp_path: Path, seed: int) -> None:
    user = User(tmp_path, seed)
    names, weights = list(OPERATIONS), np.array(list(OPERATIONS.values()))
    for name in user.rng.choice(names, 120, p=weights / weights.sum()):
        getattr(user, name)()
        user.check()
    user.cache.close()
