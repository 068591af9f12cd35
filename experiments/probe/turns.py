"""Work of several sizes done in turns, so that a slow minute hits all sizes alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from experiments.probe.points import Points

LEAST_TURNS, MOST_TURNS, ENOUGH_S = 7, 40, 5.0


def in_turns(
    works: Mapping[float, Callable[[], object]], operations: int, rng: np.random.Generator
) -> Points:
    """Do each work once for warming up, then all in random order, again and again.

    It goes on for `ENOUGH_S` seconds, but for so many turns at least, and at most.

    Args:
        works: size -> what to do.
        operations: how many of that size it is; a point is one of them.
        rng: what to draw the orders from.
    """
    sizes, seconds = list(works), []
    for size in sizes:
        works[size]()
    began = time.perf_counter()
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and time.perf_counter() - began > ENOUGH_S:
            break
        for i in rng.permutation(len(sizes)):
            started = time.perf_counter()
            works[sizes[i]]()
            seconds.append((sizes[i], (time.perf_counter() - started) / operations))
    return Points.of(seconds)
