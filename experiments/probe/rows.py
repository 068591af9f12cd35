"""The rows of a probe's table: one for each thing measured, and each size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from experiments.probe.points import Points

Measure = Literal["size_bytes", "batch"]
"""What the size of an operation is called: of a step it is the samples of its batch."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure.

    Attributes:
        name: what was measured, such as `origin.read`.
        unit: what `seconds` are of.
        seconds: the median.
        spread: the 10th and the 90th percentile.
        count: of how many measurements.
        size_bytes: of what was read, written or decoded.
        batch: samples of a training step.
    """

    name: str
    unit: str
    seconds: float
    spread: tuple[float, float]
    count: int
    size_bytes: float | None = None
    batch: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def rows_of(name: str, unit: str, points: Points, of: Measure = "size_bytes") -> list[Row]:
    """Return a row for each size; `of` says what a size is."""
    return [row_of(name, unit, seconds, **{of: size}) for size, seconds in points.by_size()]


def row_of(name: str, unit: str, seconds: Sequence[float] | np.ndarray, **size: float) -> Row:
    """Return the row of measurements of one kind, and one `size_bytes` or `batch`."""
    low, median, high = np.percentile(seconds, (10, 50, 90)).tolist()
    return Row(name, unit, median, (low, high), len(seconds), **size)
