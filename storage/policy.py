"""Placement policies: what a cache keeps. The cache counts bytes, the policy orders samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal, Self

import numpy as np

from storage.victim_queue import NOBODY, VictimQueue

Why = Literal["evicted", "overwritten", "deleted", "corrupt"]


class Policy(ABC):
    """Decides what comes in and what leaves a cache of samples 0..samples-1.

    All arrays of samples are int64[k]. A policy must be deterministic; ties go to the lowest
    sample number. State that must outlive the process goes through `columns` and `restore`.

    Attributes:
        evicts: whether `victims` ever names one; a policy that never does is not asked.
        substitutes: whether `stand_ins` ever names one; a policy that never does is not asked.
        samples: how many samples there are, cached or not.
        capacity_bytes: what the residents may be charged in all; the cache sets it, and sets it
            again when its budget changes.
        quarantined: how many scores were no finite number and counted as the lowest.
    """

    evicts = True
    substitutes = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember what it is made with, for `fresh`."""
        policy = super().__new__(cls)
        policy._made_with = args, kwargs
        return policy

    def __init__(self, samples: int) -> None:
        self._made_with: tuple[tuple[Any, ...], dict[str, Any]]
        self.samples = samples
        self.capacity_bytes = 0
        self.quarantined = 0

    def fresh(self) -> Callable[[], Self]:
        """What makes another one like this in its first state."""
        args, kwargs = self._made_with
        return partial(type(self), *args, **kwargs)

    @property
    def learns(self) -> bool:
        """Whether it takes feedback; reads need not wait for that otherwise."""
        return type(self).feedback is not Policy.feedback

    @abstractmethod
    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Samples were read, in this order, each a use of its own; `hit` is bool[k].

        A request that a stand-in served is no hit, and its sample is not going to be offered.
        """

    def plan(self, order: np.ndarray) -> None:  # noqa: B027 - of no use to most policies
        """A participation starts, and will access these samples, int64[m], in this order."""

    def weigh(  # noqa: B027 - of no use to most policies
        self, samples: np.ndarray, costs: np.ndarray
    ) -> None:
        """What samples are charged that are about to be offered, int64[k]; may have changed."""

    def admit(self, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Which of the samples that are not cached may come in, bool[k]; `sizes` are declared."""
        return np.ones(len(samples), dtype=bool)

    def checked_admit(self, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return what `admit` does, if it is an answer.

        Raises:
            ValueError: it is none; numbers would pass as an index of samples.
        """
        if type(self).admit is Policy.admit:
            return np.ones(len(samples), dtype=bool)
        admitted = np.asarray(self.admit(samples, sizes))
        if admitted.dtype != np.bool_ or admitted.shape != samples.shape:
            raise ValueError(
                f"policy {type(self).__name__}: admit gave {admitted.dtype} {admitted.shape}, "
                f"not bool ({len(samples)},)"
            )
        return admitted

    def stand_ins(self, samples: np.ndarray) -> np.ndarray:
        """Name a cached sample to serve in place of each, int64[k], or `NOBODY`.

        Only asked if the policy `substitutes`, about samples that are not cached, once for each
        request and before `access` tells of it.
        """
        return np.full(len(samples), NOBODY)

    @abstractmethod
    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the cached samples that may leave for `incoming` (None: to free room), in order.

        The cache takes as many as it needs, skips pinned ones, and calls `removed` for what really
        leaves before it closes the generator; nothing else changes meanwhile. Whatever stays must
        be offered again next time. A generator that ends early rejects the incoming sample.
        """

    def outlasts(self, incoming: np.ndarray, victim: int) -> bool:  # noqa: ARG002
        """Whether no incoming sample, once inserted, would be named before `victim`, a resident.

        So the cache may free room for all of them at once. False when the policy cannot tell.
        """
        return False

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Let samples come in one by one, each for the first victim, and tell who left for each.

        The cache asks this, instead of `victims`, `removed` and `inserted` for one after another,
        where it is full, all charges are equal and nothing is pinned. So the answer must be the
        same; it only has to come faster.

        Args:
            incoming: samples that are not cached, each once; at least one.

        Returns:
            For each its victim, which may be one that came in just before; `NOBODY` when it was
            rejected.
        """
        left: list[int] = []
        for sample in incoming:
            with closing(self.victims(sample)) as order:
                victim = next(order, NOBODY)
                if victim != NOBODY:
                    self.removed(np.array([victim]), "evicted")
            if victim != NOBODY:
                self.inserted(np.array([sample]))
            left.append(victim)
        return left

    @abstractmethod
    def inserted(self, samples: np.ndarray) -> None:
        """Samples came in, in this order."""

    @abstractmethod
    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Samples left."""

    def feedback(  # noqa: B027 - of no use to most policies
        self, samples: np.ndarray, losses: np.ndarray
    ) -> None:
        """A training step reported its losses, float64[k]."""

    @abstractmethod
    def columns(self) -> dict[str, np.ndarray]:
        """The state as named arrays."""

    @abstractmethod
    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take the state back from what `columns` returned."""


class ScorePolicy(Policy):
    """Evicts the lowest score first; a subclass sets scores through `rescore`.

    A use, an arrival or a departure costs no work in the order, as long as the score is above
    those that are to leave soon; for those, see `VictimQueue`.

    Attributes:
        scores: float64[n], cached or not; `rescore` writes them. A subclass may itself write that
            of a sample which is not cached, and one that rises above all others.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.scores = np.zeros(samples)
        self._cached = np.zeros(samples, dtype=bool)
        self._queue = VictimQueue(self.scores, self._cached)
        kind = type(self)
        self._is_plain = (
            kind.victims is ScorePolicy.victims
            and kind.inserted is ScorePolicy.inserted
            and kind.removed is ScorePolicy.removed
        )

    def rescore(self, samples: np.ndarray, scores: np.ndarray) -> None:
        """Give samples new scores, float64[k]; of a repeated sample the last one counts."""
        finite = np.isfinite(scores)
        improper = finite.size - np.count_nonzero(finite)
        if improper:
            self.quarantined += improper
            scores = np.where(finite, scores, -np.inf)
        self.scores[samples] = scores
        self._queue.put(samples)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        """Yield cached samples by rising score, then by rising number."""
        return self._queue.victims()

    def outlasts(self, incoming: np.ndarray, victim: int) -> bool:
        """Compare scores, then numbers; only a subclass can tell what its own hooks change."""
        if not self._is_plain:
            return False
        scores, score = self.scores[incoming], self.scores.item(victim)
        before = (scores < score) | ((scores == score) & (incoming < victim))
        return not np.count_nonzero(before)

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through the order once for all; only a subclass can tell what its own hooks change."""
        if not self._is_plain:
            return super().exchange(incoming)
        return self._queue.exchange(incoming)

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into the order with the score that they have."""
        self._cached[samples] = True
        self._queue.put(samples)

    def removed(self, samples: np.ndarray, why: Why) -> None:  # noqa: ARG002
        """Take samples out of the order; their scores stay."""
        self._cached[samples] = False

    def columns(self) -> dict[str, np.ndarray]:
        """Scores and who is cached; the order follows from them."""
        return {
            "scores": self.scores,
            "cached": self._cached,
            "quarantined": np.array(self.quarantined),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take scores back, and who is cached."""
        self.scores[:] = columns["scores"]
        self._cached[:] = columns["cached"]
        self.quarantined = int(columns["quarantined"])
        self._queue.clear()
