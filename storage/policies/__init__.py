"""The placement policies by name."""

from __future__ import annotations

from storage.policies.experience import Experience
from storage.policies.fifo import FIFO
from storage.policies.importance import Importance
from storage.policies.lfu import LFU
from storage.policies.lru import LRU
from storage.policies.random import Random
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
}

__all__ = ["FIFO", "LFU", "LRU", "POLICIES", "Experience", "Importance", "Random", "Static"]
