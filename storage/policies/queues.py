"""Queues of samples that know what they are charged: what ARC and S3-FIFO consist of."""

from __future__ import annotations

from array import array
from collections import OrderedDict

import numpy as np

from storage.policy import Policy


class Queue:
    """Samples in an order of which both ends and each member are at hand.

    Attributes:
        order: the samples; whoever changes it keeps the sum right.
        charged_bytes: what they are charged in all.
    """

    __slots__ = ("_costs", "charged_bytes", "order")

    def __init__(self, costs: array[int]) -> None:
        """Start empty, with what each sample is charged, int64[n]; the owner changes that."""
        self._costs = costs
        self.order: OrderedDict[int, None] = OrderedDict()
        self.charged_bytes = 0

    def append(self, sample: int) -> None:
        """Put a sample that is not in it at the end."""
        self.order[sample] = None
        self.charged_bytes += self._costs[sample]

    def prepend(self, sample: int) -> None:
        """Put a sample that is not in it at the front."""
        self.append(sample)
        self.order.move_to_end(sample, last=False)

    def pop(self) -> int:
        """Take the first one out."""
        sample, _ = self.order.popitem(last=False)
        self.charged_bytes -= self._costs[sample]
        return sample

    def drop(self, sample: int) -> bool:
        """Take a sample out, if it is there; says whether it was."""
        if sample not in self.order:
            return False
        del self.order[sample]
        self.charged_bytes -= self._costs[sample]
        return True

    def shrink_to(self, most_bytes: int) -> None:
        """Take out first ones until the others are charged no more than that."""
        while self.charged_bytes > most_bytes and self.order:
            self.pop()


class QueuePolicy(Policy):
    """Has queues, by name, of samples and what they were charged when they came in."""

    def __init__(self, samples: int, *names: str) -> None:
        super().__init__(samples)
        # One number at a time is read from an array; its view takes many at once.
        self._costs = array("q", [1]) * samples
        self._offered = array("q", [1]) * samples  # what they were charged when offered last
        self._costs_view = np.frombuffer(self._costs, np.int64)
        self._offered_view = np.frombuffer(self._offered, np.int64)
        self._queues = {name: Queue(self._costs) for name in names}

    def weigh(self, samples: np.ndarray, costs: np.ndarray) -> None:
        """Note the charges; they count once the samples come in."""
        self._offered_view[samples] = costs

    def columns(self) -> dict[str, np.ndarray]:
        """The queues and the charges."""
        queues = {
            name: np.fromiter(queue.order, np.int64, len(queue.order))
            for name, queue in self._queues.items()
        }
        return queues | {"costs": self._costs_view, "offered": self._offered_view}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self._costs_view[:] = columns["costs"]
        self._offered_view[:] = columns["offered"]
        for name, queue in self._queues.items():
            queue.order = OrderedDict.fromkeys(columns[name].tolist())
            queue.charged_bytes = int(self._costs_view[columns[name]].sum())
