"""Least frequently used."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Literal, get_args

import numpy as np

from storage.policy import ScorePolicy, Why

Admission = Literal["always", "more used"]

# A score holds the uses above the number of the last use; both stay exact in a float.
_USE = 2.0**32
_MOST_USES = 2**21 - 1


class LFU(ScorePolicy):
    """Keeps what was used most often; of equal ones, what was used last.

    Uses are numbered one by one, inside a batch too. More than 2^21 - 1 count as so many. A sample
    that comes in without having been read since it left counts as used when it comes in.

    Args:
        samples: how many samples there are, cached or not.
        admission: "always": whatever is offered comes in, and what leaves is forgotten, so that a
            newcomer has one use and is often the next to leave (as in cachetools). "more used":
            uses are kept of what is not cached too, and a sample comes in only if it has more than
            its victim (the rule of FedCaSe's artifact; its victim is the least (w, f)).

    Raises:
        ValueError: no such admission.
    """

    def __init__(self, samples: int, admission: Admission = "always") -> None:
        super().__init__(samples)
        if admission not in get_args(Admission):
            raise ValueError(f"admission is one of {', '.join(get_args(Admission))}")
        self.uses = np.zeros(samples, np.int64)
        self._clock = 0
        self._is_choosy = admission == "more used"

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        """Count and number the uses; a miss counts as one, its sample is about to come in."""
        self._use(samples)
        self._queue.put(samples)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the least used first, as long as they are used less than a choosy one's."""
        with closing(super().victims(incoming)) as order:
            for victim in order:
                if self._is_choosy and incoming is not None:
                    uses = max(1, self.uses.item(incoming))
                    if uses <= self.uses.item(victim):
                        return
                yield victim

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through the order once for all; a subclass says so itself."""
        if type(self) is not LFU:
            return super().exchange(incoming)
        newcomers = np.array(incoming)
        if self._is_choosy:
            if not self.uses[newcomers].all():  # who is rejected is not used
                return super().exchange(incoming)
            return self._queue.exchange(incoming, (self._counted(newcomers) * _USE).tolist())
        self._use_unread(newcomers)
        left = self._queue.exchange(incoming)
        self.uses[left] = 0
        return left

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into the order, unread ones as used now."""
        self._use_unread(samples)
        super().inserted(samples)

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Forget the uses of what left, unless choosy; an overwritten sample keeps them."""
        super().removed(samples, why)
        if why != "overwritten" and not self._is_choosy:
            self.uses[samples] = 0

    def columns(self) -> dict[str, np.ndarray]:
        """The order, the uses and their number so far."""
        return super().columns() | {"uses": self.uses, "clock": np.array(self._clock)}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        super().restore(columns)
        self.uses[:] = columns["uses"]
        self._clock = int(columns["clock"])

    def _use_unread(self, samples: np.ndarray) -> None:
        uses = self.uses[samples]
        if np.count_nonzero(uses) < len(uses):
            self._use(samples[uses == 0])

    def _use(self, samples: np.ndarray) -> None:
        """Number uses one by one; of a repeated sample the last number counts."""
        np.add.at(self.uses, samples, 1)
        first, self._clock = self._clock + 1, self._clock + len(samples)
        self.scores[samples] = self._counted(samples) * _USE + np.arange(first, self._clock + 1)

    def _counted(self, samples: np.ndarray) -> np.ndarray:
        counted: np.ndarray = np.minimum(self.uses[samples], _MOST_USES)
        return counted
