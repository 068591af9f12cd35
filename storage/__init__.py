"""Tiers, origins and bounded caches of samples.

An `Origin` holds all samples and is slow; a `SampleCache` keeps some of them within a byte budget
in a `Store` (LMDB or memory), and a `Policy` says which. A `Tier` says what reading and writing
cost in seconds. Nothing here knows how the samples are used. In short:

    policy = POLICIES["lru"](len(origin))
    with open_cache("cache/client-0", budget_bytes=64 << 20, policy=policy) as cache:
        read = cache.read(samples, buffer)
        missed = samples[~read.served]
        starts = origin.read(missed, buffer, read.used_bytes)
        cache.offer(missed, buffer, starts, origin.size_bytes[missed])
        cache.save(tag=1)
"""

from __future__ import annotations

from storage.buffers import BufferPool
from storage.cache import SampleCache
from storage.direct import direct_io, read_direct
from storage.errors import (
    CorruptCache,
    NoBuffer,
    NotAllowed,
    NoVictim,
    OriginError,
    StallError,
    StorageError,
    StoreFull,
    TraceError,
)
from storage.layout import Layout, usable_bytes
from storage.lmdb_store import LmdbStore
from storage.memory_store import MemoryStore
from storage.opening import open_cache
from storage.origin import ArrayOrigin, FileOrigin, Origin
from storage.policies import LRU, POLICIES, Static
from storage.policy import Policy, ScorePolicy
from storage.prefetch import prefetched
from storage.read import Read, Status
from storage.real_time import Clock, RealTimeQueue, WallClock
from storage.stats import CacheStats
from storage.store import Store
from storage.throttle import ThrottledOrigin
from storage.tier import Tier
from storage.victim_queue import NOBODY

__all__ = [
    "LRU",
    "NOBODY",
    "POLICIES",
    "ArrayOrigin",
    "BufferPool",
    "CacheStats",
    "Clock",
    "CorruptCache",
    "FileOrigin",
    "Layout",
    "LmdbStore",
    "MemoryStore",
    "NoBuffer",
    "NoVictim",
    "NotAllowed",
    "Origin",
    "OriginError",
    "Policy",
    "Read",
    "RealTimeQueue",
    "SampleCache",
    "ScorePolicy",
    "StallError",
    "Static",
    "Status",
    "StorageError",
    "Store",
    "StoreFull",
    "ThrottledOrigin",
    "Tier",
    "TraceError",
    "WallClock",
    "direct_io",
    "open_cache",
    "prefetched",
    "read_direct",
    "usable_bytes",
]
