"""Reading ahead: threads fetch the next steps into a pool of buffers while one is being used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np

from storage.buffers import BufferPool
from storage.errors import NoBuffer, StallError

Item = TypeVar("Item")
Fetch = Callable[[int, np.ndarray, AbstractContextManager[None]], Item]
"""Makes the item of a step in a buffer, with its turn; see `prefetched`."""

_GRACE_S = 1.0
"""How long readers may take to end when one of them is known to hang."""


def prefetched(
    steps: int, fetch: Fetch[Item], buffers: BufferPool, readers: int, stall_limit_s: float
) -> Generator[Item, None, None]:
    """Fetch steps 0..steps-1 ahead of their use and yield what they give, in order.

    An item may live in its buffer, which is given back when the next item is asked for. So with d
    buffers the fetch of step j begins when the consumer is done with step j - d, and not before.

    To be used as `with closing(prefetched(...)) as items`: however it is left, the readers end and
    all buffers are back in the pool. Only a reader that hangs is left behind, after
    `stall_limit_s` seconds; its buffer comes back when it wakes.

    Args:
        steps: how many there are.
        fetch: called as fetch(step, buffer, turn) in a thread of its own. It enters the context
            `turn` once, for whatever has to happen in the order of steps: reads of a tier, which
            is one queue, and decisions of a cache, which must not depend on timing. What it does
            after that runs beside the other readers.
        buffers: lends one to each step; no other use of the pool may wait for this one.
        readers: how many threads fetch, at least 1. They start with the first item.
        stall_limit_s: how long to wait for an item.

    Raises:
        StallError: an item did not come in that time.
        NoBuffer: the pool was closed.
        BaseException: what the fetch of a step raised, in the place of its item.
    """
    if readers < 1:
        raise ValueError("at least one thread has to read")
    line = _Line(steps, fetch, buffers)
    threads: list[threading.Thread] = []
    patience_s = stall_limit_s = min(stall_limit_s, threading.TIMEOUT_MAX)
    try:
        for reader in range(min(readers, steps)):
            thread = threading.Thread(target=line.work, name=f"prefetch-{reader}", daemon=True)
            thread.start()
            threads.append(thread)
        for step in range(steps):
            yield line.item(step, stall_limit_s)
            line.release(step)
    except StallError:
        patience_s = min(_GRACE_S, stall_limit_s)
        raise
    finally:
        line.stop()
        deadline_s = time.monotonic() + patience_s
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


class _Stopped(Exception):  # noqa: N818 - reads as what happened
    """Ends a fetch that nobody waits for any more."""


class _Turn(AbstractContextManager[None]):
    """What a step has to enter once, and steps enter in order."""

    def __init__(self, line: _Line[Item], step: int) -> None:
        self._line, self._step = line, step
        self.taken = False

    def __enter__(self) -> None:
        if self.taken:
            raise RuntimeError(f"the fetch of step {self._step} took its turn twice")
        self._line.await_turn(self._step)
        self.taken = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error nobody may follow unless the fetch gets over it.
        if kind is None:
            self._line.pass_turn(self._step)


class _Line(Generic[Item]):
    """The steps on their way through the readers; all under the lock of the pool."""

    def __init__(self, steps: int, fetch: Fetch[Item], buffers: BufferPool) -> None:
        self._fetch = fetch
        self._buffers = buffers
        self._changed = buffers.changed
        self._end = steps  # no step from here on is of use; 0 when the consumer has left
        self._next = 0
        self._turn = 0
        self._items: dict[int, Item] = {}
        self._errors: dict[int, BaseException] = {}
        self._held: dict[int, np.ndarray] = {}  # the buffers of steps that are fetched

    def work(self) -> None:
        """Fetch one step after another; what a reader does."""
        while (begun := self._begin()) is not None:
            self._carry_out(*begun)

    def await_turn(self, step: int) -> None:
        """Wait until all steps before have passed their turn on."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn == step or step >= self._end)
            if step >= self._end:
                raise _Stopped

    def pass_turn(self, step: int) -> None:
        """Let the next step have its turn."""
        with self._changed:
            self._turn = step + 1
            self._changed.notify_all()

    def item(self, step: int, limit_s: float) -> Item:
        """Wait for what the fetch of a step gives or raises."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: step in self._items or step in self._errors, limit_s
            )
            if not there:
                raise StallError(f"nothing came for {limit_s:g} s: is the storage still there?")
            if step in self._errors:
                raise self._errors.pop(step)
            return self._items.pop(step)

    def release(self, step: int) -> None:
        """Give the buffer of a step back."""
        with self._changed:
            self._buffers.give(self._held.pop(step))

    def stop(self) -> None:
        """Have the readers end, and give back the buffers of all that is fetched."""
        with self._changed:
            self._end = 0
            while self._held:
                self._buffers.give(self._held.popitem()[1])
            self._changed.notify_all()

    def _begin(self) -> tuple[int, np.ndarray] | None:
        """Take the next step and a buffer together, so that the earliest step always has one."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._next >= self._end or self._buffers.free or self._buffers.closed
            )
            step = self._next
            if step >= self._end:
                return None
            self._next += 1
            try:
                return step, self._buffers.take()
            except NoBuffer as error:
                self._fail(step, error)
                return None

    def _carry_out(self, step: int, buffer: np.ndarray) -> None:
        turn = _Turn(self, step)
        try:
            item = self._fetch(step, buffer, turn)
            if not turn.taken:
                raise RuntimeError(f"the fetch of step {step} did not take its turn")
        except _Stopped:
            self._buffers.give(buffer)
        except BaseException as error:  # noqa: BLE001 - the consumer gets it
            self._fail(step, error)
            self._buffers.give(buffer)  # for no step after that
        else:
            self._arrive(step, buffer, item)

    def _arrive(self, step: int, buffer: np.ndarray, item: Item) -> None:
        with self._changed:
            if not self._end:
                self._buffers.give(buffer)
                return
            self._turn = max(self._turn, step + 1)
            self._items[step], self._held[step] = item, buffer
            self._changed.notify_all()

    def _fail(self, step: int, error: BaseException) -> None:
        """Nobody gets further than to the error of this step."""
        with self._changed:
            self._errors[step] = error
            self._end = min(self._end, step + 1)
            self._changed.notify_all()
