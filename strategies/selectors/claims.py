"""What clients claim, made fit to rank by: a lie or a gap may mislead, but breaks nothing."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from fedio.costs import Phases, expected_work, phases
from strategies.selector import View

# Far above any honest utility, and low enough that sums of such claims stay finite.
UTILITY_CEILING = 1e100
# So many at a time stay in the processor's cache, which halves the time of a million.
BLOCK_CLIENTS = 2**16


def usable_utility(claimed: np.ndarray) -> np.ndarray:
    """Return utilities with what is unknown, infinite or negative as 0."""
    good = np.isfinite(claimed) & (claimed > 0)
    utility: np.ndarray = np.minimum(np.where(good, claimed, 0.0), UTILITY_CEILING)
    return utility


def usable_samples(view: View, clients: np.ndarray) -> np.ndarray:
    """Return min(n, q) of `clients`, 0 where n is unknown: the samples that can matter."""
    samples: np.ndarray = np.clip(view.fleet.samples[clients], 0, view.accesses)
    return samples.astype(np.float64)


def usable_seconds(seconds: np.ndarray) -> np.ndarray:
    """Return durations with negative ones as NaN, unknown; an infinite one is slower than any."""
    return np.where(seconds >= 0, seconds, np.nan)


def predicted_phases(view: View, clients: np.ndarray) -> Phases:
    """Return what a participation of `clients` takes by what they claim; NaN where they do not.

    The expected share of hits is residents / n: exact for a cache that does not change during the
    participation and a sampler that draws uniformly.
    """
    starts = range(0, max(len(clients), 1), BLOCK_CLIENTS)
    blocks = [_predicted_phases(view, clients[at : at + BLOCK_CLIENTS]) for at in starts]
    return Phases(
        **{
            phase.name: np.concatenate([getattr(block, phase.name) for block in blocks])
            for phase in fields(Phases)
        }
    )


def _predicted_phases(view: View, clients: np.ndarray) -> Phases:
    fleet, speeds = view.fleet, view.fleet.speeds.take(clients)
    samples = np.maximum(fleet.samples[clients], 1)
    hit_share = np.clip(fleet.resident_samples[clients] / samples, 0.0, 1.0)
    # A claimed speed may be anything; what comes of it is sorted out by usable_seconds.
    with np.errstate(all="ignore"):
        work = expected_work(
            view.local_steps,
            view.batch_size,
            hit_share,
            fleet.mean_samples(clients),
            view.model_bytes,
            speeds,
        )
        return phases(work, speeds)


def quantile(values: np.ndarray, share: float, empty: float) -> float:
    """Return the value below which a share of `values` lies, `empty` of none at all.

    The order statistic at int(share * length), as Oort's artifact takes it: no interpolation.
    """
    if not len(values):
        return empty
    position = min(int(len(values) * share), len(values) - 1)
    return float(np.partition(values, position)[position])
