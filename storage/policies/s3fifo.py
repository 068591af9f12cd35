"""S3-FIFO: a small queue sifts newcomers before a large one takes them."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from itertools import repeat

import numpy as np

from storage.policies.queues import Queue, QueuePolicy
from storage.policy import Why

_SMALL_SHARE, _GHOST_SHARE = 0.1, 0.9
_USES_TO_MOVE = 2
_MOST_USES = 3

Move = tuple[int, Queue, int]  # a sample, the queue whose front it was taken from, its uses then
Departure = tuple[int, Queue]


class S3FIFO(QueuePolicy):
    """Evicts newcomers that are not used twice while they go through a small queue.

    Newcomers join the small queue, a tenth of the capacity. At its front, who was used twice moves
    on to the main queue; who was not leaves, and as a ghost it would come back into the main queue.
    At the front of that, who was used goes to the end with a use less, of three at most, and who
    was not leaves (Yang et al., FIFO Queues are All You Need for Cache Eviction, SOSP 2023,
    section 4). Queues are measured in charged bytes; ghosts take nine tenths of the capacity.

    As in libCacheSim, newcomers join the main queue when the small one is full and nobody had to
    leave yet. Uses of a sample that is not cached do not count. An overwritten one stays in its
    queue, but as a newcomer.

    Departures:
        A sample that costs as much as the small queue holds joins it like any other. libCacheSim
        does not take it in, so there a cache of fewer than 20 samples remains empty.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples, "small", "main", "ghosts")
        self._small, self._main, self._ghosts = self._queues.values()
        self._uses = array("q", [0]) * samples  # in the queue where the sample is
        self._uses_view = np.frombuffer(self._uses, np.int64)
        self._back: set[int] = set()  # asked for as a ghost, not here yet
        self._leaving: dict[int, Queue] = {}  # named as a victim, from this queue, not gone yet
        self._has_evicted = False

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Count the uses of who was there, and look for ghosts of who was not."""
        self._ghosts.shrink_to(int(self.capacity_bytes * _GHOST_SHARE))
        np.add.at(self._uses_view, samples[hit], 1)
        self._recall(samples[~hit].tolist())

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        """Yield who comes out of the queues; moves that nobody left after are undone."""
        moves: list[Move] = []
        ends: list[int] = []
        try:
            for victim, queue in self._departures(moves):
                self._leaving[victim] = queue
                moves.append((victim, queue, self._uses[victim]))
                ends.append(len(moves))
                yield victim
        finally:
            gone = [end for end in ends if moves[end - 1][0] not in self._leaving]
            self._undo(moves, gone[-1] if gone else 0)

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Take one out for each."""
        self._has_evicted = True
        return self._enter(incoming, self._departures([]))

    def inserted(self, samples: np.ndarray) -> None:
        """Put each at the end of its queue."""
        self._enter(samples.tolist(), repeat(None))

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Take samples out of the queues; who was evicted from the small one becomes a ghost."""
        for sample in samples.tolist():
            queue = self._leaving.pop(sample, None)
            if queue is None:
                queue = self._small if sample in self._small.order else self._main
                queue.drop(sample)
            if why == "evicted":
                self._has_evicted = True
                if queue is self._small:
                    self._ghosts.append(sample)
            elif why == "overwritten" and queue is self._main:
                self._back.add(sample)

    def columns(self) -> dict[str, np.ndarray]:
        """Queues and ghosts, uses, who is about to come back, and whether anybody ever left."""
        return super().columns() | {
            "uses": self._uses_view,
            "back": np.array(sorted(self._back), np.int64),
            "has_evicted": np.array(self._has_evicted),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        super().restore(columns)
        self._uses_view[:] = columns["uses"]
        self._back = set(columns["back"].tolist())
        self._has_evicted = bool(columns["has_evicted"])

    def _departures(self, moves: list[Move]) -> Generator[Departure, None, None]:
        """Take one after another out of its queue; note who moves on instead."""
        small, main, costs, uses = self._small, self._main, self._costs, self._uses
        main_share_bytes = self.capacity_bytes - int(self.capacity_bytes * _SMALL_SHARE)
        while small.order or main.order:
            # The small queue goes on until somebody leaves, however long the main one becomes.
            sifts = main.charged_bytes <= main_share_bytes
            while sifts and small.order:
                sample, _ = small.order.popitem(False)
                small.charged_bytes -= costs[sample]
                if uses[sample] < _USES_TO_MOVE:
                    yield sample, small
                    sifts = main.charged_bytes <= main_share_bytes
                else:
                    moves.append((sample, small, uses[sample]))
                    main.append(sample)
                    uses[sample] = 0
            if main.order:
                sample = main.pop()
                if not uses[sample]:
                    yield sample, main
                else:
                    moves.append((sample, main, uses[sample]))
                    main.append(sample)
                    uses[sample] = min(uses[sample], _MOST_USES) - 1

    def _undo(self, moves: list[Move], start: int) -> None:
        """Take back the moves from `start` on, and put those who stay in front of their queues."""
        for sample, queue, uses in reversed(moves[start:]):
            self._main.drop(sample)
            queue.prepend(sample)
            self._uses[sample] = uses
            self._leaving.pop(sample, None)
        for sample, queue, _ in reversed(moves[:start]):
            if self._leaving.pop(sample, None):
                queue.prepend(sample)

    def _recall(self, samples: Sequence[int]) -> None:
        """Let ghosts be on their way back."""
        ghosts = self._ghosts.order
        for sample in samples:
            if sample in ghosts:
                self._ghosts.drop(sample)
                self._back.add(sample)

    def _enter(self, incoming: Sequence[int], departures: Iterator[Departure | None]) -> list[int]:
        """Put each at the end of its queue, after the one who leaves for it."""
        self._recall(incoming)  # those that nobody asked for
        small, main, ghosts, back = self._small, self._main, self._ghosts, self._back
        costs, offered, uses = self._costs, self._offered, self._uses
        small_share_bytes = int(self.capacity_bytes * _SMALL_SHARE)
        left = []
        for sample, departure in zip(incoming, departures, strict=False):
            if departure is not None:
                victim, queue = departure
                left.append(victim)
                if queue is small:
                    ghosts.append(victim)
            costs[sample], uses[sample] = offered[sample], 0
            if sample in back:
                back.discard(sample)
                main.append(sample)
            elif self._has_evicted or small.charged_bytes < small_share_bytes:
                small.append(sample)
            else:
                main.append(sample)
        return left
