"""Measuring in turns: ours and the reference alternate, so that a busy machine slows both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

REPETITIONS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: how many times better than a reference.

    Attributes:
        name: what was measured, such as `engine.overhead`.
        value: our figure, the median.
        unit: its unit.
        reference: what it is compared with.
        ratio: the median over repetitions of reference / ours; above 1 is better.
        setting: what else one must know to measure it again.
    """

    name: str
    value: float
    unit: str
    reference: str
    ratio: float
    setting: dict[str, Any]

    @classmethod
    def of_seconds(
        cls,
        names: tuple[str, str],
        ours_s: Sequence[float],
        reference_s: Sequence[float],
        client_rounds: int,
        setting: dict[str, Any],
    ) -> Row:
        """Return a row from seconds measured in turns.

        Args:
            names: what was measured, and the reference.
            ours_s: our wall-clock seconds, one per repetition.
            reference_s: those of the reference.
            client_rounds: how many participations each of them covers.
            setting: what else to say.
        """
        ratios = [one / other for one, other in zip(reference_s, ours_s, strict=True)]
        value_ms = median(ours_s) / client_rounds * 1e3
        return cls(names[0], value_ms, "ms/client-round", names[1], median(ratios), setting)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def in_turns(*actions: Callable[[], object]) -> list[list[float]]:
    """Run actions in turns, once for warming up and then `REPETITIONS` times.

    Returns:
        The wall-clock seconds of each action.
    """
    seconds: list[list[float]] = [[] for _ in actions]
    for repetition in range(REPETITIONS + 1):
        for action, measured in zip(actions, seconds, strict=True):
            began = time.perf_counter()
            action()
            if repetition:
                measured.append(time.perf_counter() - began)
    return seconds
