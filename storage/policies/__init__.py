"""The placement policies by name."""

from __future__ import annotations

from storage.policies.experience import Experience
from storage.policies.importance import Importance
from storage.policies.lru import LRU
from storage.policies.static import Static
from storage.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    "lru": LRU,
    "static": Static,
    "importance": Importance,
    "experience": Experience,
}

__all__ = ["LRU", "POLICIES", "Experience", "Importance", "Static"]
