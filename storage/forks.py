"""Forks: what has to be laid down before one, so that the child can take it up by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Protocol

WAIT_S = 1.0
"""How long a fork waits for another thread to let go of a lock."""


class Forkable(Protocol):
    """What a child must not share with its parent."""

    lock: threading.RLock
    """Held by whoever uses it."""

    def before_fork(self) -> None:
        """Lay it down; the forking thread holds `lock`."""

    def after_fork(self, *, untouched: bool) -> None:
        """Start anew, in the child; unless `untouched`, a thread that is no more was using it."""


class Forks:
    """Lays the members of a registry down before each fork of this process."""

    def __init__(self, members: Mapping[str, Forkable], lock: threading.RLock) -> None:
        """Watch a registry.

        Args:
            members: what is in it, at any time.
            lock: held while it changes, and never by a thread that waits for a member's.
        """
        self._members = members
        self._lock = lock
        self._here = threading.local()
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    def _before(self) -> None:
        """Take all locks, so that no other thread is in the middle of something."""
        with self._lock:
            members = list(self._members.values())
        quiet = [
            member
            for member in members
            if not held_here(member.lock) and member.lock.acquire(timeout=WAIT_S)
        ]
        self._lock.acquire()
        self._here.quiet = quiet
        for member in quiet:
            member.before_fork()

    def _in_parent(self) -> None:
        self._lock.release()
        for member in self._here.quiet:
            member.lock.release()
        del self._here.quiet

    def _in_child(self) -> None:
        quiet = set(self._here.quiet)
        for member in self._members.values():
            member.after_fork(untouched=member in quiet)
        self._in_parent()


def held_here(lock: threading.RLock) -> bool:
    """Whether the calling thread holds a lock, so that it could take it once more."""
    try:
        threading.Condition(lock).notify()
    except RuntimeError:
        return False
    return True
