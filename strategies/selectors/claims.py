"""What clients claim, made fit to rank by: a lie or a gap may mislead, but breaks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import numpy as np

from fedio.costs import Phases, Work, expected_work, phases, total_s
from fedio.expected_hits import expected_hit_share
from fedio.profiles import Speeds
from strategies.selector import View

# Far above any honest utility, and low enough that sums of such claims stay finite.
UTILITY_CEILING = 1e100
# So many at a time stay in the processor's cache, which halves the time of a million.
BLOCK_CLIENTS = 2**15


def usable_utility(claimed: np.ndarray) -> np.ndarray:
    """Return utilities with what is unknown, infinite or negative as 0."""
    utility: np.ndarray = np.fmax(claimed, 0.0)
    utility[np.isinf(utility)] = 0.0
    np.minimum(utility, UTILITY_CEILING, out=utility)
    return utility


def usable_samples(view: View, clients: np.ndarray) -> np.ndarray:
    """Return min(n, q) of `clients`, 0 where n is unknown: the samples that can matter."""
    samples: np.ndarray = view.fleet.samples[clients].astype(np.float64)
    np.clip(samples, 0.0, view.accesses, out=samples)
    return samples


def usable_seconds(seconds: np.ndarray) -> np.ndarray:
    """Return durations with negative ones as NaN, unknown; an infinite one is slower than any."""
    usable: np.ndarray = seconds.astype(np.float64)
    usable[usable < 0] = np.nan
    return usable


def predicted_s(
    view: View, clients: np.ndarray | None = None, hit_share: np.ndarray | None = None
) -> np.ndarray:
    """Return the total of `predicted_phases`, float64 [k], in less time."""
    return _predicted(view, clients, hit_share, lambda *one: [total_s(*one)])[0]


def predicted_phases(
    view: View, clients: np.ndarray | None = None, hit_share: np.ndarray | None = None
) -> Phases:
    """Return what a participation takes by what clients claim; NaN where they do not.

    Args:
        view: the round.
        clients: partition-ids, [k]; None is everybody, which is quickest, then most in order.
        hit_share: the share of hits to reckon with, float64 [k]; None is what the sampler makes of
            what the clients hold in their caches.
    """
    names = [phase.name for phase in fields(Phases)]

    def columns(work: Work, speeds: Speeds) -> list[np.ndarray]:
        took = phases(work, speeds)
        return [getattr(took, name) for name in names]

    return Phases(*_predicted(view, clients, hit_share, columns))


def _predicted(
    view: View,
    clients: np.ndarray | None,
    hit_share: np.ndarray | None,
    seconds: Callable[[Work, Speeds], list[np.ndarray]],
) -> list[np.ndarray]:
    """Return some seconds of participations, float64 [k] each, worked out block by block."""
    count = len(view.fleet) if clients is None else len(clients)
    columns: list[np.ndarray] = []
    for rows, at, asked in _blocks(len(view.fleet), clients):
        share = None if hit_share is None else hit_share[at]
        if share is not None and asked is not None:
            given, share = share, np.zeros(len(view.fleet.samples[rows]))
            share[asked] = given
        # A claimed figure may be anything; what comes of it is sorted out by usable_seconds.
        with np.errstate(all="ignore"):
            found = seconds(*_expected(view, rows, share))
        columns = columns or [np.empty(count) for _ in found]
        for column, part in zip(columns, found, strict=True):
            column[at] = part if asked is None else part[asked]
    return columns


def _blocks(
    everybody: int, clients: np.ndarray | None
) -> Iterator[tuple[np.ndarray | slice, slice, np.ndarray | None]]:
    """Yield rows of the table, where they are among `clients`, and which of them are: None is all.

    Most of a table is read sooner as it lies there, and the rest left out, than picked.
    """
    is_most = clients is not None and 2 * len(clients) > everybody and (np.diff(clients) > 0).all()
    rows = everybody if clients is None or is_most else len(clients)
    for start in range(0, max(rows, 1), BLOCK_CLIENTS):
        block = slice(start, start + BLOCK_CLIENTS)
        if clients is None:
            yield block, block, None
        elif is_most:
            first, end = np.searchsorted(clients, (block.start, block.stop)).tolist()
            yield block, slice(first, end), clients[first:end] - start
        else:
            yield clients[block], block, None


def _expected(
    view: View, rows: np.ndarray | slice, hit_share: np.ndarray | None
) -> tuple[Work, Speeds]:
    """Return the work and the devices of some rows of the table."""
    fleet, speeds = view.fleet, view.fleet.speeds.take(rows)
    if hit_share is None:
        samples = np.maximum(fleet.samples[rows], 1)
        held = np.clip(fleet.resident_samples[rows] / samples, 0.0, 1.0)
        hit_share = expected_hit_share(view.sampler, held, samples, view.accesses, view.batch_size)
    mean, model_bytes = fleet.mean_samples(rows), view.model_bytes
    work = expected_work(view.local_steps, view.batch_size, hit_share, mean, model_bytes, speeds)
    return work, speeds


def quantile(values: np.ndarray, share: float, empty: float) -> float:
    """Return the value below which a share of `values` lies, `empty` of none at all.

    The order statistic at int(share * length), as Oort's artifact takes it: no interpolation.
    """
    if not len(values):
        return empty
    position = min(int(len(values) * share), len(values) - 1)
    return float(np.partition(values, position)[position])
