from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from storage import ArrayOrigin, Origin, OriginError, ThrottledOrigin, Tier, WallClock

SAMPLES = 10
TIER = Tier(read_latency_s=0.25, read_bytes_per_s=64.0, write_latency_s=9.0, write_bytes_per_s=9.0)
ONE_S = 0.25 + 16 / 64
"""Reading one sample; all figures are sums of powers of two, so that clocks add up exactly."""


class FakeClock:
    """Time that passes in sleep alone, each of which takes longer than it should."""

    def __init__(self, oversleeps_s: float = 0.0) -> None:
        self.time_s, self.oversleeps_s = 100.0, oversleeps_s
        self.during_sleep: list[Callable[[], None]] = []

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        until_s = self.time_s + seconds
        while self.during_sleep:
            self.during_sleep.pop()()
        self.time_s = max(self.time_s, until_s) + self.oversleeps_s


class BusyOrigin(ArrayOrigin):
    """Its reads take time of their own, or fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(np.arange(SAMPLES * 16, dtype=np.uint8).reshape(SAMPLES, 16))
        self.clock, self.takes_s, self.reads, self.fails = clock, 0.0, 0, False

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        self.reads += 1
        self.clock.time_s += self.takes_s
        if self.fails:
            raise OriginError("gone")
        return super().read(samples, buffer, at)


def throttled(oversleeps_s: float = 0.0) -> tuple[ThrottledOrigin, BusyOrigin, FakeClock]:
    clock = FakeClock(oversleeps_s)
    origin = BusyOrigin(clock)
    return ThrottledOrigin(origin, TIER, clock=clock), origin, clock


def read(origin: Origin, *samples: int) -> np.ndarray:
    buffer = np.zeros(SAMPLES * 16, np.uint8)
    origin.read(np.array(samples, np.int64), buffer, 0)
    return buffer[: len(samples) * 16]


def test_a_read_takes_latencies_and_bytes_over_bandwidth() -> None:
    slow, _, clock = throttled()
    assert read(slow, 3, 1).tolist() == [*range(48, 64), *range(16, 32)]
    assert clock.time_s == 100 + 2 * ONE_S
    assert slow.size_bytes.tolist() == [16] * SAMPLES


def test_declared_sizes_are_timed_instead_of_the_payload() -> None:
    clock = FakeClock()
    sizes = np.arange(SAMPLES) * 64
    slow = ThrottledOrigin(BusyOrigin(clock), TIER, sizes, clock)
    read(slow, 3, 5)
    assert clock.time_s == 100 + 2 * 0.25 + 8
    assert slow.size_bytes.tolist() == [16] * SAMPLES
    with pytest.raises(ValueError, match="9 sizes for 10"):
        ThrottledOrigin(BusyOrigin(clock), TIER, sizes[1:], clock)


def test_what_the_real_read_takes_is_part_of_it() -> None:
    slow, origin, clock = throttled()
    origin.takes_s = ONE_S / 2
    read(slow, 0)
    assert clock.time_s == 100 + ONE_S
    origin.takes_s = 2 * ONE_S
    read(slow, 0)
    assert clock.time_s == 100 + 3 * ONE_S


def test_lateness_does_not_add_up() -> None:
    late_s = 1 / 128
    slow, _, clock = throttled(oversleeps_s=late_s)
    for reads in range(1, 51):
        read(slow, 0)
        # One read is late by its naps, the next one starts as if it had not been.
        assert 0 <= clock.time_s - (100 + reads * ONE_S) <= late_s
    began_s = clock.time_s
    for reads in range(1, 51):
        clock.time_s += 3.0
        read(slow, 0)
        assert abs(clock.time_s - (began_s + reads * (3.0 + ONE_S))) <= late_s


def test_lateness_is_made_good_up_to_a_hundredth_of_a_second() -> None:
    slow, _, clock = throttled(oversleeps_s=ONE_S)
    read(slow, 0)
    late_at_s, clock.oversleeps_s = clock.time_s, 0.0
    assert late_at_s > 100 + ONE_S + 0.01
    for reads in range(1, 4):
        read(slow, 0)
        assert clock.time_s == pytest.approx(late_at_s + reads * ONE_S - 0.01, abs=1e-9)


@pytest.mark.parametrize("idle_s", [1 / 256, 1 / 8, 64.0])
def test_time_in_which_nobody_reads_is_lost(idle_s: float) -> None:
    slow, _, clock = throttled()
    for _ in range(3):
        clock.time_s += idle_s
        began_s = clock.time_s
        read(slow, 0)
        assert clock.time_s == began_s + ONE_S


def test_getting_from_one_read_to_the_next_is_no_idle_time() -> None:
    slow, _, clock = throttled(oversleeps_s=1 / 1024)
    for reads in range(1, 51):
        read(slow, 0)
        assert clock.time_s == 100 + reads * ONE_S + 1 / 1024
        clock.time_s += 1 / 1024


def test_but_it_is_for_reads_that_take_no_longer_themselves() -> None:
    clock = FakeClock()
    tier = Tier(1 / 128, 1e99, 0.0, 1e99)
    fast = ThrottledOrigin(BusyOrigin(clock), tier, np.zeros(SAMPLES, np.int64), clock)
    for reads in range(1, 51):
        read(fast, 0)
        assert clock.time_s == 100 + reads / 128 + (reads - 1) / 1024
        clock.time_s += 1 / 1024


def test_reads_queue_up_in_the_order_they_were_asked_for() -> None:
    slow, _, clock = throttled()
    ends: list[tuple[str, float]] = []

    def second() -> None:
        clock.during_sleep.append(third)
        read(slow, 1)
        ends.append(("second", clock.time_s))

    def third() -> None:
        read(slow, 2)
        ends.append(("third", clock.time_s))

    clock.during_sleep.append(second)
    read(slow, 0)
    # Each was asked for while the one before slept, and none took the time of another.
    assert ends == [("third", 100 + 3 * ONE_S), ("second", 100 + 3 * ONE_S)]
    assert clock.time_s == 100 + 3 * ONE_S


def test_all_threads_share_one_queue() -> None:
    slow, _, clock = throttled()
    threads = [threading.Thread(target=read, args=(slow, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.time_s >= 100 + 4 * ONE_S


def test_subsets_share_the_queue_and_the_sizes_of_their_parent() -> None:
    clock = FakeClock()
    slow = ThrottledOrigin(BusyOrigin(clock), TIER, np.arange(SAMPLES) * 64, clock)
    some = slow.subset(np.array([4, 2])).subset(np.array([1]))
    clock.during_sleep.append(lambda: read(slow, 1))
    assert read(some, 0).tolist() == list(range(32, 48))
    assert clock.time_s == 100 + 0.25 + 2 + 0.25 + 1


@pytest.mark.parametrize("samples", [[SAMPLES], [-1], [0] * (SAMPLES + 1)])
def test_what_is_refused_takes_no_time(samples: list[int]) -> None:
    slow, origin, clock = throttled()
    with pytest.raises(ValueError, match=r"0\.\.9|are needed"):
        read(slow, *samples)
    assert origin.reads == 0
    read(slow, 0)
    assert clock.time_s == 100 + ONE_S


def test_a_read_that_fails_has_taken_its_time() -> None:
    slow, origin, clock = throttled()
    origin.fails = True
    for _ in range(3):
        with pytest.raises(OriginError, match="gone"):
            read(slow, 0)
    assert clock.time_s == 100
    origin.fails = False
    read(slow, 0)
    assert clock.time_s == 100 + 4 * ONE_S


def test_closing_ends_a_read_that_sleeps() -> None:
    slow, origin, clock = throttled()
    clock.during_sleep.append(slow.close)
    with pytest.raises(OriginError, match="closed"):
        read(slow, *range(SAMPLES))
    assert clock.time_s <= 100 + 0.05
    with pytest.raises(OriginError, match="closed"):
        read(slow, 0)
    with pytest.raises(OriginError, match="closed"):
        read(slow.subset(np.array([0])), 0)
    assert origin.reads == 1


def test_closing_ends_a_read_in_its_last_nap() -> None:
    slow, _, clock = throttled(oversleeps_s=64.0)
    clock.during_sleep.append(slow.close)
    with pytest.raises(OriginError, match="closed"):
        read(slow, 0)


def test_real_time_passes_and_never_goes_back() -> None:
    clock = WallClock()
    began_s = clock.now_s()
    clock.sleep(1e-6)
    assert clock.now_s() > began_s
    fast = ThrottledOrigin(BusyOrigin(FakeClock()), Tier(1e-6, 1e9, 0.0, 1e9))
    began_s = clock.now_s()
    assert read(fast, 1).tolist() == list(range(16, 32))
    assert clock.now_s() - began_s >= 1e-6 + 16e-9
