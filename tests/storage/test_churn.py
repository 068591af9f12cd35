"""Long churn at a full budget: the file stays within it, full of payload, and never too small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import POLICIES, open_cache

Sizes = Callable[[np.random.Generator, int], np.ndarray]
MIXES: dict[str, Sizes] = {
    "785": lambda _, n: np.full(n, 785),
    "2044": lambda _, n: np.full(n, 2044),
    "2040-2048": lambda rng, n: rng.integers(2040, 2049, n),
    "3073": lambda _, n: np.full(n, 3073),
    "4096": lambda _, n: np.full(n, 4096),
    "150000": lambda _, n: np.full(n, 150_000),
    "mixed": lambda rng, n: rng.integers(300, 40_001, n),
    "mixed small": lambda rng, n: rng.integers(0, 2100, n),
}


def churn(
    folder: Path, budget_bytes: int, mix: str, operations: int, batch: int
) -> tuple[float, float]:
    """Read and offer random samples, delete some; the file is looked at after each batch.

    Returns:
        The share of the budget that the file took at most, and that of the payload in the end.
    """
    rng = np.random.default_rng(0)
    guess = MIXES[mix](rng, 1000)
    samples = int(3 * budget_bytes / guess.mean())
    sizes = MIXES[mix](rng, samples)
    data = folder / "data.mdb"
    buffer = rng.integers(0, 256, int(sizes.max()) * batch, dtype=np.uint8)
    out = np.zeros_like(buffer)
    done, largest = 0, 0
    with open_cache(folder, budget_bytes, POLICIES["lru"](samples)) as cache:
        while done < operations:
            wanted = rng.integers(0, samples, batch)
            missed = np.unique(wanted[~cache.read(wanted, out).served])
            lengths = sizes[missed]
            cache.offer(missed, buffer, np.cumsum(lengths) - lengths, lengths)
            if rng.random() < 0.02:
                cache.delete(rng.choice(cache.residents, 5))
            done += len(wanted) + len(missed)
            assert cache.used_bytes <= cache.usable_bytes
            largest = max(largest, data.stat().st_size)
        assert cache.stats.evicted_samples > 100
        assert cache.stats.evicted_for_room == 0
        assert cache.stats.corrupt == 0
        assert cache.used_bytes > 0.85 * cache.usable_bytes
        assert cache.residents.tolist() == cache.store.present().tolist()
        return largest / budget_bytes, cache.resident_bytes / budget_bytes


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("batch", [1, 20])
def test_twenty_thousand_operations_stay_within_an_uninflated_budget(
    tmp_path: Path, mix: str, batch: int
) -> None:
    file_share, _ = churn(tmp_path, 1 << 20, mix, 20_000, batch)
    assert file_share <= 1


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_a_hundred_thousand_operations_leave_the_file_full_of_payload(
    tmp_path: Path, mix: str
) -> None:
    file_share, payload_share = churn(tmp_path, 16 << 20, mix, 100_000, 20)
    assert file_share <= 1
    assert payload_share >= 0.85
