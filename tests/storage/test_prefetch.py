from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import BufferPool, NoBuffer, OriginError, StallError, prefetched

Turn = AbstractContextManager[None]
Hook = Callable[[int], object]

LONG_S = 60.0
"""Waited for in vain only where the code is wrong."""

WHERE = ("before", "inside", "after")


class Failed(Exception):  # noqa: N818 - reads as what happened
    pass


def failing_at(step: int | None) -> Hook:
    def fail(at: int) -> None:
        if at == step:
            raise Failed(f"step {step}")

    return fail


class Fetch:
    """Marks buffers and gives the step as its item; hooks are called around and in its turn.

    Attributes:
        turns: the steps in the order of their turns.
        done: how many items the consumer is done with, where the test counts them.
        broken: which promises were.
    """

    def __init__(self, pool: BufferPool, **hooks: Hook) -> None:
        self.pool, self.hooks = pool, hooks
        self.turns: list[int] = []
        self.done: float = 0
        self.broken: list[str] = []
        self._turn_is_taken = False

    def __call__(self, step: int, buffer: np.ndarray, turn: Turn) -> int:
        if step - self.pool.count >= self.done:
            self.broken.append(f"step {step} began when {self.done} were done with")
        buffer[:] = step
        self._call("before", step)
        with turn:
            if self._turn_is_taken:
                self.broken.append("two have their turn")
            self._turn_is_taken = True
            self.turns.append(step)
            try:
                self._call("inside", step)
            finally:
                self._turn_is_taken = False
        self._call("after", step)
        if not (buffer == step).all():
            self.broken.append(f"the buffer of step {step} was overwritten")
        return step

    def _call(self, where: str, step: int) -> None:
        if where in self.hooks:
            self.hooks[where](step)


class Watched(threading.Condition):
    """Knows which threads wait, and how often they were woken."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = 0
        self._waiting: dict[int, threading.Event] = {}

    def wait(self, timeout: float | None = None) -> bool:
        self.of_thread(threading.get_ident()).set()
        return super().wait(timeout)

    def notify_all(self) -> None:
        self.woken += 1
        super().notify_all()

    def of_thread(self, thread: int | None) -> threading.Event:
        with self:
            return self._waiting.setdefault(thread or 0, threading.Event())


class TurnQueue:
    """Lets a step wait, in its hook, until others wait for their turn."""

    def __init__(self, pool: BufferPool, steps: int) -> None:
        self.watched = pool.changed = Watched()
        self._began = [threading.Event() for _ in range(steps)]
        self.threads: dict[int, threading.Thread] = {}

    def before(self, step: int) -> None:
        thread = self.threads[step] = threading.current_thread()
        self.watched.of_thread(thread.ident).clear()
        self._began[step].set()

    def wait_for(self, *steps: int) -> None:
        for step in steps:
            assert self._began[step].wait(LONG_S)
            assert self.watched.of_thread(self.threads[step].ident).wait(LONG_S)


def readers_alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch-")]


@pytest.fixture(autouse=True)
def no_reader_stays() -> Iterator[None]:
    yield
    assert not readers_alive()


@given(
    steps=st.integers(0, 12),
    readers=st.integers(1, 4),
    count=st.integers(1, 5),
    failure=st.none() | st.tuples(st.integers(0, 12), st.sampled_from(WHERE)),
    leaving=st.none() | st.integers(0, 12),
)
def test_items_and_turns_are_in_order_and_nothing_is_lost(
    steps: int, readers: int, count: int, failure: tuple[int, str] | None, leaving: int | None
) -> None:
    failing, where = failure or (steps, "after")
    pool = BufferPool(count, 50)
    fetch = Fetch(pool, **{where: failing_at(failing)})
    got: list[int] = []
    ended = ""
    with closing(prefetched(steps, fetch, pool, readers, LONG_S)) as items:
        try:
            for item in items:
                got.append(item)
                if item == leaving:
                    ended = "left"
                    break
                fetch.done += 1
        except Failed as error:
            ended = str(error)
    assert not readers_alive()
    assert pool.free == count
    assert not fetch.broken
    if leaving is not None and leaving < min(steps, failing):
        assert (got, ended) == (list(range(leaving + 1)), "left")
    else:
        assert got == list(range(min(steps, failing)))
        assert ended == (f"step {failing}" if failing < steps else "")
    assert fetch.turns == list(range(len(fetch.turns)))
    if where != "after":
        assert len(fetch.turns) <= failing + (where == "inside")


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_buffer_is_its_items_until_the_next_is_asked_for(readers: int, count: int) -> None:
    pool = BufferPool(count, 5000)
    fetch, buffers = Fetch(pool), {}

    def fetch_there(step: int, buffer: np.ndarray, turn: Turn) -> int:
        buffers[step] = buffer
        return fetch(step, buffer, turn)

    with closing(prefetched(100, fetch_there, pool, readers, LONG_S)) as items:
        for step, item in enumerate(items):
            assert item == step
            assert (buffers[step] == step).all()
            fetch.done += 1
    assert fetch.turns == list(range(100))
    assert not fetch.broken
    assert pool.free == count


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
def test_it_reads_as_far_ahead_as_there_are_buffers(readers: int) -> None:
    pool, fetched = BufferPool(3, 50), [threading.Event() for _ in range(8)]
    fetch = Fetch(pool, after=lambda step: fetched[step].set())
    with closing(prefetched(8, fetch, pool, readers, LONG_S)) as items:
        for step in range(8):
            assert next(items) == step
            assert all(ahead.wait(LONG_S) for ahead in fetched[step : step + 3])
            assert not any(later.is_set() for later in fetched[step + 3 :])
            assert pool.free == max(0, step + 3 - 8)
            fetch.done += 1
    assert not fetch.broken


def test_a_step_that_is_early_waits_for_its_turn() -> None:
    pool = BufferPool(3, 50)
    queue = TurnQueue(pool, 3)

    def before(step: int) -> None:
        queue.before(step)
        if step < 2:
            queue.wait_for(step + 1)

    fetch = Fetch(pool, before=before)
    with closing(prefetched(3, fetch, pool, 3, LONG_S)) as items:
        assert list(items) == fetch.turns == [0, 1, 2]


@pytest.mark.parametrize("readers", [2, 3, 4])
def test_what_follows_the_turn_runs_beside_other_readers(readers: int) -> None:
    pool, together = BufferPool(readers, 50), threading.Barrier(readers)
    fetch = Fetch(pool, after=lambda _: together.wait(LONG_S))
    with closing(prefetched(2 * readers, fetch, pool, readers, LONG_S)) as items:
        assert list(items) == list(range(2 * readers))


def test_items_come_in_order_whichever_is_ready_first() -> None:
    pool, late = BufferPool(3, 50), threading.Event()

    def after(step: int) -> None:
        if step == 0:
            assert late.wait(LONG_S)
        elif step == 2:
            late.set()  # the other reader has handed step 1 over

    with closing(prefetched(3, Fetch(pool, after=after), pool, 2, LONG_S)) as items:
        assert list(items) == [0, 1, 2]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("failing", [0, 4, 8])
@pytest.mark.parametrize("readers", [1, 3])
def test_an_error_comes_in_its_place_and_ends_it(readers: int, failing: int, where: str) -> None:
    pool = BufferPool(3, 50)
    fetch = Fetch(pool, **{where: failing_at(failing)})
    with closing(prefetched(9, fetch, pool, readers, LONG_S)) as items:
        for step in range(failing):
            assert next(items) == step
            fetch.done += 1
        with pytest.raises(Failed, match=f"step {failing}"):
            next(items)
        assert not readers_alive()
        assert pool.free == 3
        assert list(items) == []
    if where != "after":
        assert fetch.turns == list(range(failing + (where == "inside")))


def test_no_turn_follows_one_that_failed() -> None:
    pool = BufferPool(4, 50)
    queue = TurnQueue(pool, 4)

    def inside(step: int) -> None:
        if step == 1:
            queue.wait_for(2, 3)
            raise Failed

    fetch = Fetch(pool, before=queue.before, inside=inside)
    with closing(prefetched(9, fetch, pool, 3, LONG_S)) as items:
        assert next(items) == 0
        for reader in readers_alive():
            reader.join(LONG_S)
        assert fetch.turns == [0, 1]
        assert pool.free == 3
        with pytest.raises(Failed):
            next(items)
    assert pool.free == 4


def test_no_step_begins_in_the_buffer_of_one_that_failed() -> None:
    class Lingering(BufferPool):
        """A reader that gives a buffer back stays there until the other one has ended."""

        def give(self, buffer: np.ndarray) -> None:
            super().give(buffer)
            if (me := threading.current_thread()) in threads:
                for other in threads:
                    if other is not me:
                        other.join(LONG_S)

    pool, both, threads = Lingering(2, 50), threading.Barrier(2), []

    def before(step: int) -> None:
        if step < 2:
            threads.append(threading.current_thread())
            both.wait(LONG_S)

    fetch = Fetch(pool, before=before, inside=failing_at(1))
    with closing(prefetched(9, fetch, pool, 2, LONG_S)) as items:
        assert next(items) == 0
        for reader in threads:
            reader.join(LONG_S)
        assert not fetch.broken
        with pytest.raises(Failed):
            next(items)
    assert pool.free == 2


def test_a_fetch_may_get_over_an_error_in_its_turn_and_nobody_overtakes_it() -> None:
    pool, over_it = BufferPool(4, 50), threading.Event()
    queue, happened = TurnQueue(pool, 4), []

    def fetch(step: int, _: np.ndarray, turn: Turn) -> int:
        queue.before(step)
        try:
            with turn:
                happened.append(f"turn {step}")
                if step == 1:
                    queue.wait_for(2, 3)
                    woken = queue.watched.woken
                    raise Failed
        except Failed:
            happened.append(f"woken {queue.watched.woken - woken}")
            over_it.set()
        return step

    with closing(prefetched(4, fetch, pool, 4, LONG_S)) as items:
        assert next(items) == 0
        assert over_it.wait(LONG_S)
        assert list(items) == [1, 2, 3]
    assert happened == ["turn 0", "turn 1", "woken 0", "turn 2", "turn 3"]


@pytest.mark.parametrize(("times", "said"), [(0, "did not take"), (2, "took its turn twice")])
def test_a_fetch_that_does_not_take_its_turn_once_is_told(times: int, said: str) -> None:
    def fetch(step: int, _: np.ndarray, turn: Turn) -> int:
        for _ in range(times):
            with turn:
                pass
        return step

    pool = BufferPool(2, 50)
    with (
        closing(prefetched(3, fetch, pool, 2, LONG_S)) as items,
        pytest.raises(RuntimeError, match=f"step 0 {said}"),
    ):
        next(items)
    assert pool.free == 2


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_kind_of_error_leaves_the_consumer_waiting(kind: type[BaseException]) -> None:
    def fail(_: int) -> None:
        raise kind

    pool = BufferPool(2, 50)
    fetch = Fetch(pool, inside=fail)
    with closing(prefetched(3, fetch, pool, 2, LONG_S)) as items, pytest.raises(kind):
        next(items)
    assert pool.free == 2


def leave(items: Generator[int, None, None], after: int, error: BaseException | None) -> None:
    with closing(items):
        for item in items:
            if item == after:
                if error:
                    raise error
                return


@pytest.mark.parametrize("readers", [1, 4])
@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("error", [None, Failed(), KeyboardInterrupt()])
def test_leaving_early_ends_all_readers(
    error: BaseException | None, after: int, readers: int
) -> None:
    pool = BufferPool(3, 50)
    fetch = Fetch(pool)
    items = prefetched(50, fetch, pool, readers, LONG_S)
    if error:
        with pytest.raises(type(error)):
            leave(items, after, error)
    else:
        leave(items, after, error)
    assert not readers_alive()
    assert pool.free == 3
    assert len(fetch.turns) <= after + 3
    assert list(items) == []


def test_readers_that_wait_for_their_turn_end_with_the_consumer() -> None:
    pool, ready, outlived = BufferPool(4, 50), threading.Event(), []
    queue = TurnQueue(pool, 4)

    def inside(step: int) -> None:
        if step == 1:
            queue.wait_for(2, 3)
            ready.set()
            for waiting in (2, 3):
                queue.threads[waiting].join(LONG_S)
                outlived.append(queue.threads[waiting].is_alive())

    fetch = Fetch(pool, before=queue.before, inside=inside)
    with closing(prefetched(9, fetch, pool, 3, LONG_S)) as items:
        assert next(items) == 0
        assert ready.wait(LONG_S)
    assert outlived == [False, False]
    assert fetch.turns == [0, 1]
    assert pool.free == 4


def test_what_readers_bring_or_raise_later_is_dropped() -> None:
    pool, both = BufferPool(3, 50), threading.Barrier(3)
    threads: dict[int, threading.Thread] = {}

    def after(step: int) -> None:
        if not step:
            return
        threads[step] = threading.current_thread()
        both.wait(LONG_S)
        if step == 1:
            # The third reader has nothing to do until the consumer leaves.
            for reader in readers_alive():
                if reader not in threads.values():
                    reader.join(LONG_S)
            raise Failed
        threads[1].join(LONG_S)

    with closing(prefetched(9, Fetch(pool, after=after), pool, 3, LONG_S)) as items:
        assert next(items) == 0
        both.wait(LONG_S)
    assert pool.free == 3


def test_ctrl_c_while_waiting_for_an_item() -> None:
    pool, go, handled = BufferPool(2, 50), threading.Event(), threading.Event()

    def on_signal(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def inside(step: int) -> None:
        if step == 1:
            assert go.wait(LONG_S)
            # One that comes just before the main thread blocks is seen when the next one comes.
            while not handled.wait(0.01):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def ask_for_it() -> None:
        go.set()
        next(items)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        fetch = Fetch(pool, inside=inside)
        with closing(prefetched(5, fetch, pool, 2, LONG_S)) as items:
            assert next(items) == 0
            with pytest.raises(KeyboardInterrupt):
                ask_for_it()
    finally:
        signal.signal(signal.SIGINT, before)
    assert pool.free == 2


@pytest.mark.parametrize("where", WHERE)
def test_a_read_that_hangs_is_an_error_and_its_buffer_comes_back(where: str) -> None:
    pool, wake = BufferPool(3, 50), threading.Event()
    hanging: list[threading.Thread] = []

    def hang(step: int) -> None:
        if step == 0:
            hanging.append(threading.current_thread())
            assert wake.wait(LONG_S)

    fetch = Fetch(pool, **{where: hang})
    items = prefetched(9, fetch, pool, 2, stall_limit_s=0.01)
    with closing(items), pytest.raises(StallError, match=r"nothing came for 0\.01 s") as raised:
        next(items)
    assert isinstance(raised.value, OriginError)
    for reader in readers_alive():
        if reader not in hanging:
            reader.join(LONG_S)
    assert readers_alive() == hanging
    assert hanging[0].daemon
    assert pool.free == 2
    # The pool can be used without it, and is whole again when the reader wakes.
    with closing(prefetched(4, Fetch(pool), pool, 3, LONG_S)) as items:
        assert list(items) == [0, 1, 2, 3]
    wake.set()
    hanging[0].join(LONG_S)
    assert pool.free == 3


def test_threads_start_with_the_first_item_and_have_names() -> None:
    pool, ready = BufferPool(3, 50), threading.Barrier(3)
    fetch = Fetch(pool, after=lambda _: ready.wait(LONG_S))
    items = prefetched(3, fetch, pool, 9, LONG_S)
    assert not readers_alive()
    seen: list[str] = []
    fetch.hooks["before"] = lambda _: seen.append(threading.current_thread().name)
    assert list(items) == [0, 1, 2]
    assert sorted(seen) == ["prefetch-0", "prefetch-1", "prefetch-2"]


def test_one_that_is_forgotten_ends_too() -> None:
    pool = BufferPool(2, 50)
    items = prefetched(5, Fetch(pool), pool, 3, LONG_S)
    del items
    items = prefetched(5, Fetch(pool), pool, 3, LONG_S)
    assert next(items) == 0
    del items
    assert not readers_alive()
    assert pool.free == 2


def test_a_pool_that_is_closed_ends_it() -> None:
    pool = BufferPool(2, 50)
    with closing(prefetched(9, Fetch(pool), pool, 2, LONG_S)) as items:
        assert next(items) == 0
        pool.close()
        with pytest.raises(NoBuffer, match="closed"):
            list(items)
    assert pool.free == 2


def test_a_closed_pool_is_not_waited_for() -> None:
    pool = BufferPool(1, 50)
    pool.take()
    pool.close()
    with (
        closing(prefetched(9, Fetch(pool), pool, 2, LONG_S)) as items,
        pytest.raises(NoBuffer, match="closed"),
    ):
        next(items)


def test_without_readers_it_is_refused() -> None:
    pool = BufferPool(1, 50)
    with pytest.raises(ValueError, match="at least one thread"):
        next(prefetched(3, Fetch(pool), pool, 0, LONG_S))


def test_patience_may_be_endless() -> None:
    pool = BufferPool(1, 50)
    with closing(prefetched(3, Fetch(pool), pool, 1, float("inf"))) as items:
        assert list(items) == [0, 1, 2]
