"""Experience: loss rank and uses, each relative to all samples trained so far (FedCaSe)."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from storage.policies.extremes import Extremes
from storage.policies.loss_order import LossOrder
from storage.policies.ranks import UNSCORED

Frequency = Literal["favour", "penalise", "ignore"]
Victims = Literal["experience", "artifact"]


class Experience(LossOrder):
    """Keeps samples of high experience e = nw + nf; an incoming one needs more than its victim.

    nw = (w - wmin) / (wmax - wmin) and nf = (f - fmin) / (fmax - fmin), with importance
    w = ln(rank + 10) and f uses. The extremes are over the present figures of every sample trained
    so far, cached or not; a term whose range is zero is 0. A sample without a score has w = 1.0,
    below the range, so its nw is negative. Ties go to the sample that uses favour less, then to
    the lowest number.

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
        self._frequency_sign = {"favour": 1, "penalise": -1, "ignore": 0}[frequency]
        self.uses_sign = self._frequency_sign if self._by_experience else 1
        self._trained_ranks, self._trained_uses = Extremes(), Extremes()
        self._ends = (0, 0, 0, 0)

    def experience(self, rank: int, uses: int) -> float:
        """Return e = nw + nf of a sample with that rank and that many uses."""
        low, high, fewest, most = self._ends
        e = 0.0
        if high > low:
            least, greatest = _weight(low), _weight(high)
            e += (_weight(rank) - least) / (greatest - least)
        if most > fewest and self._frequency_sign:
            over = uses - fewest if self._frequency_sign > 0 else most - uses
            e += over / (most - fewest)
        return e

    def score(self, rank: int, uses: int) -> float:
        """Order victims by experience, or by rank and then uses."""
        return self.experience(rank, uses) if self._by_experience else float(rank)

    def outranks(self, incoming: int, victim: int) -> bool:
        """Compare experience."""
        e_in, e_victim = (
            self.experience(int(self.ranks[sample]), int(self.uses[sample]))
            for sample in (incoming, victim)
        )
        return e_in > e_victim

    def changed(
        self, samples: np.ndarray, ranks_before: np.ndarray, uses_before: np.ndarray
    ) -> None:
        """Keep the extremes up to date."""
        for extremes, column, before in (
            (self._trained_ranks, self.ranks, ranks_before),
            (self._trained_uses, self.uses, uses_before),
        ):
            for old in before[ranks_before != UNSCORED].tolist():
                extremes.remove(old)
            for new in column[samples[self.ranks[samples] != UNSCORED]].tolist():
                extremes.add(new)
        self._measure()

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take ranks and uses back, and the extremes that follow from them."""
        super().restore(columns)
        trained = self.ranks != UNSCORED
        self._trained_ranks = Extremes(self.ranks[trained].tolist())
        self._trained_uses = Extremes(self.uses[trained].tolist())
        self._measure()

    def _measure(self) -> None:
        ends = (*self._trained_ranks.ends(), *self._trained_uses.ends())
        if ends != self._ends:
            self._ends = ends
            self._shift()


def _weight(rank: int) -> float:
    """Return the importance of one rank, as `ranks.weights` does of many."""
    return 1.0 if rank == UNSCORED else math.log(rank + 10)
