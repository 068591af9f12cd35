"""Queues in real time: what is late, what is made good, what is lost. See also `test_throttle`."""

from __future__ import annotations

import pytest

from storage import RealTimeQueue
from tests.storage.test_throttle import FakeClock


def queue(oversleeps_s: float = 0.0) -> tuple[RealTimeQueue, FakeClock]:
    clock = FakeClock(oversleeps_s)
    return RealTimeQueue(clock), clock


def test_work_that_has_been_done_already_is_part_of_the_time() -> None:
    line, clock = queue()
    clock.time_s += 0.25
    line.take(1.0, 100.0)
    assert clock.time_s == 101
    line.take(0.5, clock.time_s)
    assert (clock.time_s, line.behind_s) == (101.5, 0)


def test_what_comes_after_a_pause_begins_then() -> None:
    line, clock = queue()
    line.take(1.0, clock.time_s)
    clock.time_s += 3
    line.take(1.0, clock.time_s)
    assert (clock.time_s, line.behind_s) == (105, 0)


def test_lateness_that_nothing_makes_good_is_counted() -> None:
    line, clock = queue()
    for number in range(1, 4):
        began_s = clock.time_s
        clock.time_s += 1.5  # of work, for an operation of one second
        line.take(1.0, began_s)
        assert clock.time_s == 100 + 1.5 * number
        # Each could make up for a hundredth of a second of the one before, and did not.
        assert line.behind_s == pytest.approx(0.5 * number - 0.01)
    line.take(1.0, clock.time_s)
    assert clock.time_s == pytest.approx(104.5 + 1 - 0.01)
    assert line.behind_s == pytest.approx(1.49)


def test_a_host_that_keeps_up_is_not_behind() -> None:
    line, clock = queue(oversleeps_s=1 / 128)
    for number in range(1, 51):
        line.take(0.5, clock.time_s)
        assert 0 <= clock.time_s - (100 + number / 2) <= 1 / 128
    assert line.behind_s == 0


def test_what_is_held_up_ends_later_and_is_not_late() -> None:
    line, clock = queue()
    began_s = clock.time_s

    def half_the_time_s() -> float:
        return (clock.time_s - began_s) / 2

    line.take(1.0, began_s, half_the_time_s)
    assert clock.time_s == pytest.approx(102, abs=1e-5)
    assert line.behind_s == 0
    line.take(1.0, clock.time_s)  # and the next follows it
    assert clock.time_s == pytest.approx(103, abs=1e-5)


def test_nobody_waits_any_more() -> None:
    line, clock = queue()
    clock.during_sleep.append(line.stop)
    line.take(64.0, clock.time_s)
    assert clock.time_s <= 100 + 0.05
    line.take(64.0, clock.time_s)
    assert clock.time_s <= 100 + 0.05
