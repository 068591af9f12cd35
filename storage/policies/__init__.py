"""The placement policies by name."""

from __future__ import annotations

from storage.policies.arc import ARC
from storage.policies.experience import Experience
from storage.policies.fifo import FIFO
from storage.policies.gdsf import GDSF
from storage.policies.icache import ICache
from storage.policies.importance import Importance
from storage.policies.lfu import LFU
from storage.policies.lru import LRU
from storage.policies.next_use import NextUse
from storage.policies.random import Random
from storage.policies.s3fifo import S3FIFO
from storage.policies.sieve import SIEVE
from storage.policies.static import Static
from storage.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    "fifo": FIFO,
    "lru": LRU,
    "lfu": LFU,
    "random": Random,
    "static": Static,
    "importance": Importance,
    "experience": Experience,
    "icache": ICache,
    "next_use": NextUse,
    "sieve": SIEVE,
    "s3fifo": S3FIFO,
    "arc": ARC,
    "gdsf": GDSF,
}

__all__ = [
    "ARC",
    "FIFO",
    "GDSF",
    "LFU",
    "LRU",
    "POLICIES",
    "S3FIFO",
    "SIEVE",
    "Experience",
    "ICache",
    "Importance",
    "NextUse",
    "Random",
    "Static",
]
