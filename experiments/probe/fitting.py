"""The line through what was measured: a latency, and a bandwidth."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from experiments.probe.points import Points

LEAST_UNIT_S = 1e-12
"""Where the time does not grow with the size: a terabyte a second."""


@dataclass(frozen=True, slots=True)
class Fit:
    """An operation of n bytes (or a step of n samples) takes latency_s + n * unit_s.

    Attributes:
        latency_s: seconds of an operation without its bytes, from 0 on.
        unit_s: seconds of a byte, above 0.
        residual: the root mean square of the relative errors at the sizes measured; 0.1 says that
            the line is off by a tenth.
    """

    latency_s: float
    unit_s: float
    residual: float

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth."""
        return 1 / self.unit_s

    def to_dict(self) -> dict[str, float]:
        """Return the line as plain data."""
        return asdict(self)


def fit(points: Points) -> Fit:
    """Fit the medians of all sizes by least squares of the relative errors.

    So a small operation counts as much as a large one, and one that stalled does not count.

    Raises:
        ValueError: fewer than two sizes, or seconds that are not above 0.
    """
    groups = points.by_size()
    if len(groups) < 2 or points.seconds.min() <= 0:
        raise ValueError("a line needs two sizes or more, and seconds above 0")
    medians = np.array([np.median(seconds) for _, seconds in groups])
    sizes = np.array([size for size, _ in groups])
    # Both columns relative to the time measured, which is then 1; sizes scaled for the solver.
    largest = groups[-1][0]
    columns = np.stack([1 / medians, sizes / largest / medians], axis=1)
    latency_s, unit_s = _least_squares(columns, LEAST_UNIT_S * largest)
    errors = columns @ [latency_s, unit_s] - 1
    return Fit(latency_s, unit_s / largest, float(np.sqrt(np.mean(errors**2))))


def _least_squares(columns: np.ndarray, least: float) -> tuple[float, float]:
    """Return the factors of two columns whose sum comes closest to 1: >= 0 and >= `least`.

    The sum of squares is convex: where its minimum lies outside, the nearest allowed one is on
    the border that it is beyond.
    """
    first, second = columns.T
    one, other = np.linalg.lstsq(columns, np.ones(len(columns)), rcond=None)[0].tolist()
    if one < 0:
        one, other = 0.0, float(second.sum() / (second @ second))
    if other < least:
        one, other = float((1 - second * least) @ first / (first @ first)), least
    return max(one, 0.0), max(other, least)
