"""The virtual clock, and the order in which things happen on it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

What = TypeVar("What")


class VirtualClock:
    """Simulated seconds since the start of the run; they only ever move forward."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    @property
    def now_s(self) -> float:
        """The current virtual time in seconds."""
        return self._now_s

    def advance_to(self, time_s: float) -> None:
        """Move to `time_s`.

        Raises:
            ValueError: `time_s` is in the past or not finite.
        """
        _check_ahead(self._now_s, time_s)
        self._now_s = float(time_s)


@dataclass(frozen=True, slots=True)
class Event(Generic[What]):
    """What happens to a client at a virtual time; of two kinds at once the lower comes first."""

    time_s: float
    kind: int
    client: int
    what: What


class EventQueue(Generic[What]):
    """Events to come, in the order (time, kind, client), and then in which they were added.

    Time never goes back: once an event is taken out, none can be added that is earlier.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        """Start at `now_s`, without events."""
        self._now_s = now_s
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, int, int, Event[What]]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Event[What]]:
        """Look at the events in their order, without taking them out."""
        return (entry[-1] for entry in sorted(self._heap))

    def add(self, event: Event[What]) -> None:
        """Add an event.

        Raises:
            ValueError: it is in the past or at no finite time.
        """
        _check_ahead(self._now_s, event.time_s)
        key = (event.time_s, event.kind, event.client, next(self._numbers))
        heapq.heappush(self._heap, (*key, event))

    def take(self) -> Event[What]:
        """Take out the next event.

        Raises:
            IndexError: there is none.
        """
        event = heapq.heappop(self._heap)[-1]
        self._now_s = event.time_s
        return event


def _check_ahead(now_s: float, time_s: float) -> None:
    if not np.isfinite(time_s) or time_s < now_s:
        raise ValueError(f"the clock is at {now_s} s and cannot move to {time_s} s")


def arrival_order(arrivals_s: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return the positions of `arrivals_s` in order of arrival; ties go by client number."""
    return np.lexsort((clients, arrivals_s))
