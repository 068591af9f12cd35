"""An origin on which things go wrong, as they are told to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from storage import Origin
from storage.errors import OriginError

Spoil = Callable[[bytes], bytes]


class Faulty(Origin):
    """Another origin that fails, hangs or gives bytes that are not what they were.

    Attributes:
        asked: the samples of each read, in order.
        failures: how often a read with that sample still fails.
        spoilt: what becomes of the bytes of a sample, and how often.
        gone_after: so many reads succeed, then none.
        hangs_at: the number of the read that waits for `released`.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin, self._lock = origin, threading.Lock()
        self.asked: list[list[int]] = []
        self.failures: dict[int, float] = {}
        self.spoilt: dict[int, tuple[Spoil, float]] = {}
        self.gone_after = float("inf")
        self.hangs_at = -1
        self.hanging, self.released = threading.Event(), threading.Event()

    @property
    def size_bytes(self) -> np.ndarray:
        return self._origin.size_bytes

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        asked = samples.tolist()
        with self._lock:  # what is no image is read again beside the others
            number = len(self.asked)
            self.asked.append(asked)
        if number == self.hangs_at:
            self.hanging.set()
            self.released.wait(120)
        if number >= self.gone_after:
            raise OriginError("nobody is there")
        for sample in asked:
            if self.failures.get(sample, 0) > 0:
                self.failures[sample] -= 1
                raise OriginError(f"sample {sample} does not read")
        starts = self._origin.read(samples, buffer, at)
        lengths = self.size_bytes[samples]
        for sample, start, length in zip(asked, starts, lengths, strict=True):
            spoil, times = self.spoilt.get(sample, (bytes, 0))
            if times > 0:
                self.spoilt[sample] = spoil, times - 1
                content = spoil(buffer[start : start + length].tobytes())
                buffer[start : start + length] = np.frombuffer(content.ljust(length, b"\0"), "u1")
        return starts


def cut_short(content: bytes) -> bytes:
    """The first half of a file."""
    return content[: len(content) // 2]


def emptied(content: bytes) -> bytes:
    """Nothing of it."""
    del content
    return b""


def flipped(content: bytes) -> bytes:
    """All bits of its first 200 bytes flipped: no image begins like that."""
    return bytes(byte ^ 255 for byte in content[:200]) + content[200:]
