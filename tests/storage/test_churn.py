"""Long churn at a full budget: the file stays within it, and no store is ever full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import POLICIES, open_cache

BUDGET = 1 << 20
Sizes = Callable[[np.random.Generator, int], np.ndarray]
MIXES: dict[str, Sizes] = {
    "785": lambda _, n: np.full(n, 785),
    "2040-2048": lambda rng, n: rng.integers(2040, 2049, n),
    "3073": lambda _, n: np.full(n, 3073),
    "4096": lambda _, n: np.full(n, 4096),
    "mixed": lambda rng, n: rng.integers(300, 40_001, n),
    "mixed small": lambda rng, n: rng.integers(0, 2100, n),
}


@pytest.mark.parametrize("mix", MIXES)
def test_twenty_thousand_operations_stay_within_an_uninflated_budget(
    tmp_path: Path, mix: str
) -> None:
    rng = np.random.default_rng(0)
    guess = MIXES[mix](rng, 1000)
    samples = int(3 * BUDGET / guess.mean())
    sizes = MIXES[mix](rng, samples)
    data = tmp_path / "data.mdb"
    buffer = rng.integers(0, 256, int(sizes.max()) * 20, dtype=np.uint8)
    out = np.zeros_like(buffer)
    operations = 0
    with open_cache(tmp_path, BUDGET, POLICIES["lru"](samples)) as cache:
        while operations < 20_000:
            batch = rng.integers(0, samples, 20)
            missed = np.unique(batch[~cache.read(batch, out).served])
            lengths = sizes[missed]
            cache.offer(missed, buffer, np.cumsum(lengths) - lengths, lengths)
            if rng.random() < 0.05:
                cache.delete(rng.choice(cache.residents, 5))
            operations += len(batch) + len(missed)
            assert cache.used_bytes <= cache.usable_bytes
            assert data.stat().st_size <= BUDGET
        assert cache.stats.evicted_samples > 100
        assert cache.stats.evicted_for_room == 0
        assert cache.stats.corrupt == 0
        assert cache.used_bytes > 0.9 * cache.usable_bytes
        assert cache.residents.tolist() == cache.store.present().tolist()
