"""What evens out the likelihood of a client's samples, by how its loss moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Far above any importance, so that all samples are as good as equally likely.
LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class Smoothing:
    """The term ls that PADS adds to the experience of every sample.

    0.01 before the first training, then 0.01 * loss, then ls * exp((loss - before) / before). So a
    loss that falls sharpens the likelihoods.

    Source: SHADE (FAST 2023), and FedCaSe's artifact. Departures: a loss that is no
    finite number changes nothing; a loss before of 0 or less starts again with 0.01 * loss; the
    term stays within 0 and `LARGEST`.

    Attributes:
        value: ls.
        loss: the mean training loss of the last participation; NaN is none yet.
    """

    value: float = 0.01
    loss: float = math.nan

    def after(self, loss: float) -> Smoothing:
        """Return the smoothing after a participation of that mean training loss."""
        if not math.isfinite(loss):
            return self
        if self.loss > 0:
            growth = (loss - self.loss) / self.loss
            value = self.value * math.exp(min(growth, 100.0))
        else:
            value = 0.01 * loss
        return Smoothing(min(max(value, 0.0), LARGEST), loss)
