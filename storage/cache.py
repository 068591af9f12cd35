"""The sample cache: a byte budget over a store, filled and emptied by a policy."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Self

import numpy as np

from storage.errors import CorruptCache, NotAllowed, NoVictim, StoreFull
from storage.index import CacheIndex
from storage.layout import cost, usable_bytes
from storage.policy import Policy, Why
from storage.snapshot import Snapshot
from storage.stats import CacheStats
from storage.store import Store

_log = logging.getLogger(__name__)


class Status(IntEnum):
    """How a requested sample was served; below MISS it was."""

    HIT = 0
    STAGED = 1
    SUBSTITUTED = 2
    MISS = 3
    CORRUPT = 4


@dataclass(frozen=True, slots=True)
class Read:
    """What a read served: `samples`, `starts`, `lengths` int64[k], `status` uint8[k].

    Payload i lies in the buffer from starts[i] with lengths[i] bytes; what was not served has
    length 0. Payloads lie back to back in the first `used_bytes` bytes.
    """

    samples: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    status: np.ndarray
    used_bytes: int

    @property
    def served(self) -> np.ndarray:
        """Which requests the cache answered, bool[k]."""
        answered: np.ndarray = self.status < Status.MISS
        return answered


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening found.

    Attributes:
        rebuilt_reason: why the cache was emptied; "" when what it held could be trusted.
        missing: samples that the index named and the data lacked, int64[k]; they are gone.
        surplus: how many samples the data held and the index did not name; they were removed.
    """

    rebuilt_reason: str
    missing: np.ndarray
    surplus: int


class _State:
    """What all handles on one cache share."""

    def __init__(self, budget_bytes: int, policy: Policy) -> None:
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self.budget_bytes = budget_bytes
        self.usable_bytes = usable_bytes(budget_bytes)
        self.policy = policy
        self.index = CacheIndex(policy.samples)
        self.stats = CacheStats()
        self.tag: int | None = None
