"""A trace: what caches were asked for, in order, and all that a policy was told meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_WHOLE = ("size_bytes", "requests", "batch_starts", "starts", "rounds", "served", "hits", "depth")


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests to one cache, of samples 0..n-1.

    Requests come in batches: a cache is read for a whole batch before anything of it is offered.
    Batches make up participations, whose order is known when they start.

    Attributes:
        client: whose cache it is.
        size_bytes: int64[n], the declared size of each sample in the form in which it is cached,
            from 1 to 2^32 - 1.
        requests: int64[m].
        batch_starts: int64[b], where each batch begins in the requests, ascending from 0.
        starts: int64[p], where each participation begins in the requests; a batch begins there too.
        rounds: int64[p], the server round of each participation, never falling.
        losses: float32[m], the loss of what was trained for each request, or none at all: [0].
        served: int64[m], what was trained for each request where some were substituted, or [0].
        hits: int64[p], the demand hits of each participation in the recorded run, or [0].
        depth: int64[p], how many batches of a participation were on their way at a time, the one in
            training included; not given, it is 1: none was read ahead.
        budget_bytes: of the recorded cache; 0 where there was none.

    Raises:
        ValueError: these do not fit each other.
    """

    client: int
    size_bytes: np.ndarray
    requests: np.ndarray
    batch_starts: np.ndarray
    starts: np.ndarray
    rounds: np.ndarray
    losses: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    served: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    hits: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    depth: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    budget_bytes: int = 0

    def __post_init__(self) -> None:
        if not len(self.depth):
            object.__setattr__(self, "depth", np.ones(len(self.starts), np.int64))
        for problem in (self._wrong_kind(), self._wrong_pieces(), self._wrong_values()):
            if problem:
                raise ValueError(f"client {self.client}: {problem}")

    def _wrong_kind(self) -> str:
        """Say what is no list of numbers, or not as long as it has to be."""
        if self.client < 0 or self.budget_bytes < 0:
            return "client and budget_bytes are whole numbers from 0 on"
        for name in (*_WHOLE, "losses"):
            array, kind = getattr(self, name), "f" if name == "losses" else "iu"
            if array.ndim != 1 or array.dtype.kind not in kind:
                return f"{name} is {array.dtype}{list(array.shape)}"
        requests, participations = len(self.requests), len(self.starts)
        for name, wanted in (("losses", requests), ("served", requests), ("hits", participations)):
            if len(getattr(self, name)) not in {0, wanted}:
                return f"{name} has {len(getattr(self, name))} entries, not {wanted} or none"
        for name in ("rounds", "depth"):
            if len(getattr(self, name)) != participations:
                return f"{len(getattr(self, name))} {name} for {participations} participations"
        return ""

    def _wrong_pieces(self) -> str:
        """Say where batches or participations do not divide the requests."""
        requests = len(self.requests)
        for name in ("batch_starts", "starts"):
            starts = getattr(self, name)
            if bool(requests) != bool(len(starts)):
                return f"{len(starts)} {name} for {requests} requests"
            # One that starts where the next one does has no requests.
            if requests and (starts[0] or np.any(starts[1:] <= starts[:-1])):
                return f"{name} do not ascend from 0"
            if requests and starts[-1] >= requests:
                return f"{name} go beyond the {requests} requests"
        if not np.isin(self.starts, self.batch_starts).all():
            return "a participation starts within a batch"
        return ""

    def _wrong_values(self) -> str:
        """Say which numbers cannot be."""
        if not 1 <= self.size_bytes.min(initial=1) <= self.size_bytes.max(initial=1) < 2**32:
            return "a sample has a size below 1 byte, or of 4 GiB or more"
        for name in ("requests", "served"):
            named = getattr(self, name)
            if len(named) and not 0 <= named.min() <= named.max() < self.samples:
                return f"{name} name samples outside 0..{self.samples - 1}"
        if len(self.rounds) and (self.rounds[0] < 0 or np.any(np.diff(self.rounds) < 0)):
            return "rounds fall, or lie below 0"
        if len(self.hits) and (self.hits.min() < 0 or np.any(self.hits > self.ends - self.starts)):
            return "a participation has more hits than requests, or less than none"
        if self.depth.min(initial=1) < 1:
            return "a participation has a depth below 1"
        return ""

    @property
    def samples(self) -> int:
        """How many samples there are, n, requested or not."""
        return len(self.size_bytes)

    @property
    def trained(self) -> np.ndarray:
        """What was trained for each request, int64[m]; the losses are of these."""
        return self.served if len(self.served) else self.requests

    @property
    def batch_ends(self) -> np.ndarray:
        """Where each batch ends, int64[b]."""
        return np.append(self.batch_starts, len(self.requests))[1:]

    @property
    def ends(self) -> np.ndarray:
        """Where each participation ends, int64[p]."""
        return np.append(self.starts, len(self.requests))[1:]

    @property
    def is_equal_size(self) -> bool:
        """Whether all samples have one size."""
        return bool((self.size_bytes == self.size_bytes[:1]).all())


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests to some caches, each on its own.

    Attributes:
        name: what it is of, for titles: an experiment's arm and seed, or a synthetic pattern.
        streams: one per cache, each of another client.
        policy: the policy of the recorded run as it is named in an experiment, with its arguments
            as JSON; empty for a synthetic trace.
        depends: why what was requested, or trained in its place, depended on what was cached, so
            that it would have been something else under another policy, or what else came into
            caches than was asked for; empty when nothing of it holds.

    Raises:
        ValueError: a client has two streams, or only some streams have losses, or hits.
    """

    name: str
    streams: tuple[Stream, ...]
    policy: str = ""
    depends: str = ""

    def __post_init__(self) -> None:
        if len({stream.client for stream in self.streams}) < len(self.streams):
            raise ValueError("a client has more than one stream")
        busy = [stream for stream in self.streams if len(stream.requests)]
        for name in ("losses", "hits"):
            if len({bool(len(getattr(stream, name))) for stream in busy}) > 1:
                raise ValueError(f"only some streams have {name}")
