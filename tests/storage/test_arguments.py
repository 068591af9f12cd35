"""Whatever is handed in: it is right, or it is refused before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import POLICIES, SampleCache, open_cache

N = 20
ZERO, ONE = np.array([0]), np.array([300])
BYTES = np.ones(6000, np.uint8)
READ_ONLY = np.frombuffer(bytes(6000), np.uint8)
Call = Callable[[SampleCache], object]

BUFFERS: dict[str, Any] = {
    "float": np.empty(6000, np.float32),
    "signed": np.empty(6000, np.int8),
    "strided": np.empty(12_000, np.uint8)[::2],
    "square": np.empty((6000, 2), np.uint8),
    "bytearray": bytearray(6000),
    "none": None,
}
CALLS: dict[str, Call] = {
    **{f"read into {n}": lambda c, b=b: c.read(np.arange(N), b) for n, b in BUFFERS.items()},
    **{f"offer {n}": lambda c, b=b: c.offer(ZERO, b, ZERO, ONE) for n, b in BUFFERS.items()},
    "read into what cannot be written": lambda c: c.read(np.arange(N), READ_ONLY),
    "get -1": lambda c: c.get(-1),
    "get 20": lambda c: c.get(N),
    "get text": lambda c: c.get("1"),
    "put -1": lambda c: c.put(-1, b"x"),
    "put 2^63": lambda c: c.put(2**63, b"x"),
    "put text": lambda c: c.put(1, "x"),
    "read floats": lambda c: c.read(np.array([1.5]), BYTES),
    "read a square": lambda c: c.read(np.zeros((2, 2), int), BYTES),
    "read 2^63": lambda c: c.read(np.array([2**63], np.uint64), BYTES),
    "delete text": lambda c: c.delete("1"),
    "delete floats": lambda c: c.delete([1.9]),
    "delete one": lambda c: c.delete(5),
    "offer beyond the end": lambda c: c.offer(ZERO, BYTES, np.array([5900]), ONE),
    "offer far beyond": lambda c: c.offer(ZERO, BYTES, np.array([2**63 - 1]), ONE),
    "offer beyond int64": lambda c: c.offer(ZERO, BYTES, [2**63], ONE),
    "offer from -1": lambda c: c.offer(ZERO, BYTES, np.array([-1]), ONE),
    "offer squares": lambda c: c.offer(ZERO, BYTES, np.zeros((1, 1), int), ONE),
    "offer float lengths": lambda c: c.offer(ZERO, BYTES, ZERO, np.array([3.0])),
    "offer five gigabytes": lambda c: c.offer(ZERO, BYTES, ZERO, ONE, np.array([5 << 30])),
    "evict text": lambda c: c.evict("a"),
    "resize -1": lambda c: c.resize(-1),
    "resize 2e6": lambda c: c.resize(2e6),
    "resize nan": lambda c: c.resize(float("nan")),
    "resize 2^50": lambda c: c.resize(1 << 50),
    "resize 2^70": lambda c: c.resize(1 << 70),
    "save text": lambda c: c.save("a"),
    "save nan": lambda c: c.save(float("nan")),
    "save none": lambda c: c.save(2, {"x": None}),
    "save objects": lambda c: c.save(2, {"x": np.array([{}])}),
    "save a structure": lambda c: c.save(2, {"x": np.zeros(2, "i4,f4")}),
    "refill": lambda c: c.refill(ZERO, BYTES, ZERO, ONE),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_change_nothing(tmp_path: Path, name: str) -> None:
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](N)) as cache:
        for sample in range(N):
            cache.put(sample, bytes([sample]) * 300)
        cache.save(1)
        with pytest.raises((TypeError, ValueError)):
            CALLS[name](cache)
        assert cache.is_current
        assert (cache.tag, len(cache), cache.stats.corrupt) == (1, N, 0)
        assert all(cache.get(sample) == bytes([sample]) * 300 for sample in range(N))
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](N)) as cache:
        assert len(cache) == N


@pytest.mark.parametrize("budget", [-1, 1.5e6, 2**70, "1", None])
def test_a_bad_budget_leaves_no_file(tmp_path: Path, budget: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        open_cache(tmp_path / "cache", budget, POLICIES["lru"](N))
    assert not (tmp_path / "cache").exists()


def test_an_identity_may_be_long(tmp_path: Path) -> None:
    for identity in ("x" * 2_000_000, "x" * 1_999_999):
        with open_cache(tmp_path, 1 << 20, POLICIES["lru"](N), identity=identity) as cache:
            assert len(cache) == 0
            cache.put(1, b"payload")
            cache.save(1)


@pytest.mark.parametrize("kind", ["int", "uint8", "list", "tuple"])
def test_integers_of_any_kind_will_do(tmp_path: Path, kind: str) -> None:
    numbers: Any = {
        "int": np.array([1, 3], np.int32), "uint8": np.array([1, 3], np.uint8),
        "list": [1, 3], "tuple": (1, 3),
    }[kind]  # fmt: skip
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](N)) as cache:
        assert cache.offer(numbers, BYTES, [0, 10], [10, 20]).all()
        assert cache.read(numbers, np.empty(30, np.uint8)).served.all()
        assert cache.put(np.int64(5), b"five")
        assert cache.get(np.uint8(5)) == b"five"
