"""An order in which whoever is touched goes to the end, and the first leaves."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from storage.policy import Policy, Why

_SHORTEST_LOG = 1024


class Recency(Policy):
    """Evicts the lowest number first; each touch gives its sample the next one.

    What comes in without a number gets one then, and what leaves loses it. So without touches this
    is the order of arrival, and with one at each use the order of the last use.

    The order is a log of touches, written at its end and read from its front. An entry counts as
    long as its sample has its number. A log that is full is thrown away, and the next is made when
    somebody has to leave. So a touch or a victim costs little more than O(1), amortised, and a
    batch of them a few calls of NumPy.

    Attributes:
        forgets_overwritten: whether a sample that is overwritten comes in anew.
    """

    forgets_overwritten = False

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._numbers = np.zeros(samples, np.int64)  # of the last touch; 0 is none
        self._cached = np.zeros(samples, dtype=bool)
        self._touches = 0
        self._log = self._log_numbers = np.empty(0, np.int64)
        self._front = self._end = 0
        self._passed = 0  # the number up to which the front has gone past all
        kind = type(self)
        self._is_plain = (
            kind.victims is Recency.victims
            and kind.inserted is Recency.inserted
            and kind.removed is Recency.removed
        )

    def touch(self, samples: np.ndarray) -> None:
        """Move samples, cached or not, int64[k], to the end one by one."""
        first, self._touches = self._touches + 1, self._touches + len(samples)
        numbers = np.arange(first, self._touches + 1)
        self._numbers[samples] = numbers  # of a repeated sample the last counts
        end = self._end + len(samples)
        if end <= len(self._log):
            self._log[self._end : end] = samples
            self._log_numbers[self._end : end] = numbers
            self._end = end
        else:
            self._drop_log()

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        """Yield cached samples by rising number."""
        self._make_log()
        log, log_numbers = self._log.data, self._log_numbers.data
        number_of, is_cached = self._numbers.data, self._cached.data
        for at in range(self._front, self._end):
            sample = log[at]
            if number_of[sample] == log_numbers[at]:
                if is_cached[sample]:
                    yield sample
            elif at == self._front:  # what never counts again is not looked at again
                self._front += 1

    def outlasts(self, incoming: np.ndarray, victim: int) -> bool:
        """Compare numbers; whoever has none is going to have the highest."""
        numbers = self._numbers[incoming]
        before = (numbers > 0) & (numbers < self._numbers.item(victim))
        return self._is_plain and not np.count_nonzero(before)

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Take all victims in one go, where no newcomer can be one of them."""
        newcomers = np.array(incoming)
        victims = self._take(newcomers) if self._is_plain else None
        if victims is None:
            return super().exchange(incoming)
        self._numbers[victims] = 0
        self._cached[victims] = False
        self._cached[newcomers] = True
        left: list[int] = victims.tolist()
        return left

    def inserted(self, samples: np.ndarray) -> None:
        """Let samples in with the number that they have."""
        self._touch_new(samples)
        self._cached[samples] = True
        if np.count_nonzero(self._numbers[samples] <= self._passed):
            self._drop_log()

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Take the numbers of what left; an overwritten sample may keep its own."""
        self._cached[samples] = False
        if why != "overwritten" or self.forgets_overwritten:
            self._numbers[samples] = 0

    def columns(self) -> dict[str, np.ndarray]:
        """Numbers and who is cached; the order follows from them."""
        touches = np.array(self._touches)
        return {"numbers": self._numbers, "cached": self._cached, "touches": touches}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self._numbers[:] = columns["numbers"]
        self._cached[:] = columns["cached"]
        self._touches = int(columns["touches"])
        self._drop_log()

    def _touch_new(self, samples: np.ndarray) -> None:
        numbers = self._numbers[samples]
        if np.count_nonzero(numbers) < len(numbers):
            self.touch(samples[numbers == 0])

    def _take(self, newcomers: np.ndarray) -> np.ndarray | None:
        """Return as many first ones as come in; None if a newcomer would leave for a later one."""
        self._touch_new(newcomers)
        self._make_log()
        found: list[np.ndarray] = []
        at, missing = self._front, len(newcomers)
        while missing and at < self._end:
            # Many do not count, so one look at many more than are missing is the cheapest.
            end = min(at + 4 * missing + 8, self._end)
            samples = self._log[at:end]
            counts = self._numbers[samples] == self._log_numbers[at:end]
            rows = (counts & self._cached[samples]).nonzero()[0][:missing]
            found.append(samples[rows])
            missing -= len(rows)
            at = end if missing else at + rows.item(-1) + 1
        last = self._log_numbers.item(at - 1)
        if missing or np.count_nonzero(self._numbers[newcomers] < last):
            return None
        self._front, self._passed = at, last
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _drop_log(self) -> None:
        self._log = self._log_numbers = np.empty(0, np.int64)
        self._front = self._end = self._passed = 0

    def _make_log(self) -> None:
        if len(self._log):
            return
        numbered = np.flatnonzero(self._numbers)
        ordered = numbered[np.argsort(self._numbers[numbered])]
        self._end = len(ordered)
        room = max(_SHORTEST_LOG, 2 * len(ordered), self.samples // 8)
        self._log, self._log_numbers = np.empty((2, room), np.int64)
        self._log[: self._end] = ordered
        self._log_numbers[: self._end] = self._numbers[ordered]
