"""The shelf: caches stay open, within bounds, and never longer than they are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clients.shelf import Shelf
from storage import SampleCache, open_cache
from storage.policies import POLICIES

ONE = np.zeros(1, np.int64)
TOP = Path(__file__).parents[2]

# Another process that has the same cache: it deletes sample 0 and saves.
DELETES = """
import sys, numpy as np
from storage import POLICIES, open_cache
with open_cache(sys.argv[1], 1 << 20, POLICIES["lru"](4)) as cache:
    assert 0 in cache
    cache.delete(np.zeros(1, np.int64))
    cache.save(2)
"""


class Opened:
    """Opens caches, and remembers each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.caches: list[SampleCache] = []

    def __call__(self) -> SampleCache:
        self.caches.append(open_cache(self.folder, 1 << 20, POLICIES["lru"](4)))
        return self.caches[-1]


def put(cache: SampleCache) -> None:
    cache.offer(ONE, np.arange(100, dtype=np.uint8), ONE, ONE + 100)


def test_a_cache_stays_open_even_while_it_is_empty(tmp_path: Path) -> None:
    shelf, opened = Shelf(2), Opened(tmp_path)
    for _ in range(3):
        with shelf.take(7, opened) as cache:
            cache.save(1)
    assert len(opened.caches) == 1
    shelf.close()
    with pytest.raises(Exception, match="closed"):
        put(opened.caches[0])


def test_the_cache_used_longest_ago_is_closed_first(tmp_path: Path) -> None:
    shelf = Shelf(2)
    opened = [Opened(tmp_path / str(i)) for i in range(3)]
    for partition in (0, 1, 0, 2, 0, 1):
        with shelf.take(partition, opened[partition]) as cache:
            cache.save(1)
    assert [len(one.caches) for one in opened] == [1, 2, 1]
    shelf.close()


def test_a_cache_that_failed_is_opened_anew_from_its_last_saved_state(tmp_path: Path) -> None:
    shelf, opened = Shelf(2), Opened(tmp_path)
    with shelf.take(0, opened) as cache:
        cache.save(1)

    def fails() -> None:
        with shelf.take(0, opened) as cache:
            put(cache)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with shelf.take(0, opened) as cache:
        assert len(cache) == 0
    assert len(opened.caches) == 2
    shelf.close()


def test_a_cache_that_changed_elsewhere_is_opened_anew(tmp_path: Path) -> None:
    shelf, opened = Shelf(2), Opened(tmp_path)
    with shelf.take(0, opened) as cache:
        put(cache)
        cache.save(1)
    subprocess.run([sys.executable, "-c", DELETES, str(tmp_path)], check=True, cwd=TOP)  # noqa: S603
    with shelf.take(0, opened) as cache:
        assert cache.tag == 2
        assert len(cache) == 0
    shelf.close()
