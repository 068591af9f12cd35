"""The best set of clients: a round lasts as long as its slowest member."""

from __future__ import annotations

import numpy as np

from strategies.selectors.claims import quantile
from strategies.selectors.draws import top
from strategies.selectors.prospects import evenly_spaced

LOOK_AT = 2**18  # clients a round at most
RUN = 64  # neighbours that are looked at together
STAND_BY = 4  # clients to draw each spare one from
GRID = 128  # rounds of so many lengths are compared
FAST_SHARE = 1 / 64  # of the clients tell what all others must be worth to matter


def best_round_s(
    seconds: np.ndarray, value: np.ndarray, count: int, least_s: float, held: float = 0.0
) -> float:
    """Return how long the round should be that brings the most value per second.

        T >= least_s that maximises (held + sum of the `count` highest values with seconds <= T) / T

    Only a client of which less than `count` others are as fast and worth as much can matter. Up to
    `GRID` clients T is exact. Of more it is one of `GRID` of their seconds, equally many clients
    apart: the one above the best T brings no less value, in that little more time. The work is
    linear in the clients, but for sorting what may matter, a small part unless the slow are worth
    most.

    Args:
        seconds: of each client, more than 0, [n].
        value: of each client, not negative, [n].
        count: of how many the values count, at least 1.
        least_s: the shortest round that is possible, more than 0.
        held: value that every round has.
    """
    in_time, border_s = seconds <= least_s, max(_border_s(seconds), least_s)
    cohort = _largest(value[in_time], count)
    fast = value[seconds <= border_s]
    enough = np.partition(fast, -count)[-count] if count < len(fast) else -np.inf
    matters = np.flatnonzero(~in_time & ((seconds <= border_s) | (value > enough)))
    seconds, value = seconds[matters], value[matters]
    best, best_s = (held + cohort.sum()) / least_s, least_s
    for group in np.array_split(np.argsort(seconds, kind="stable"), min(len(seconds), GRID) or 1):
        cohort = _largest(np.concatenate([cohort, value[group]]), count)
        round_s = float(seconds[group].max(initial=least_s))
        rate = (held + cohort.sum()) / round_s
        if rate > best:
            best, best_s = rate, round_s
    return best_s


def best_cohort(
    seconds: np.ndarray, value: np.ndarray, held: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the cohort of the most value per second of its round, held clients among it.

    Args:
        seconds: of each client, more than 0, [n].
        value: of each client, more than 0, [n].
        held: positions of `count` clients at most, which are in the cohort in any case.
        count: how many it has, n at most.
        rng: draws among those that are equal at the border.

    Returns:
        Positions of those that join the held ones.
    """
    free = count - len(held)
    if free <= 0:
        return np.zeros(0, dtype=np.int64)
    least_s = max(_shortest_s(seconds, count), seconds[held].max(initial=0.0))
    others = value
    if len(held):
        others = value.copy()
        others[held] = 0.0
    limit_s = best_round_s(seconds, others, free, least_s, value[held].sum())
    in_time = np.flatnonzero(seconds <= limit_s)
    best: np.ndarray = in_time[top(others[in_time], free, rng)]
    return best


def spares(
    seconds: np.ndarray, cohort: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Return positions of `count` clients that stand by, should some of the cohort fail.

    They are slower than the cohort, or else they would take the place of its slowest in any case,
    and drawn from the `STAND_BY` times as many that are so by least. Where too few are slower, the
    slowest others stand by.
    """
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    left = np.ones(len(seconds), dtype=np.bool_)
    left[cohort] = False
    is_slower = seconds > seconds[cohort].max(initial=0.0)
    slower, others = np.flatnonzero(left & is_slower), np.flatnonzero(left & ~is_slower)
    near = slower[top(-seconds[slower], STAND_BY * count, rng)]
    drawn = rng.choice(near, min(count, len(near)), replace=False, shuffle=False)
    return np.concatenate([drawn, others[top(seconds[others], count - len(drawn), rng)]])


def _border_s(seconds: np.ndarray) -> float:
    """Return about how long the fastest take."""
    return quantile(evenly_spaced(seconds), FAST_SHARE, 0.0)


def _shortest_s(seconds: np.ndarray, count: int) -> float:
    """Return the `count`-th smallest, mostly without a look at all the larger ones."""
    few = seconds[seconds <= _border_s(seconds)]
    return float(np.partition(few if len(few) >= count else seconds, count - 1)[count - 1])


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` largest values, in any order."""
    return np.partition(values, -count)[-count:] if len(values) > count else values


def spread(clients: np.ndarray, kept: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return ascending clients, or of more than `LOOK_AT` about so many, `kept` among them.

    With thousands to choose from for each place the best of more are hardly better. Those of a run
    of `RUN` neighbours, which are soonest read together, are looked at together or not at all.
    """
    runs = len(clients) // RUN
    step = -(-len(clients) // LOOK_AT)
    if step <= 1:
        return clients
    looked_at = np.zeros(int(clients[-1]) + 1, dtype=np.bool_)
    looked_at[clients[: runs * RUN].reshape(runs, RUN)[int(rng.integers(step)) :: step]] = True
    looked_at[clients[runs * RUN :]] = True
    looked_at[kept] = True
    return np.flatnonzero(looked_at)
