"""The table of a run's telemetry: `telemetry.jsonl`, a row per line, written bit by bit."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from fedio.runs import TELEMETRY_FILE, Row

logger = logging.getLogger(__name__)


class Rows:
    """Writes rows; a disk that takes no more ends that, and not the run.

    Rows may come from any thread.
    """

    def __init__(self, file: Path, *, goes_on: bool) -> None:
        """Begin the table, or go on with it.

        Args:
            file: where it is.
            goes_on: keep what is there; a line that was not finished goes.
        """
        self._file = file
        self._lock = threading.Lock()
        self._is_lost = False
        if goes_on and file.is_file():
            whole_bytes = file.read_bytes().rfind(b"\n") + 1
            os.truncate(file, whole_bytes)
        else:
            file.write_text("")

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows down."""
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        with self._lock:
            if self._is_lost:
                return
            try:
                with self._file.open("a") as file:
                    file.write(text)
            except OSError as error:
                self._is_lost = True
                logger.warning("no more telemetry: cannot write %s: %s", self._file, error.strerror)


def read(run: Path) -> list[Row]:
    """Return the rows of the run in a folder, in order; none if it has no telemetry.

    The last line may be unfinished, where a run was ended by force: it is left out.
    """
    file = run / TELEMETRY_FILE
    if not file.is_file():
        return []
    *lines, _ = file.read_text().split("\n")
    return [json.loads(line) for line in lines]
