"""What the cache of a client may take: the experiment's share, or room for all of its samples."""

from __future__ import annotations

import numpy as np

from clients.forms import Weights
from fedio.config import Experiment
from storage.layout import Layout, usable_bytes


def budget_of(experiment: Experiment, weights: Weights) -> int:
    """Return the budget in bytes of a client whose samples weigh that much, for the arm chosen."""
    if experiment.chosen.cache == "bounded":
        return experiment.cache.budget_of(int(weights.size_bytes.sum()))
    return room_for(np.maximum(weights.size_bytes, weights.prepared_bytes))


def room_for(size_bytes: np.ndarray) -> int:
    """Return a budget under which samples of these sizes, int64 [n], are cached all at once."""
    budget_bytes, short_bytes = 0, 1
    while short_bytes > 0:  # a larger budget has more overhead, but never as much more
        needed_bytes = int(Layout.for_budget(budget_bytes).cost(size_bytes).sum())
        short_bytes = needed_bytes - usable_bytes(budget_bytes)
        budget_bytes += max(short_bytes, 0)
    return budget_bytes
