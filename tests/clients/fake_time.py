"""Time for several threads that passes only while all of them wait: what they do takes none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from storage import buffers
from tests.clients.participations import threads_of_ours

_LOOK_S = 0.005
"""How often, in real seconds, a thread looks whether all others wait as well."""


class FakeTime:
    """A clock of the calling thread and of those that read ahead for it.

    When each of them sleeps, or waits for another, it is the time at which the first wakes up.
    """

    def __init__(self) -> None:
        self._time_s = 100.0
        self._changed = threading.Condition()
        self._wakes_s: dict[int, float] = {}
        self._waiting: set[int] = set()

    def now_s(self) -> float:
        return self._time_s

    def sleep(self, seconds: float) -> None:
        me = threading.get_ident()
        with self._changed:
            self._wakes_s[me] = self._time_s + seconds
            while me in self._wakes_s:
                self._go_on()
                if me in self._wakes_s:
                    self._changed.wait(_LOOK_S)

    def waits(self) -> None:
        """The calling thread waits for another."""
        with self._changed:
            self._waiting.add(threading.get_ident())
            self._go_on()

    def goes_on(self) -> None:
        """It waits no more."""
        with self._changed:
            self._waiting.discard(threading.get_ident())

    def look(self) -> None:
        """Who waits looks whether that is still so."""
        with self._changed:
            self._waiting.clear()

    def _go_on(self) -> None:
        everybody = 1 + len(threads_of_ours())
        if self._wakes_s and len(self._wakes_s) + len(self._waiting) == everybody:
            self._time_s = min(self._wakes_s.values())
            awake = [who for who, at_s in self._wakes_s.items() if at_s == self._time_s]
            for who in awake:
                del self._wakes_s[who]
            self._changed.notify_all()


class FakeCondition(threading.Condition):
    """A condition on which threads wait in fake time."""

    def __init__(self, time: FakeTime) -> None:
        super().__init__()
        self._time = time

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        del timeout
        while not predicate():
            self._time.waits()
            self.wait(_LOOK_S)
        self._time.goes_on()
        return True

    def notify_all(self) -> None:
        self._time.look()
        super().notify_all()


def shared_by_readers(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Return a clock in whose time readers wait for buffers, and training for readers."""
    time = FakeTime()
    conditions = SimpleNamespace(Condition=lambda: FakeCondition(time))
    monkeypatch.setattr(buffers, "threading", conditions)
    return time
