"""The scores of Oort: utility, the age of its figure, and the discount of slow clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedio.costs import without_storage_s
from strategies.selector import View
from strategies.selectors.claims import (
    BLOCK_CLIENTS,
    usable_samples,
    usable_seconds,
    usable_utility,
)
from strategies.selectors.draws import top
from strategies.selectors.oort_parameters import OortParameters

_SHORTEST_S = 1e-4  # a slow client's duration counts as that long at least, as in the artifact


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Clients with their scores, one row each.

    Attributes:
        pool: partition-ids, ascending.
        tried, untried: positions in `pool`.
        utility: as claimed, or the prior.
        duration_s: seconds last observed, else registered; NaN is unknown.
        score: from 0 up.
    """

    pool: np.ndarray
    tried: np.ndarray
    untried: np.ndarray
    utility: np.ndarray
    duration_s: np.ndarray
    score: np.ndarray


def scored(view: View, pool: np.ndarray, threshold: float, p: OortParameters) -> Scored:
    """Return the clients of `pool` with their scores, T being this percentile of durations."""
    tried, seconds = view.fleet.tried[pool], durations(view)
    old, new = np.flatnonzero(tried), np.flatnonzero(~tried)
    utility = usable_utility(view.fleet.utility[pool])
    utility[new] = usable_samples(view, pool[new])
    duration_s, score = seconds[pool], utility.copy()
    bounds, fast_s = normalisation(utility, p.clip_bound), preferred_s(seconds, threshold)
    for start in range(0, len(pool), BLOCK_CLIENTS):
        at = slice(start, start + BLOCK_CLIENTS)
        aged = confident_scores(utility[at], view.fleet.last_round[pool[at]], view.round, bounds)
        np.copyto(score[at], aged, where=tried[at])
        score[at] *= discount(duration_s[at], fast_s, p.round_penalty)
    return Scored(pool, old, new, utility, duration_s, score)


def durations(view: View) -> np.ndarray:
    """Return the seconds of all clients: last observed, else registered; NaN is unknown."""
    seconds = view.fleet.duration_s.copy()
    unseen = np.flatnonzero(~(seconds >= 0))
    seconds[unseen] = np.nan
    unseen = unseen[view.fleet.known[unseen]]
    seconds[unseen] = registered_s(view, unseen)
    return seconds


def registered_s(view: View, clients: np.ndarray) -> np.ndarray:
    """Return the seconds that clients register: download, compute and upload, by claimed speeds.

    As FedScale registers them.
    """
    work = view.local_steps, view.batch_size, view.model_bytes
    with np.errstate(all="ignore"):  # a claimed speed may be anything
        return usable_seconds(without_storage_s(*work, view.fleet.speeds, clients))


def preferred_s(seconds: np.ndarray, threshold: float) -> float:
    """Return T, this percentile of the durations that are known; infinite of none, and from 100."""
    known = int(np.count_nonzero(~np.isnan(seconds)))
    if threshold >= 100 or known == 0:
        return float("inf")
    position = int(known * threshold / 100)
    return float(np.partition(seconds, position)[position])  # which puts the unknown last


def normalisation(utility: np.ndarray, clip_bound: float) -> tuple[float, float, float]:
    """Return cap, least and range over the positive utilities, priors of the untried among them.

    The cap is the percentile `clip_bound`, the least is 0.999 of the lowest, and the range reaches
    from there to the highest before the cap, 1e-4 at least.
    """
    positive = int(np.count_nonzero(utility))
    if not positive:
        return 0.0, 0.0, 1e-4
    position = len(utility) - positive + min(int(positive * clip_bound), positive - 1)
    cap = float(np.partition(utility, position)[position])
    least = 0.999 * float(utility.min(where=utility > 0, initial=np.inf))
    return cap, least, max(float(utility.max()) - least, 1e-4)


def confident_scores(
    utility: np.ndarray,
    last_round: np.ndarray,
    server_round: int,
    bounds: tuple[float, float, float],
) -> np.ndarray:
    """Return the normalised utility of tried clients plus the age of their figure, from 0 up.

    (min(u, cap) - least) / range + sqrt(0.1 ln t / last round). Only a client without utility can
    come out below 0, where the others are alike; the artifact takes the amount of that.
    """
    cap, least, span = bounds
    age = np.sqrt(0.1 * np.log(server_round) / np.maximum(last_round, 1))
    scores: np.ndarray = np.maximum((np.minimum(utility, cap) - least) / span + age, 0.0)
    return scores


def discount(duration_s: np.ndarray, preferred_s: float, penalty: float) -> np.ndarray:
    """Return (T / duration)^penalty where that is slower than T, else 1: never more than 1."""
    factor: np.ndarray = np.maximum(duration_s, _SHORTEST_S)
    with np.errstate(invalid="ignore", over="ignore"):  # infinity over itself is not slower
        np.divide(preferred_s, factor, out=factor)
    np.minimum(factor, 1.0, out=factor)
    factor **= penalty
    np.copyto(factor, 1.0, where=~(duration_s > preferred_s))  # nor is an unknown duration
    return factor


def exploitable(
    scores: np.ndarray, exploit: int, cut_off_util: float, rng: np.random.Generator
) -> np.ndarray:
    """Return positions of scores from the cut-off up, and of more than ten times those wanted.

    The cut-off is a share of the best score beyond those wanted; without one, all are taken.
    """
    if exploit == 0 or exploit >= len(scores):
        return np.arange(len(scores) if exploit else 0)
    border = len(scores) - 1 - exploit
    good = np.flatnonzero(scores >= cut_off_util * np.partition(scores, border)[border])
    return good if len(good) > 10 * exploit else top(scores, 10 * exploit + 1, rng)
