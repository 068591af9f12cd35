"""Checksums of payloads: a payload passes for one sample of one data set only.

XXH3 with 64 bits (xxhash.com): seeded with data set and sample number, so that bytes of another
sample, client or data set do not pass; the length is part of the function.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from xxhash import xxh3_64_intdigest as digest

__all__ = ["digest", "digests", "seed_of"]


def seed_of(identity: bytes) -> int:
    """The seed of a data set, to which the sample number (below 2^32) is added."""
    return digest(identity) & 0x7FFFFFFF_00000000


def digests(
    view: memoryview, starts: Iterable[int], lengths: Iterable[int], seeds: Iterable[int]
) -> np.ndarray:
    """The checksum of each payload in a buffer, uint64[k]."""
    found = [
        digest(view[start : start + length], seed)
        for start, length, seed in zip(starts, lengths, seeds, strict=True)
    ]
    return np.array(found, np.uint64)
