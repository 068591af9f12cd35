"""At most so many LMDB environments of a process are open at once; the others are suspended."""

from __future__ import annotations

import itertools
import resource
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol, TypeVar

from storage.forks import held_here
from storage.lmdb_handle import TooManyFiles

Result = TypeVar("Result")

MOST_OPEN = 32
"""An open one takes up to 3.2 MB: LMDB's lists of pages, where malloc hands out used memory."""

LEAST_OPEN = 4
RESERVED_DESCRIPTORS = 128
"""Left to the rest of the process."""

DESCRIPTORS = 4
"""What one takes: LMDB's lock and its data twice, and the claim."""

tick = itertools.count(1).__next__
"""Numbers the uses of all environments."""


class Suspendable(Protocol):
    """What can be closed now and opened again when it is needed."""

    lock: threading.RLock
    """Held by whoever uses it."""

    last_use: int

    def suspend(self) -> None:
        """Close it and `leave` the limit; the caller holds `lock`."""


class OpenLimit:
    """Knows what is open, and suspends what was used longest ago when there is too much.

    Whoever calls it may hold the lock of what he opens. It never waits for the lock of another.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: set[Suspendable] = set()

    def enter(self, newcomer: Suspendable) -> None:
        """Make room for one that is about to be opened."""
        with self._lock:
            self._open.add(newcomer)
            self.suspend(len(self._open) - most_open())

    def with_room(self, action: Callable[[], Result]) -> Result:
        """Do what needs descriptors, once more with half as many open if there are too few."""
        try:
            return action()
        except TooManyFiles:
            if not self.suspend(len(self._open) // 2 + 1):
                raise
            return action()

    def leave(self, closed: Suspendable) -> None:
        """Note that one is closed."""
        with self._lock:
            self._open.discard(closed)

    def suspend(self, count: int) -> int:
        """Suspend up to `count` of those that nobody uses, and say how many it were."""
        suspended = 0
        with self._lock:
            for candidate in sorted(self._open, key=attrgetter("last_use")) if count > 0 else []:
                if suspended == count:
                    break
                if not held_here(candidate.lock) and candidate.lock.acquire(blocking=False):
                    try:
                        candidate.suspend()
                        suspended += 1
                    finally:
                        candidate.lock.release()
        return suspended

    def forget(self) -> None:
        """Note that nothing is open, in a forked child."""
        self._lock = threading.RLock()
        self._open = set()


def most_open() -> int:
    """How many may be open under the process's limit of descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_OPEN
    return max(LEAST_OPEN, min(MOST_OPEN, (limit - RESERVED_DESCRIPTORS) // DESCRIPTORS))
