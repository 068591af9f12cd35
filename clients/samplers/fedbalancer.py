"""FedBalancer's sample selection: a loss threshold that rises while the loss falls."""

from __future__ import annotations

import math

import numpy as np

from clients.samplers.sampler import Sampler

STEP = 0.05
HIGH_PERCENTILE = 80


class FedBalancer(Sampler):
    """Trains on samples whose loss is at or over a threshold, and on a share of those under it.

    Of n samples, with their last losses (a sample without one counts as over the threshold):

    1. lt = low + (high - low) * ltr, with low the least of the losses and high their 80th
       percentile. ltr is 0 at first, so all samples are over the threshold.
    2. L = how many samples are over it. p L of them are drawn, and (1 - p) L of those under it; as
       far as there are fewer under it, more of those over it.
    3. The selected L samples come in a fresh permutation, and again in another one until there are
       enough accesses.
    4. After the participation ltr rises by 0.05 where the mean of all last losses has fallen since
       the participation before, and falls by 0.05 where it has risen, within 0 and 1.

    Source: FedBalancer (MobiSys 2022), algorithms 1 to 3, and its artifact, whose default is p = 1.
    Departures: low and high come from the client's own losses, where there the server takes the
    least low and the mean high of all clients of a round, with noise for privacy. The mean loss is
    the client's own as well, from one participation to the next; there it is that of all clients
    over the deadline, from 20 rounds to the next 20. No deadline lets a fast client take more than
    L samples. Losses are those met in training; there a client first infers all of its samples.

    Args:
        samples: n, how many samples the client has.
        batch_size: B.
        p: the share of the selected samples that is over the threshold, 0 to 1.

    Raises:
        ValueError: no such share.
    """

    uses_resident = False

    def __init__(self, samples: int, batch_size: int, p: float = 1.0) -> None:
        super().__init__(samples, batch_size)
        if not 0 <= p <= 1:
            raise ValueError(f"p is a share from 0 to 1, got {p}")
        self._p = p
        self._losses = np.full(samples, np.inf)
        self._ratio, self._mean_loss = 0.0, math.nan

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        """Return permutations of the selected samples, one after another, cut to `accesses`."""
        del resident
        selected = self.selected(rng)
        passes = -(-accesses // len(selected))
        return np.concatenate([rng.permutation(selected) for _ in range(passes)])[:accesses]

    def selected(self, rng: np.random.Generator) -> np.ndarray:
        """Return the samples of the next participation, int64, at least one."""
        is_over = self._losses >= self.threshold
        over, under = np.flatnonzero(is_over), np.flatnonzero(~is_over)
        under_count = min(len(over) - round(self._p * len(over)), len(under))
        return np.concatenate(
            [
                rng.choice(over, len(over) - under_count, replace=False),
                rng.choice(under, under_count, replace=False),
            ]
        )

    @property
    def threshold(self) -> float:
        """The loss lt; where no loss is known, no sample is under it."""
        known = self._losses[np.isfinite(self._losses)]
        if not len(known):
            return -math.inf
        low, high = float(known.min()), float(np.percentile(known, HIGH_PERCENTILE))
        # Rounding must not lift it over the largest loss.
        return min(low + (high - low) * self._ratio, high)

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Remember the losses of a step; of a sample that is in it twice the last position counts.

        A loss that is no finite number leaves its sample without one.
        """
        self._losses[samples] = np.where(np.isfinite(losses), losses, np.inf)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the losses, their mean, and ltr, after this participation."""
        known = self._losses[np.isfinite(self._losses)]
        mean_loss = float(known.mean()) if len(known) else math.nan
        change = STEP * ((mean_loss < self._mean_loss) - (mean_loss > self._mean_loss))
        ratio = min(max(self._ratio + change, 0.0), 1.0)
        return {"losses": self._losses, "control": np.array([ratio, mean_loss])}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        if columns:
            self._losses = columns["losses"].copy()
            self._ratio, self._mean_loss = columns["control"].tolist()
