"""What a cache has done, as counters."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from storage.read import Status


@dataclass(slots=True)
class CacheStats:
    """Counters that only grow; the difference of two copies meters what lies between.

    requests = hits + substituted + misses. Hits include the staged ones, misses the corrupt ones;
    bytes are charged sizes; `hit_bytes` are all that were read from the cache, those of stand-ins
    included. A rejected sample was offered and not taken; `no_victim` counts those
    for which a policy that does evict had no victim. `quarantined` counts scores that were no
    finite number, `evicted_for_room` the evictions forced by a full store, not by the budget.
    """

    requests: int = 0
    hits: int = 0
    staged: int = 0
    substituted: int = 0
    misses: int = 0
    corrupt: int = 0
    hit_bytes: int = 0
    written_samples: int = 0
    written_bytes: int = 0
    evicted_samples: int = 0
    evicted_bytes: int = 0
    evicted_for_room: int = 0
    rejected: int = 0
    no_victim: int = 0
    quarantined: int = 0

    def count(self, status: np.ndarray) -> None:
        """Count requests by how they were served, a `Status` each, uint8[k]."""
        hits, staged, substituted, misses, corrupt = np.bincount(
            status, minlength=len(Status)
        ).tolist()
        self.requests += len(status)
        self.hits += hits + staged
        self.staged += staged
        self.substituted += substituted
        self.misses += misses + corrupt
        self.corrupt += corrupt

    def copy(self) -> CacheStats:
        """The counters as they stand."""
        return replace(self)

    def __sub__(self, earlier: CacheStats) -> CacheStats:
        names = (field.name for field in fields(self))
        return CacheStats(*(getattr(self, name) - getattr(earlier, name) for name in names))
