"""A storage tier: what reading and writing bytes there costs in seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Tier:
    """A storage level with a latency and a bandwidth in each direction.

    One operation takes latency + bytes / bandwidth. A tier is one shared queue: operations follow
    one another, however many readers there are, so a set of them costs the sum of its members and
    depends only on their number and their bytes.

    Attributes:
        read_latency_s: seconds before the first byte of a read.
        read_bytes_per_s: read bandwidth.
        write_latency_s: seconds before the first byte of a write.
        write_bytes_per_s: write bandwidth.

    Every field may also be an array with one entry per device; results then have that shape.
    """

    read_latency_s: float | np.ndarray
    read_bytes_per_s: float | np.ndarray
    write_latency_s: float | np.ndarray
    write_bytes_per_s: float | np.ndarray

    def read_s(self, count: npt.ArrayLike, size_bytes: npt.ArrayLike) -> np.ndarray:
        """Seconds to read `count` samples of `size_bytes` bytes in all."""
        return _seconds(count, self.read_latency_s, size_bytes, self.read_bytes_per_s)

    def write_s(self, count: npt.ArrayLike, size_bytes: npt.ArrayLike) -> np.ndarray:
        """Seconds to write `count` samples of `size_bytes` bytes in all."""
        return _seconds(count, self.write_latency_s, size_bytes, self.write_bytes_per_s)


def _seconds(
    count: npt.ArrayLike,
    latency_s: float | np.ndarray,
    size_bytes: npt.ArrayLike,
    bytes_per_s: float | np.ndarray,
) -> np.ndarray:
    seconds: np.ndarray = np.multiply(count, latency_s) + np.divide(size_bytes, bytes_per_s)
    return seconds
