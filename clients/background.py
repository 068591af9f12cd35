"""Staging in the background: a thread of its own, until somebody ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from fedio.protocol import Staged
from storage.errors import StallError


class InBackground:
    """Stages while others do something else."""

    def __init__(self, work: Callable[[Callable[[], bool]], Staged]) -> None:
        """Start.

        Args:
            work: stages, and asks now and then whether it is over.
        """
        self._over = threading.Event()
        self._work, self._staged = work, Future[Staged]()
        self._thread = threading.Thread(target=self._run, name="staging", daemon=True)
        self._thread.start()

    def wait(self, limit_s: float) -> None:
        """Wait until all is staged, but no longer than so many seconds."""
        self._thread.join(min(limit_s, threading.TIMEOUT_MAX))

    def end(self, stall_limit_s: float) -> Staged:
        """Have it end, and return what was staged.

        Args:
            stall_limit_s: how long to wait for it.

        Raises:
            StallError: it does not end.
            Exception: what staging ended with.
        """
        self._over.set()
        self._thread.join(stall_limit_s)
        if self._thread.is_alive():
            raise StallError(
                f"staging has not ended for {stall_limit_s:g} s: is the storage still there?"
            )
        return self._staged.result()

    def _run(self) -> None:
        try:
            self._staged.set_result(self._work(self._over.is_set))
        except BaseException as error:  # noqa: BLE001 - who ends it gets it
            self._staged.set_exception(error)
