"""The virtual clock and the order of events on it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.clock import Event, EventQueue, VirtualClock, arrival_order

TIMES = st.floats(0, 1e9) | st.sampled_from([0.0, 1.0, 1.5])
EVENTS = st.lists(
    st.builds(Event, TIMES, st.integers(0, 2), st.integers(0, 3), st.integers()), max_size=30
)


def test_time_only_moves_forward() -> None:
    clock = VirtualClock()
    clock.advance_to(2.5)
    clock.advance_to(2.5)
    assert clock.now_s == 2.5
    for bad in (2.4, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cannot move"):
            clock.advance_to(bad)
    assert clock.now_s == 2.5


def test_equal_arrivals_go_by_client() -> None:
    arrivals = np.array([3.0, 1.0, 3.0, 1.0])
    assert arrival_order(arrivals, np.array([9, 8, 2, 7])).tolist() == [3, 1, 2, 0]


def order(event: Event[int]) -> tuple[float, int, int]:
    return event.time_s, event.kind, event.client


@given(EVENTS)
def test_events_come_by_time_then_kind_then_client(events: list[Event[int]]) -> None:
    queue: EventQueue[int] = EventQueue()
    for event in events:
        queue.add(event)
    expected = sorted(events, key=order)  # stable: equal ones as they were added
    assert list(queue) == expected
    assert len(queue) == len(events)
    assert [queue.take() for _ in events] == expected
    assert len(queue) == 0


@given(EVENTS, EVENTS, st.integers(0, 30))
def test_times_never_decrease_whenever_events_are_added(
    first: list[Event[int]], then: list[Event[int]], between: int
) -> None:
    queue: EventQueue[int] = EventQueue()
    for event in first:
        queue.add(event)
    taken = [queue.take() for _ in range(min(between, len(first)))]
    now_s = taken[-1].time_s if taken else 0.0
    for event in then:
        if event.time_s < now_s:
            with pytest.raises(ValueError, match="cannot move"):
                queue.add(event)
        else:
            queue.add(event)
    rest = [queue.take() for _ in range(len(queue))]
    times_s = [event.time_s for event in taken + rest]
    assert times_s == sorted(times_s)
    assert [order(event) for event in rest] == sorted(order(event) for event in rest)


@pytest.mark.parametrize("time_s", [float("nan"), float("inf"), -1.0])
def test_an_event_at_no_time_is_refused(time_s: float) -> None:
    queue: EventQueue[str] = EventQueue()
    with pytest.raises(ValueError, match="cannot move"):
        queue.add(Event(time_s, 0, 0, "nothing"))
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.take()


def test_what_happens_is_never_compared() -> None:
    queue: EventQueue[object] = EventQueue(1.0)
    one, other = object(), object()
    queue.add(Event(1.0, 0, 7, one))
    queue.add(Event(1.0, 0, 7, other))
    assert [queue.take().what, queue.take().what] == [one, other]
