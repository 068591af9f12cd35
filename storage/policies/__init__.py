"""The placement policies by name."""

from __future__ import annotations

from storage.policies.lru import LRU
from storage.policies.static import Static
from storage.policy import Policy

POLICIES: dict[str, type[Policy]] = {"lru": LRU, "static": Static}

__all__ = ["LRU", "POLICIES", "Static"]
