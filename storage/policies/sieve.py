"""SIEVE: a hand goes along the queue and takes who was not used since it came by."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from storage.policy import Policy, Why

_IDLE, _USED, _GONE = 0, 1, 2
_SPENT = bytes([_IDLE, _IDLE, _GONE])  # what a mark becomes when the hand passes
_SPENT += bytes(range(len(_SPENT), 256))
_SHORTEST = 64


class SIEVE(Policy):
    """Evicts the first in the queue that was not used since the hand passed it.

    Newcomers join at the end. The hand goes from the oldest to the newest and round again, takes
    back the mark of whoever was used, and stays where it found a victim. Nobody moves, so a use
    costs one mark (Zhang et al., SIEVE is Simpler than LRU, NSDI 2024, section 3).

    The queue is an array with gaps where samples left, and is closed up when it is full. Its marks
    are bytes, so that whom the hand passes is found, and spent, in one call.

    An overwritten sample comes in anew.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._places = np.zeros(samples, np.int64)  # of the residents, in the queue
        self._queue: np.ndarray
        self._end: int  # of the queue; the array has room beyond
        self._count = 0
        self._lay(np.empty(0, np.int64), np.empty(0, np.uint8), _SHORTEST)
        self._hand = 0

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Mark who was there; a miss marks nothing."""
        self._marks_view[self._places[samples[hit]]] = _USED

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        """Yield whom the hand would take: first all that are idle, then round again, the others."""
        marks = self._marks
        for mark in (_IDLE, _USED):
            for start, end in ((self._hand, self._end), (0, self._hand)):
                place = marks.find(mark, start, end)
                while place >= 0:
                    yield self._queue.item(place)
                    place = marks.find(mark, place + 1, end)

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Move the hand on for each."""
        self._make_room(len(incoming))
        marks, hand, end = self._marks, self._hand, self._end
        self._join(incoming)
        gone = []
        for newest in range(end, end + len(incoming)):
            # Whoever comes in for the one before is not to be found earlier than that.
            while (place := marks.find(_IDLE, hand, newest)) < 0:
                marks[hand:newest] = marks[hand:newest].translate(_SPENT)
                hand = 0
            if place > hand:
                marks[hand:place] = marks[hand:place].translate(_SPENT)
            marks[place] = _GONE
            gone.append(place)
            hand = place + 1 if place + 1 < newest else 0
        self._hand = hand
        self._count -= len(gone)
        left: list[int] = self._queue[gone].tolist()
        return left

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples at the end of the queue, idle."""
        self._make_room(len(samples))
        self._join(samples)

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Take samples out of the queue; the hand has come by for those that were evicted."""
        for place in self._places[samples].tolist():
            if why == "evicted":
                self._pass_to(place)
            self._marks[place] = _GONE
        self._count -= len(samples)
        while self._end and self._marks[self._end - 1] == _GONE:
            self._end -= 1
            self._marks[self._end] = _IDLE
        if self._hand >= self._end:  # nobody newer is left
            self._hand = 0

    def columns(self) -> dict[str, np.ndarray]:
        """The queue, who of it was used, and before which of them the hand is."""
        kept = np.flatnonzero(self._marks_view[: self._end] != _GONE)
        return {
            "queue": self._queue[kept],
            "used": self._marks_view[kept] == _USED,
            "hand": np.array(np.count_nonzero(kept < self._hand)),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self._count = len(columns["queue"])
        self._lay(columns["queue"], columns["used"].astype(np.uint8), _SHORTEST)
        self._hand = int(columns["hand"])

    def _pass_to(self, place: int) -> None:
        """Move the hand to the place of a victim and beyond, as if it had searched for it."""
        marks, end = self._marks, self._end
        if marks[place] == _USED:  # it went all round before
            spans = [(0, end)]
        elif place >= self._hand:
            spans = [(self._hand, place)]
        else:
            spans = [(self._hand, end), (0, place)]
        for start, stop in spans:
            marks[start:stop] = marks[start:stop].translate(_SPENT)
        self._hand = place + 1

    def _join(self, samples: np.ndarray | Sequence[int]) -> None:
        start, self._end = self._end, self._end + len(samples)
        self._queue[start : self._end] = samples
        self._places[samples] = np.arange(start, self._end)
        self._count += len(samples)

    def _make_room(self, count: int) -> None:
        """Close the gaps if so many more have no room at the end."""
        if self._end + count > len(self._queue):
            kept = np.flatnonzero(self._marks_view[: self._end] != _GONE)
            self._hand = int(np.count_nonzero(kept < self._hand))
            self._lay(self._queue[kept], self._marks_view[kept], 2 * (self._count + count))

    def _lay(self, queue: np.ndarray, marks: np.ndarray, room: int) -> None:
        self._end = len(queue)
        room = max(room, self._end, _SHORTEST)
        self._queue = np.empty(room, np.int64)
        self._marks = bytearray(room)  # those beyond the end are idle
        self._marks_view = np.frombuffer(self._marks, np.uint8)
        self._queue[: self._end], self._marks_view[: self._end] = queue, marks
        self._places[queue] = np.arange(self._end)
