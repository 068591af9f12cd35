"""Injection: what strikes a participation on purpose, done to its device.

A device that has a process of its own is really killed and stopped. Where many share one, killing
ends the participation alone, which leaves the cache just as it was saved last, and standing still
is left to the clock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np

from clients import standstill
from clients.client_cache import FIRST_TAG, ClientCache
from fedio.faults import Struck
from storage import SampleCache
from storage.errors import StoreFull
from storage.lmdb_handle import DATA_FILE

logger = logging.getLogger(__name__)

LEFT_BYTES = 4096
"""Of a file that is damaged. LMDB begins with two header pages: without the second all is lost,
wherever the payloads lie, so that every engine loses the same."""

Item = TypeVar("Item")


class KilledOnPurpose(RuntimeError):  # noqa: N818 - reads as what happened
    """The device is killed in the middle of its participation, as the experiment asks for."""


class Injection:
    """Does to a device what strikes one participation, where it strikes."""

    def __init__(self, struck: Struck, *, own_process: bool) -> None:
        """Get ready.

        Args:
            struck: what strikes.
            own_process: whether the device has this process to itself.
        """
        self._struck, self._own_process = struck, own_process
        self._stop_s = struck.stop_s if own_process else 0.0

    def before(self, cache: ClientCache) -> None:
        """Damage the file of the cache, which is about to be opened."""
        if self._struck.corrupt_cache:
            corrupt(cache)

    def disk_of(self, cache: SampleCache) -> SampleCache:
        """Return the cache as training gets it."""
        return cast("SampleCache", FullDisk(cache)) if self._struck.full_disk else cache

    def in_the_middle(self, batches: Iterable[Item], steps: int) -> Iterable[Item]:
        """Return the batches of a training; after half of the steps it is stopped or killed.

        Raises (when the next batch is asked for):
            KilledOnPurpose: the device is killed, and others share its process.
        """
        if self._struck.kill or self._stop_s:
            return self._interrupted(batches, steps // 2)
        return batches

    def _interrupted(self, batches: Iterable[Item], after: int) -> Iterator[Item]:
        rest = iter(batches)
        yield from islice(rest, after)
        if self._stop_s:
            stand_still(self._stop_s)
        if self._struck.kill:
            self._kill()
        yield from rest

    def _kill(self) -> None:
        if self._own_process:
            logger.warning("killed on purpose")
            os.kill(os.getpid(), signal.SIGKILL)
        raise KilledOnPurpose("killed on purpose")


class FullDisk:
    """A cache that takes nothing more, as on a disk that is full; what it has can be read."""

    def __init__(self, cache: SampleCache) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def offer(self, *_: np.ndarray) -> None:
        """Refuse.

        Raises:
            StoreFull: always.
        """
        raise StoreFull("the disk is full on purpose")


def corrupt(cache: ClientCache) -> None:
    """Cut the file of a cache off, have the cache find that out, and keep it as it is then: empty.

    A run that is resumed goes back to that state, too.
    """
    cache.put_away()
    with contextlib.suppress(FileNotFoundError):
        os.truncate(cache.folder / DATA_FILE, LEFT_BYTES)
    with cache.newest() as emptied:
        emptied.save(FIRST_TAG)


def stand_still(seconds: float) -> None:
    """Stop this process, all of its threads, for so long."""
    logger.warning("stopped on purpose, for %g s", seconds)
    command = [sys.executable, "-I", "-S", standstill.__file__, str(seconds)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)  # noqa: S603 - a file of ours
