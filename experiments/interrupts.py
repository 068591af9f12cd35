"""Signals that end a process, while it has something to clean up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_OTHERS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_like_interrupts() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt within the block, if they would end it.

    Handlers belong to the main thread: in any other nothing happens.
    """
    with _handled(_interrupt, [number for number in _OTHERS if _is_default(number)]):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Let the block end before Ctrl-C, SIGTERM or SIGHUP have any effect."""
    came: list[int] = []
    try:
        with _handled(lambda number, _: came.append(number), [signal.SIGINT, *_OTHERS]):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextmanager
def _handled(handler: signal._HANDLER, numbers: list[signal.Signals]) -> Iterator[None]:
    """Give signals another handler within the block, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def _is_default(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_DFL


def _interrupt(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt
