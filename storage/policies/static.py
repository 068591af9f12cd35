"""Fill once, never evict."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from storage.policy import Policy, Why


class Static(Policy):
    """Fills until full and then keeps what it has (MinIO in CoorDL, VLDB 2021, section 4).

    Where every sample is used once an epoch, any eviction is for a sample that is needed no
    sooner, so thrashing is the only loss that a cache can avoid. It has no state.
    """

    evicts = False

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Uses change nothing."""

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        """Nothing ever leaves."""
        yield from ()

    def inserted(self, samples: np.ndarray) -> None:
        """Arrivals change nothing."""

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Departures change nothing."""

    def columns(self) -> dict[str, np.ndarray]:
        """No state."""
        return {}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """No state."""
