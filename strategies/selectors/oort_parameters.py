"""The parameters of Oort, and the two sets of them that were published."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class OortParameters:
    """The parameters of Oort, by the names of its artifact.

    Attributes:
        exploration_factor, exploration_decay, exploration_min: share of untried clients, at
            first, its factor per round, and its floor.
        round_threshold: percentile of durations that is still fast enough; 100 is any duration.
        round_penalty: exponent of the discount of slower ones.
        clip_bound: share of utilities below the cap.
        cut_off_util: share of the last exploited score that is still good enough.
        pacer_step, pacer_delta: rounds of a window, and percentiles that the threshold moves.
        sample_window: untried candidates per slot for them.
        blacklist_rounds: selections after which a client is excluded; below 0 is never.
        blacklist_max_len: largest share of all clients that is excluded.

    Raises:
        ValueError: a parameter is out of range.
    """

    exploration_factor: float
    exploration_decay: float
    exploration_min: float
    round_threshold: float
    round_penalty: float
    clip_bound: float
    cut_off_util: float
    pacer_step: int = 20
    pacer_delta: float = 5.0
    sample_window: float = 5.0
    blacklist_rounds: int = -1
    blacklist_max_len: float = 0.3

    def __post_init__(self) -> None:
        shares = ("exploration_factor", "exploration_decay", "exploration_min", "clip_bound")
        for name in (*shares, "cut_off_util", "blacklist_max_len"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, not within 0 to 1")
        for name in ("round_threshold", "round_penalty", "pacer_delta"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, not a number from 0 up")
        for name in ("pacer_step", "blacklist_rounds"):
            if getattr(self, name) != int(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}, not a whole number")
        if self.pacer_step < 1 or not 1 <= self.sample_window < np.inf:
            raise ValueError("pacer_step and sample_window must be at least 1")


# The artifact's own defaults, and those FedScale runs it with, which FedCaSe took over.
PRESETS = {
    "repository": OortParameters(0.9, 0.95, 0.2, 10, 2.0, 0.98, 0.7),
    "fedscale": OortParameters(0.9, 0.98, 0.3, 30, 2.0, 0.9, 0.05),
}
