"""PADS: samples by experience, and cached ones more than once (FedCaSe)."""

from __future__ import annotations

import numpy as np

from clients.samplers.sampler import Sampler
from clients.samplers.smoothing import Smoothing
from storage.policies.ranks import UNSCORED, loss_ranks, normalised, weights


class Pads(Sampler):
    """Draws samples by how hard they were, and repeats those that are cached.

    A participation makes passes until it has all its accesses; each is the whole procedure, with
    the cache as it stands at the start:

    1. n draws with replacement, p ~ e + ls. e = w + nw, with importance w = ln(loss rank + 10) and
       nw = (w - wmin) / (wmax - wmin) over all samples trained so far; e = w where that range is
       zero, and 1 of a sample that was never trained. ls is the client's smoothing.
    2. In every third participation the draws are sorted, the samples drawn most often first. As in
       the artifact step 5 shuffles them again, so this changes the order and no likelihood.
    3. need = min(accesses left, n).
    4. The draws are split: h of cached samples, the others of missing ones.
    5. All cached draws `repetition_factor` times, shuffled, then as many of the missing ones,
       shuffled, as are needed, cut to `need`.

    Hits come from repetition, so a hit ratio says little without the number of unique samples.

    Source: PADS of SHADE (FAST 2023), in the form of FedCaSe's artifact (SoCC 2024).
    Departures: the artifact makes one pass and so trains min(accesses, n); scores go to the samples
    that were trained; losses that are no finite number are passed over, and unscore their sample.
    """

    def __init__(self, samples: int, batch_size: int) -> None:
        super().__init__(samples, batch_size)
        self._ranks = np.full(samples, UNSCORED, np.int64)
        self._participations = 0
        self._smoothing = Smoothing()
        self._loss_sum, self._losses = 0.0, 0

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        """Return passes, one after another."""
        self._participations += 1
        likelihood = self.likelihood()
        passes, left = [np.empty(0, np.int64)], accesses
        while left:
            draws = rng.choice(self.samples, self.samples, p=likelihood)
            if self._participations % 3 == 0:
                draws = most_drawn_first(draws)
            need = min(left, self.samples)
            passes.append(one_pass(draws, resident, need, self.batch_size, rng))
            left -= need
        return np.concatenate(passes)

    def likelihood(self) -> np.ndarray:
        """Return the probability of each sample in a draw, float64 [n]."""
        e = weights(self._ranks)
        trained = self._ranks != UNSCORED
        if trained.any():
            known = e[trained]
            e[trained] += normalised(known, known.min(), known.max())
        share: np.ndarray = e + self._smoothing.value
        share /= share.sum()
        return share

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Rank the losses of a step; of a sample that is in it twice the last position counts."""
        self._ranks[samples] = loss_ranks(losses)
        finite = losses[np.isfinite(losses)]
        with np.errstate(over="ignore"):  # an infinite mean changes nothing
            self._loss_sum += float(finite.sum())
        self._losses += len(finite)

    def columns(self) -> dict[str, np.ndarray]:
        """Return ranks, smoothing and participations, after this one."""
        mean = self._loss_sum / self._losses if self._losses else float("nan")
        smoothing = self._smoothing.after(mean)
        return {
            "ranks": self._ranks,
            "participations": np.array(self._participations),
            "smoothing": np.array([smoothing.value, smoothing.loss]),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        if columns:
            self._ranks = columns["ranks"].copy()
            self._participations = int(columns["participations"])
            self._smoothing = Smoothing(*columns["smoothing"].tolist())


def repetition_factor(need: int, cached_draws: int, batch_size: int) -> int:
    """Return how often a pass takes each draw of a cached sample.

    m = need // h + 1 when that is at most 3; else max(3, ceil(m / 2)) where h > 0.6 B and
    max(3, int(0.2 B)) where it is not. 1 without any cached draw: there is nothing to repeat, and
    so the artifact's configured factor has no effect.

    Args:
        need: accesses of the pass.
        cached_draws: h, how many of its draws are of cached samples.
        batch_size: B.
    """
    if not cached_draws:
        return 1
    most = need // cached_draws + 1
    if most <= 3:
        return most
    if 5 * cached_draws > 3 * batch_size:
        return max(3, (most + 1) // 2)
    return max(3, batch_size // 5)


def one_pass(
    draws: np.ndarray, resident: np.ndarray, need: int, batch_size: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the `need` accesses of a pass, int64 [need]: cached draws repeated, then missing ones.

    Args:
        draws: int64 [n], n >= need; it always suffices, for each draw is taken once at least.
        resident: bool [n], which samples are cached.
        need: accesses of the pass.
        batch_size: B.
        rng: shuffles.
    """
    is_cached = resident[draws]
    cached, missing = draws[is_cached], draws[~is_cached]
    repeated = np.repeat(cached, repetition_factor(need, len(cached), batch_size))
    hits = rng.permutation(repeated)[:need]
    return np.concatenate([hits, rng.permutation(missing)[: need - len(hits)]])


def most_drawn_first(draws: np.ndarray) -> np.ndarray:
    """Return draws, int64 [n], sorted by how often their sample was drawn, then by its number."""
    times = np.bincount(draws)
    return draws[np.lexsort((draws, -times[draws]))]
