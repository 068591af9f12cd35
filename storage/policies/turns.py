"""Cached samples that take turns: who came first stands in first, and leaves first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np


class Turns:
    """Members in the order in which they came, and who of them may stand in for another sample.

    That is who was not used in this epoch, and did not stand in `times` times since it came.

    Args:
        samples: how many there are, members or not.
        times: at most 255.

    Attributes:
        used: bool[n], in this epoch; the owner writes to it.
        stood: uint8[n], how often each stood in since it came; the owner resets it.
    """

    def __init__(self, samples: int, times: int) -> None:
        self._times = times
        # One flag at a time is read from these bytes; a NumPy array is slow at that.
        self._flags = bytearray(samples)
        self.used = np.frombuffer(self._flags, np.bool_)
        self.stood = np.zeros(samples, np.uint8)
        self._members: OrderedDict[int, None] = OrderedDict()
        self._unused: OrderedDict[int, None] = OrderedDict()  # and some used ones

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[int]:
        """Yield members in order."""
        return iter(self._members)

    def arrange(self, members: np.ndarray) -> None:
        """Start again with these members, int64[k], in this order."""
        fit = members[self.stood[members] < self._times]
        self._members = OrderedDict.fromkeys(members.tolist())
        self._unused = OrderedDict.fromkeys(fit.tolist())

    def push(self, sample: int) -> None:
        """One came in, at the end."""
        self._members[sample] = None
        if not self._flags[sample]:
            self._unused[sample] = None

    def pop(self) -> int:
        """Return the first, who leaves."""
        sample, _ = self._members.popitem(last=False)
        self._unused.pop(sample, None)
        return sample

    def drop(self, samples: np.ndarray) -> None:
        """Samples leave, members or not, int64[k]."""
        for sample in samples.tolist():
            self._members.pop(sample, None)
            self._unused.pop(sample, None)

    def substitutes(self, count: int) -> list[int]:
        """Return the first `count` who may stand in, or as many as there are."""
        found: list[int] = []
        passed: list[int] = []
        for sample in self._unused:
            if len(found) == count:
                break
            (passed if self._flags[sample] else found).append(sample)
        for sample in passed:
            del self._unused[sample]
        return found

    def stand_in(self, samples: list[int]) -> None:
        """These stood in, each once."""
        self.used[samples] = True
        self.stood[samples] += 1
