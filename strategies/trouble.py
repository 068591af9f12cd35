"""What went wrong in a run, and when there is no point in going on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from fedio.errors import RunError
from strategies.round import Problem
from strategies.transport import last_line

logger = logging.getLogger(__name__)


class Trouble:
    """Logs every problem, keeps the first, and counts rounds in a row that brought nothing."""

    def __init__(self, empty_rounds: int) -> None:
        self._allowed = empty_rounds
        self._empty = 0
        self._first = "every reply came after the deadline"
        self._quiet = True
        self._counted = 0

    def state(self) -> dict[str, np.ndarray]:
        """Return what was noted so far."""
        counts = np.array([self._empty, self._counted, self._quiet])
        return {"counts": counts, "first": np.frombuffer(self._first.encode(), np.uint8)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there."""
        self._empty, self._counted, quiet = state["counts"].tolist()
        self._quiet, self._first = bool(quiet), state["first"].tobytes().decode()

    def note(self, server_round: int, problems: Mapping[int, Problem]) -> None:
        """Take note of what is wrong with the replies of clients, by partition."""
        for client, problem in problems.items():
            what = f"round {server_round}, partition {client}: {last_line(problem.reason)}"
            logger.warning("%s (%s)", what, problem.outcome)
            if self._quiet:
                self._first, self._quiet = f"{what}\n{problem.reason}", False

    def check(self, counted: int) -> None:
        """Take note of how many replies counted in a round.

        Raises:
            RunError: too many rounds in a row brought none; it ends with the first problem.
        """
        self._empty = 0 if counted else self._empty + 1
        self._counted += counted
        if self._empty >= self._allowed:
            self._give_up()

    def finish(self) -> None:
        """Take note that all rounds are over.

        Raises:
            RunError: not one reply counted in the whole run.
        """
        if not self._counted:
            self._give_up()

    def _give_up(self) -> NoReturn:
        raise RunError(
            f"{self._empty} rounds in a row brought no usable reply; the first problem: "
            f"{self._first}"
        )
