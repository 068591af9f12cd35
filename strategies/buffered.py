"""Buffered asynchronous aggregation: clients train all the time, each from the newest model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.serverapp.strategy import FedAvg

from fedio.clock import Event, EventQueue

Arrays = dict[str, np.ndarray]

# Kinds of events: of two at once that which brings something comes first.
ARRIVES, ENDS = 0, 1


class Buffer:
    """Collects updates of clients until they are enough for one of the server (FedBuff).

    The server's update is x + lr * mean of (1 + s)^-exponent (x_i - x_start), s being the
    staleness: how many updates the server has made since the client started.

    Source: FedBuff (Nguyen et al., AISTATS 2022), algorithm 1, with its staleness scaling
    1 / sqrt(1 + s); the mean is uniform there, which here are weights that are all alike.
    """

    def __init__(self, size: int, lr: float = 1.0, exponent: float = 0.5) -> None:
        """Start empty.

        Args:
            size: updates of clients in one of the server, K there.
            lr: of the server.
            exponent: how much staleness counts; 0 for not at all.
        """
        self.size, self.lr, self.exponent = size, lr, exponent
        self._count, self._weight, self._sum = 0, 0.0, Arrays()

    @property
    def is_full(self) -> bool:
        """Whether there is enough for an update."""
        return self._count >= self.size

    def add(self, delta: Arrays, staleness: int, weight: float = 1.0) -> None:
        """Put in x_i - x_start of a client."""
        scale = weight * (1 + staleness) ** -self.exponent
        for name, values in delta.items():
            self._sum[name] = self._sum.get(name, 0.0) + scale * values
        self._weight += weight
        self._count += 1

    def update(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Return the updated model, in its own types; the buffer is empty then."""
        new = {
            name: (values + self.lr * self._sum[name] / self._weight).astype(values.dtype)
            for name, values in arrays.items()
        }
        self._count, self._weight, self._sum = 0, 0.0, Arrays()
        return new

    def state(self) -> Arrays:
        """Return what is in it."""
        summed = {f"sum/{name}": values for name, values in self._sum.items()}
        return {"count": np.array(self._count), "weight": np.array(self._weight)} | summed

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put that in, and nothing else."""
        self._count, self._weight = int(state["count"]), float(state["weight"])
        self._sum = _under("sum/", state)


class FedBuff(FedAvg):
    """Sends messages and evaluates as FedAvg does; updates go through its buffer one by one."""

    def __init__(self, buffer: int = 10, lr: float = 1.0, exponent: float = 0.5) -> None:
        """Start with an empty buffer; for the arguments see `Buffer`."""
        super().__init__()
        self.buffer = Buffer(buffer, lr, exponent)


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What a client's training amounts to: x_i - x_start from a version, its weight in the mean."""

    version: int
    weight: float
    arrays: Arrays


@dataclass(frozen=True, slots=True)
class Ended:
    """A client has ended its work; the staleness of what it brought, None where that is nothing."""

    time_s: float
    client: int
    staleness: int | None


class Underway:
    """Who is at work, from which version of the model, and what becomes of it, in order of time.

    A version is a number of updates of the server. Updates come by (time, kind, client).
    """

    def __init__(self, buffer: Buffer) -> None:
        """Start with nobody at work, at version 0."""
        self.buffer = buffer
        self._version = 0
        self._events: EventQueue[Delta | None] = EventQueue()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def clients(self) -> set[int]:
        """Those at work."""
        return {event.client for event in self._events}

    def trains(self, client: int, until_s: float, arrays: Arrays, weight: float = 1.0) -> None:
        """Note that a client trains from the current version, and what comes of it then."""
        delta = Delta(self._version, weight, arrays)
        self._events.add(Event(until_s, ARRIVES, client, delta))

    def wastes(self, client: int, until_s: float) -> None:
        """Note that a client is at work, and nothing comes of it."""
        self._events.add(Event(until_s, ENDS, client, None))

    def take(self) -> Ended:
        """Return who ends next; what it brings is in the buffer then.

        Raises:
            IndexError: nobody is at work.
        """
        event = self._events.take()
        if event.what is None:
            return Ended(event.time_s, event.client, None)
        staleness = self._version - event.what.version
        self.buffer.add(event.what.arrays, staleness, event.what.weight)
        return Ended(event.time_s, event.client, staleness)

    def update(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Return the next version of the model."""
        self._version += 1
        return self.buffer.update(arrays)

    def state(self) -> Arrays:
        """Return all of it; deltas are `delta/POSITION/NAME`."""
        events = list(self._events)
        rows = [
            (event.time_s, event.kind, event.client, what.version, what.weight)
            if (what := event.what) is not None
            else (event.time_s, event.kind, event.client, -1, 0.0)
            for event in events
        ]
        deltas = {
            f"delta/{position}/{name}": values
            for position, event in enumerate(events)
            if event.what is not None
            for name, values in event.what.arrays.items()
        }
        table = {"version": np.array(self._version), "events": np.array(rows).reshape(-1, 5)}
        return table | deltas | {f"buffer/{name}": a for name, a in self.buffer.state().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there."""
        self._version = int(state["version"])
        self._events = EventQueue()
        for position, row in enumerate(state["events"].tolist()):
            time_s, kind, client, version, weight = row
            arrays = _under(f"delta/{position}/", state)
            what = Delta(int(version), weight, arrays) if kind == ARRIVES else None
            self._events.add(Event(time_s, int(kind), int(client), what))
        self.buffer.restore(_under("buffer/", state))


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Return the arrays whose names start with `prefix`, without it."""
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }
