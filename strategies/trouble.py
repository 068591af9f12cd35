"""What went wrong in a run, and when there is no point in going on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from fedio.errors import FruitlessError
from strategies.replies import Problem
from strategies.round import Outcome
from strategies.transport import last_line

logger = logging.getLogger(__name__)


class Trouble:
    """Logs every problem, keeps the first, and counts rounds in a row that brought nothing."""

    def __init__(self, empty_rounds: int) -> None:
        self._allowed = empty_rounds
        self._empty = 0
        self._first = "nobody replied"
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
            said = last_line(problem.reason)
            what = f"round {server_round}, partition {client}: {said}"
            logger.warning("%s (%s)", what, problem.outcome)
            if self._quiet:
                self._quiet = False
                self._first = what if problem.reason == said else f"{what}\n{problem.reason}"

    def check(self, server_round: int, outcome: Outcome) -> None:
        """Take note of how a round ended.

        Raises:
            FruitlessError: too many rounds in a row brought nothing; with the first problem.
        """
        counted = len(outcome.counted)
        self._empty = 0 if counted else self._empty + 1
        self._counted += counted
        if not counted and self._quiet:
            self._first, self._quiet = f"round {server_round}: {outcome.why_nothing}", False
        if self._empty >= self._allowed:
            self._give_up(f"{self._empty} rounds in a row")

    def finish(self) -> None:
        """Take note that all rounds are over.

        Raises:
            FruitlessError: not one reply counted in the whole run.
        """
        if not self._counted:
            self._give_up("all rounds")

    def _give_up(self, which: str) -> NoReturn:
        raise FruitlessError(f"{which} brought no usable reply; the first problem: {self._first}")
