"""Experience: loss rank and uses, each relative to all samples trained so far (FedCaSe)."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Literal, get_args

import numpy as np

from storage.policies.extremes import Extremes
from storage.policies.loss_order import LossOrder
from storage.policies.ranks import UNSCORED, loss_ranks
from storage.policies.scale import Scale
from storage.policy import Policy, Why

Frequency = Literal["favour", "penalise", "ignore"]
Victims = Literal["experience", "artifact"]


class Experience(Policy):
    """Keeps samples of high experience e = nw + nf; an incoming one needs more than its victim.

    nw = (w - wmin) / (wmax - wmin) and nf = (f - fmin) / (fmax - fmin), with importance
    w = ln(rank + 10) and f uses. The extremes are over the present figures of every sample trained
    so far, cached or not; a term whose range is zero is 0. A sample without a score has w = 1.0,
    below the range, so its nw is negative. Ties go to the sample that uses favour less, then to
    the lowest number.

    A use is an access, once each. The rank is that of the last training step, and of a sample that
    was in it more than once the last position counts. A loss that is no finite number is counted,
    and its sample is unscored again. Samples that are not cached keep rank and uses.

    Source: FedCaSe (SoCC 2024), its artifact. Departures: f counts each use once, where the
    artifact adds 1 to every sample seen so far at each step; a sample without a score competes
    with the start value, where the artifact lets none in once the cache is full.

    Args:
        samples: how many samples there are, cached or not.
        frequency: whether uses speak for a sample ("favour", as the artifact does), against it
            ("penalise", nf = (fmax - f) / (fmax - fmin), as its comments say), or not ("ignore",
            nf = 0).
        victims: the sample of least e ("experience"), or of least (w, f) as in the artifact
            ("artifact"), which may not be the one that it is easiest to outrank.

    Attributes:
        ranks: int64[n], `UNSCORED` before the first training step.
        uses: int64[n].

    Raises:
        ValueError: no such switch.
    """

    def __init__(
        self,
        samples: int,
        frequency: Frequency = "favour",
        victims: Victims = "experience",
    ) -> None:
        super().__init__(samples)
        if frequency not in get_args(Frequency) or victims not in get_args(Victims):
            raise ValueError(
                f"frequency is one of {', '.join(get_args(Frequency))}, "
                f"victims one of {', '.join(get_args(Victims))}"
            )
        self._by_experience = victims == "experience"
        self._sign = {"favour": 1, "penalise": -1, "ignore": 0}[frequency]
        self.ranks = np.full(samples, UNSCORED, np.int64)
        self.uses = np.zeros(samples, np.int64)
        self._cached = np.zeros(samples, dtype=bool)
        # One number at a time is read from these; a NumPy array is slow at that.
        self._rank_of, self._uses_of = self.ranks.data, self.uses.data
        self._trained_ranks, self._trained_uses = Extremes(), Extremes()
        self._ends: tuple[int, ...] = ()
        self._scale = Scale([0.0, 0.0], 0, 0, math.inf)  # of e
        self._order_sign = self._sign if self._by_experience else 1
        self._order = LossOrder(self.ranks, self.uses, self._cached, self._order_sign)

    def experience(self, rank: int, uses: int) -> float:
        """Return e of a sample with so many uses and a rank that some sample has, or none."""
        self._settle()
        return self._scale.of(rank, uses)

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        """Count the uses; a miss is one too."""
        rank_of, uses_of, extremes = self._rank_of, self._uses_of, self._trained_uses
        most = extremes.greatest
        extremes.make_room(most + len(samples))
        counts = extremes.counts
        for sample in samples.tolist():
            uses = uses_of[sample]
            uses_of[sample] = more = uses + 1
            if rank_of[sample] >= 0:
                counts[uses] -= 1
                counts[more] += 1
                if more > most:  # noqa: PLR1730 - calling max takes longer
                    most = more
        extremes.reach(extremes.least, most)
        if self._order_sign < 0:  # only a sample that falls must be put right at once
            self._order.put(samples)

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Rank the losses of a training step."""
        rank_of, changed = self._rank_of, []
        self._trained_ranks.reach(0, len(samples) - 1)
        counts = self._trained_ranks.counts
        for sample, rank in zip(samples.tolist(), loss_ranks(losses).tolist(), strict=True):
            before = rank_of[sample]
            rank_of[sample] = rank
            counts[before] -= 1  # of what is unscored, the spare one
            counts[rank] += 1
            if before < 0 or rank < 0:
                changed.append((sample, before, rank))
        for sample, before, rank in changed:
            self.quarantined += rank < 0
            uses = self._uses_of[sample]
            self._trained_uses.reach(uses, uses)
            self._trained_uses.counts[uses] += (before < 0) - (rank < 0)
        self._order.put(samples)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the least first, as long as the incoming sample has more experience."""
        self._settle()
        e, rank_of, uses_of = self._scale.of, self._rank_of, self._uses_of
        e_in = math.inf if incoming is None else e(rank_of[incoming], uses_of[incoming])
        with closing(self._order.victims()) as order:
            for victim in order:
                if victim != incoming and e_in <= e(rank_of[victim], uses_of[victim]):
                    return
                yield victim

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through the order once for all; a subclass says so itself."""
        if type(self) is not Experience:
            return super().exchange(incoming)
        self._settle()
        return self._order.exchange(incoming, self._scale)

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into the order with the rank and the uses that they have."""
        self._cached[samples] = True
        self._order.put(samples)

    def removed(self, samples: np.ndarray, why: Why) -> None:  # noqa: ARG002
        """Take samples out of the order; their ranks and uses stay."""
        self._cached[samples] = False

    def columns(self) -> dict[str, np.ndarray]:
        """Ranks, uses and who is cached; the rest follows from them."""
        return {
            "ranks": self.ranks,
            "uses": self.uses,
            "cached": self._cached,
            "quarantined": np.array(self.quarantined),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self.ranks[:] = columns["ranks"]
        self.uses[:] = columns["uses"]
        self._cached[:] = columns["cached"]
        self.quarantined = int(columns["quarantined"])
        trained = self.ranks != UNSCORED
        self._trained_ranks = Extremes.of(self.ranks[trained])
        self._trained_uses = Extremes.of(self.uses[trained])
        self._order.clear()

    def _settle(self) -> None:
        """Measure the extremes, and lay samples on another scale if these have moved."""
        low, high = self._trained_ranks.ends()
        fewest, most = self._trained_uses.ends()
        if (ends := (low, high, fewest, most)) == self._ends:
            return
        levels = self._scale.levels
        if ends[:2] != self._ends[:2]:
            weights = [1.0, *(math.log(rank + 10) for rank in range(high + 1))]
            spread = weights[high + 1] - weights[low + 1] if high > low else math.inf
            levels = [(weight - weights[low + 1]) / spread for weight in weights]
        sign, span = self._sign, most - fewest if self._sign and most > fewest else math.inf
        self._scale = Scale(levels, sign, min(sign * fewest, sign * most), span)
        self._ends = ends
        if self._by_experience:
            self._order.shift(self._scale)
        else:
            by_rank = [float(rank) for rank in range(UNSCORED, high + 1)]
            self._order.shift(Scale(by_rank, 1, 0, math.inf))
