"""What seeds say together of an arm against the reference: speed-up, and equal accuracy.

Arms are paired by seed: what a seed draws (fleet, data, initial weights) is the same in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

CONFIDENCE = 0.95
FEWEST_CENSORED_PAIRS = 8
"""With fewer, an interval that rests on censored times holds less often than it says (at three, in
9 of 10 cases): those are alike, and pass for little spread. In simulations with normal logarithms
and any share of censored times, an end of 97.5 % holds in 97.2 % at least from so many on."""
EQUAL_ACCURACY = 0.01
EQUIVALENCE_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Time:
    """A time to target: `seconds`, or at least so many where it was not `reached` (censored)."""

    seconds: float
    reached: bool


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast as the reference an arm reaches the target.

    Attributes:
        ratio: geometric mean over the pairs; none where it would say nothing.
        low: lower end of the two-sided 95 % interval, none where it is not to be had.
        high: the upper end, likewise.
        bound: none, or what `ratio` is of the true one: "at most", "at least"; "mixed": pairs
            bound it from either side, and their mean does from neither.
        pairs: number of pairs that say something.
    """

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str | None = None
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class AccuracyDifference:
    """Final accuracy less that of the reference.

    Attributes:
        mean: over the pairs.
        low: lower end of its two-sided 90 % interval.
        high: the upper end.
        equal: "yes": within the margin; otherwise "higher", "lower", or "open" (it may be either).
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    equal: str | None = None


def t_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the two-sided t interval of the mean of two or more values."""
    middle = fmean(values)
    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    half = quantile * stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def speedup(arm: Mapping[int, Time], reference: Mapping[int, Time]) -> Speedup:
    """Return the speed-up over the reference, from both arms' times to target by seed.

    It is the geometric mean of reference / arm over the seeds that both have, with a t interval
    on the logarithms. A censored time counts as it is: the pair's ratio is then at least the true
    one if the arm's is censored, at most if the reference's is. If both are, the pair says
    nothing and is left out; what is left was picked by its outcome, so it gets no interval.

    Ratios none of which is too low have a mean that is not, so the upper end of their interval
    holds for the true mean too, given enough pairs; how far down that may be they do not tell,
    and the lower end is none. With the reference censored it is the other way round.
    """
    pairs = [(arm[seed], reference[seed]) for seed in arm if seed in reference]
    telling = [
        (one, other)
        for one, other in pairs
        if (one.reached or other.reached) and one.seconds and other.seconds
    ]
    bounds = {"at most" for one, _ in telling if not one.reached}
    bounds |= {"at least" for _, other in telling if not other.reached}
    if not telling:
        return Speedup()
    if len(bounds) > 1:
        return Speedup(bound="mixed", pairs=len(telling))
    logs = [math.log(other.seconds / one.seconds) for one, other in telling]
    low = high = None
    if len(telling) == len(pairs) >= (FEWEST_CENSORED_PAIRS if bounds else 2):
        low, high = map(math.exp, t_interval(logs, CONFIDENCE))
    return Speedup(
        ratio=math.exp(fmean(logs)),
        low=None if "at most" in bounds else low,
        high=None if "at least" in bounds else high,
        bound=next(iter(bounds), None),
        pairs=len(telling),
    )


def accuracy_difference(
    arm: Mapping[int, float | None], reference: Mapping[int, float | None]
) -> AccuracyDifference:
    """Return whether two arms are equally accurate, from their final accuracies by seed.

    They are if two one-sided t tests at 5 % both reject a difference of the margin or more, which
    is to say that the 90 % interval of the mean difference lies within the margin.

    Source: Schuirmann (1987), Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680.

    Returns:
        Nones with fewer than two pairs, or where one lacks an accuracy that compares.
    """
    pairs = [(arm[seed], reference[seed]) for seed in arm if seed in reference]
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    if len(differences) < max(2, len(pairs)):
        return AccuracyDifference()
    low, high = t_interval(differences, 1 - 2 * EQUIVALENCE_LEVEL)
    if low > -EQUAL_ACCURACY and high < EQUAL_ACCURACY:
        equal = "yes"
    elif low > 0:
        equal = "higher"
    else:
        equal = "lower" if high < 0 else "open"
    return AccuracyDifference(fmean(differences), low, high, equal)
