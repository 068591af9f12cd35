"""How much is written: as many files and samples of each size as a budget of bytes allows."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.probe.cached import ROUNDS
from experiments.table import size as shown
from fedio.errors import InputError

MOST_BYTES = 1_000_000_000

LEAST_FILES, MOST_FILES, MOST_BATCH = 8, 200, 20
FILES_SHARE, CACHE_SHARE, LONG_SHARE = 0.45, 0.45, 0.1
"""Of the budget: what goes into files, through the cache, and into the long files."""
LONG_FILES, MOST_LONG_BYTES = 4, 1 << 26


@dataclass(frozen=True, slots=True)
class Amounts:
    """What to write.

    Attributes:
        files: how many of each size.
        batches: samples of each size that the cache is offered at once.
        long_bytes: of each of the `LONG_FILES` files that are read from end to end.
    """

    files: dict[int, int]
    batches: dict[int, int]
    long_bytes: int


def amounts(sizes: Sequence[int], budget_bytes: int) -> Amounts:
    """Return what to write within a budget.

    Args:
        sizes: in bytes, all different.
        budget_bytes: to write in all.

    Raises:
        InputError: it is too little, or there is one size only.
    """
    if len(sizes) < 2:
        raise InputError("latency and bandwidth need two sizes to be told apart: name two --size")
    need_bytes = max(LEAST_FILES / FILES_SHARE, ROUNDS / CACHE_SHARE) * sum(sizes)
    if budget_bytes < need_bytes:
        raise InputError(
            f"samples of up to {shown(max(sizes))} need {shown(math.ceil(need_bytes))} to be "
            f"written, and {shown(budget_bytes)} may be; raise --budget, free space, or name "
            "smaller ones with --size"
        )
    return Amounts(
        files=_counts(sizes, FILES_SHARE * budget_bytes, LEAST_FILES, MOST_FILES),
        batches=_counts(sizes, CACHE_SHARE / ROUNDS * budget_bytes, 1, MOST_BATCH),
        long_bytes=min(int(LONG_SHARE / LONG_FILES * budget_bytes), MOST_LONG_BYTES),
    )


def budget_of(wanted_bytes: int | None, folders: Sequence[Path]) -> int:
    """Return how many bytes to write: what is wanted, else no more than half of what is free.

    Raises:
        InputError: a folder has no room for what is wanted.
    """
    free = {folder: shutil.disk_usage(folder).free for folder in folders}
    tightest = min(folders, key=free.__getitem__)
    if wanted_bytes is None:
        return min(MOST_BYTES, free[tightest] // 2)
    if wanted_bytes > free[tightest]:
        raise InputError(
            f"--budget is {shown(wanted_bytes)}, but {tightest} has {shown(free[tightest])} free"
        )
    return wanted_bytes


def _counts(sizes: Sequence[int], budget_bytes: float, least: int, most: int) -> dict[int, int]:
    """Share a budget out among the sizes; what small ones leave goes to the larger ones."""
    counts = {}
    rest_bytes = budget_bytes - least * sum(sizes)
    for left, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        more = min(most - least, int(rest_bytes / left / size))
        rest_bytes -= more * size
        counts[size] = least + more
    return counts
