from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import BufferPool, NoBuffer
from storage.buffers import touched
from tests.storage.page_residency import resident_pages

LONG_S = 60.0
"""Waited for in vain only where the code is wrong."""


class Announced(threading.Condition):
    """Tells that somebody waits; who takes its lock after that finds them waiting."""

    def __init__(self, waiters: int) -> None:
        super().__init__()
        self.missing, self.waiting = waiters, threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.missing -= 1
        if not self.missing:
            self.waiting.set()
        return super().wait(timeout)


def place(buffer: np.ndarray) -> int:
    address: int = buffer.ctypes.data
    return address


@given(
    count=st.integers(1, 5),
    buffer_bytes=st.sampled_from([0, 1, 4095, 4096, 4097, 100_000]),
    shift=st.integers(0, 4096),
)
def test_buffers_are_carved_from_one_slab_and_begin_with_pages(
    count: int, buffer_bytes: int, shift: int
) -> None:
    asked: list[int] = []

    def allocate(size_bytes: int) -> np.ndarray:
        asked.append(size_bytes)
        return np.zeros(size_bytes + shift, np.uint8)[shift:]

    pool = BufferPool(count, buffer_bytes, allocate)
    buffers = [pool.take() for _ in range(count)]
    assert len(asked) == 1
    assert asked[0] < count * (buffer_bytes + 4096) + 4096 + 1
    for number, buffer in enumerate(buffers):
        assert buffer.dtype == np.uint8
        assert buffer.shape == (buffer_bytes,)
        assert buffer_bytes == 0 or place(buffer) % 4096 == 0
        buffer[:] = number
    assert [buffer.tolist() for buffer in buffers] == [[n] * buffer_bytes for n in range(count)]


@pytest.mark.parametrize(("count", "buffer_bytes"), [(0, 10), (-1, 10), (1, -1)])
def test_a_pool_without_buffers_is_refused(count: int, buffer_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least one buffer"):
        BufferPool(count, buffer_bytes)


def test_a_slab_of_another_kind_or_length_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        BufferPool(2, 10, np.zeros)
    with pytest.raises(ValueError, match="are needed"):
        BufferPool(2, 9000, lambda size_bytes: np.zeros(size_bytes - 5000, np.uint8))


def test_memory_is_there_from_the_start() -> None:
    assert resident_pages(touched(8 << 20)).all()
    slab = BufferPool(2, 1 << 20).take()
    assert resident_pages(slab).all()


def test_nothing_is_allocated_after_that() -> None:
    pool = BufferPool(2, 100_000)
    pool.give(pool.take())
    tracemalloc.start()
    try:
        for _ in range(100):
            first, second = pool.take(), pool.take()
            pool.give(first)
            pool.give(second)
        assert tracemalloc.get_traced_memory()[1] < 4096
    finally:
        tracemalloc.stop()


def test_what_is_lent_is_not_free() -> None:
    pool = BufferPool(2, 10)
    first, second = pool.take(), pool.take()
    assert pool.free == 0
    with pytest.raises(NoBuffer, match="none of 2 buffers"):
        pool.take(timeout_s=0)
    pool.give(first)
    assert pool.free == 1
    assert place(pool.take(timeout_s=0)) == place(first) != place(second)


def test_what_is_not_lent_cannot_be_given() -> None:
    pool, other = BufferPool(2, 10), BufferPool(1, 10)
    buffer = pool.take()
    for foreign in (other.take(), np.zeros(10, np.uint8), buffer[:], buffer[:5]):
        with pytest.raises(ValueError, match="not lent"):
            pool.give(foreign)
    pool.give(buffer)
    for _ in range(2):
        with pytest.raises(ValueError, match="not lent"):
            pool.give(buffer)
    assert pool.free == 2
    # Not even when somebody else has its memory now, or a buffer was forgotten.
    assert place(buffer) in {place(pool.take()), place(pool.take())}
    with pytest.raises(ValueError, match="not lent"):
        pool.give(buffer)
    for _ in range(1000):
        with pytest.raises(ValueError, match="not lent"):
            pool.give(np.zeros(10, np.uint8))
    assert pool.free == 0


def test_whoever_waits_gets_the_next_that_comes_back() -> None:
    pool = BufferPool(1, 10)
    pool.changed = announced = Announced(waiters=1)
    held = pool.take()
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(pool.take)
        assert announced.waiting.wait(LONG_S)
        assert not taken.done()
        pool.give(held)
        assert place(taken.result(LONG_S)) == place(held)
    assert pool.free == 0


def test_closing_wakes_all_who_wait_and_lends_no_more() -> None:
    pool = BufferPool(1, 10)
    pool.changed = announced = Announced(waiters=3)
    held = pool.take()
    with ThreadPoolExecutor(3) as threads:
        taken = [threads.submit(pool.take) for _ in range(3)]
        assert announced.waiting.wait(LONG_S)
        pool.close()
        for one in taken:
            assert isinstance(one.exception(LONG_S), NoBuffer)
    pool.give(held)
    assert pool.free == 1
    with pytest.raises(NoBuffer, match="closed"):
        pool.take()
    pool.close()


def test_no_two_threads_have_the_same_buffer() -> None:
    pool, failures = BufferPool(3, 5000), []

    def use(number: int) -> None:
        for _ in range(200):
            buffer = pool.take()
            buffer[:] = number
            if not (buffer == number).all():
                failures.append(number)
            pool.give(buffer)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pool.free == 3
