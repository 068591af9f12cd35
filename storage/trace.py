"""A trace: what caches were asked for, in order, and all that a policy was told meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests to one cache, of samples 0..n-1.

    Requests come in batches: a cache is read for a whole batch before anything of it is offered.
    Batches make up participations, whose order is known when they start.

    Attributes:
        client: whose cache it is.
        size_bytes: int64[n], the declared size of each sample.
        requests: int64[m].
        batch_starts: int64[b], where each batch begins in the requests, ascending from 0.
        starts: int64[p], where each participation begins in the requests; a batch begins there too.
        rounds: int64[p], the server round of each participation.
        losses: float32[m], the loss of what was trained for each request, or none at all: [0].
        served: int64[m], what was trained for each request where some were substituted, or [0].
        hits: int64[p], the demand hits of each participation in the recorded run, or [0].
        budget_bytes: of the recorded cache; 0 where there was none.
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
    budget_bytes: int = 0

    @property
    def samples(self) -> int:
        """How many samples there are, n, requested or not."""
        return len(self.size_bytes)

    @property
    def batch_ends(self) -> np.ndarray:
        """Where each batch ends, int64[b]."""
        return np.append(self.batch_starts[1:], len(self.requests))

    @property
    def ends(self) -> np.ndarray:
        """Where each participation ends, int64[p]."""
        return np.append(self.starts[1:], len(self.requests))

    @property
    def is_equal_size(self) -> bool:
        """Whether all samples have one size."""
        return bool((self.size_bytes == self.size_bytes[:1]).all())


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests to some caches, each on its own.

    Attributes:
        name: what it is of, for titles: an experiment's arm and seed, or a synthetic pattern.
        streams: one per cache.
        policy: the policy of the recorded run as it is named in an experiment, with its arguments
            as JSON; empty for a synthetic trace.
        depends: why the order of requests depended on what was cached, so that any other policy
            would have been asked for something else; empty when it did not.
    """

    name: str
    streams: tuple[Stream, ...]
    policy: str = ""
    depends: str = ""
