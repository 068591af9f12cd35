"""Telemetry while a run goes on: a thread that looks at its processes and their host."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable
from typing import Self

from experiments.telemetry.counters import Counters, Seldom, counters, seldom
from experiments.telemetry.gpu import gpu_bytes
from experiments.telemetry.host import host
from experiments.telemetry.processes import Family, Watched
from experiments.telemetry.rows import Rows, read
from fedio.config import Emulation
from fedio.runs import TELEMETRY_FILE, Row, RunFolder

# As the table grows its rows become rarer: by half each time that it has grown by so many.
ROWS_BEFORE_THINNING = 20_000


class Telemetry:
    """Samples a run's processes within the block, and writes rows into its folder.

    `process` rows have what a process used since it began, `host` rows the machine; `started` and
    `ended` rows are what the engine says. Each has `wall_s`, seconds since the `begin` row, which
    has the date. Processes may vanish at any moment: their last sample is written down then.
    """

    def __init__(
        self,
        folder: RunFolder,
        watched: Callable[[], Iterable[Watched]],
        emulation: Emulation,
    ) -> None:
        """Begin the table, or go on with that of a run that is resumed.

        Args:
            folder: of the run.
            watched: returns the processes that are known by name; called from another thread.
            emulation: says how often to look.
        """
        before = read(folder.path) if folder.is_begun else []
        self._rows = Rows(folder.path / TELEMETRY_FILE, goes_on=bool(before))
        self._family = Family(watched)
        self._emulation = emulation
        self._entered_s = time.time()
        self._began_s = before[0]["began_s"] if before else self._entered_s
        if not before:
            date = dt.datetime.fromtimestamp(self._began_s, dt.UTC)
            self._rows.add([self._row("begin", began_s=self._began_s, date=date.isoformat())])
        self._unwritten: dict[tuple[int, float], Row] = {}
        self._written = 0
        self._next_rows_s = self._next_memory_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_over, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def started(self, kind: str, client: int | None, pid: int, took_s: float) -> None:
        """Write down that a process is ready, so many seconds after it was asked for."""
        self._rows.add([self._row("started", kind=kind, client=client, pid=pid, took_s=took_s)])

    def ended(self, kind: str, client: int | None, pid: int, code: int | None) -> None:
        """Write down that a process has ended, with its exit code; a signal's is negative."""
        self._rows.add([self._row("ended", kind=kind, client=client, pid=pid, code=code)])

    def sample(self) -> None:
        """Look at everybody once, and write down what is due."""
        now_s = time.monotonic()
        writes = now_s >= self._next_rows_s
        remembers = writes and now_s >= self._next_memory_s
        rows = self._processes(remembers=remembers)
        gone = [row for key, row in self._unwritten.items() if key not in rows]
        if not writes:
            self._unwritten = rows
            self._rows.add(gone)
            return
        self._unwritten = {}
        self._rows.add([*gone, *rows.values(), self._host()])
        self._written += len(gone) + len(rows) + 1
        # Half an interval less, since no two looks are just an interval apart.
        rarer = 2 ** (self._written // ROWS_BEFORE_THINNING)
        self._next_rows_s = now_s + self._emulation.telemetry_s * (rarer - 0.5)
        if remembers:
            self._next_memory_s = now_s + self._emulation.memory_s

    def _sample_until_over(self) -> None:
        due_s = time.monotonic()
        while not self._over.wait(max(0.0, due_s - time.monotonic())):
            self.sample()
            due_s = max(due_s + self._emulation.telemetry_s, time.monotonic())
        self._next_rows_s = 0.0
        self.sample()

    def _processes(self, *, remembers: bool) -> dict[tuple[int, float], Row]:
        """Return a row for each process that lives, by process-id and birth, all of one time."""
        on_gpu = gpu_bytes() if remembers else None
        look = self._row("process")
        rows = {}
        for one in self._family.living():
            try:
                used = _values(counters(one.pid))
                if remembers:
                    used |= _values(seldom(one.pid))
            except ProcessLookupError:
                continue
            if on_gpu is not None:
                used["gpu_bytes"] = on_gpu.get(one.pid, 0)
            used["born_s"] = round(used["born_s"] - self._began_s, 2)
            rows[one.pid, used["born_s"]] = look | _values(one) | used
        return rows

    def _host(self) -> Row:
        """Return the row of the host, with what all this takes: the share of a core."""
        took_s = max(time.time() - self._entered_s, self._emulation.telemetry_s)
        return self._row("host", **host(), telemetry_share=time.thread_time() / took_s)

    def _row(self, what: str, **values: object) -> Row:
        return {"what": what, "wall_s": round(time.time() - self._began_s, 3), **values}


def _values(fields: Counters | Seldom | Watched) -> Row:
    """Return fields by name; `dataclasses.asdict` would take half of the time of a look."""
    return {name: getattr(fields, name) for name in fields.__dataclass_fields__}
