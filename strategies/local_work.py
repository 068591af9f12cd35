"""Local work that lets a cohort finish together: slow clients take fewer steps, fast ones more."""

from __future__ import annotations

import heapq

import numpy as np

from strategies.selector import View
from strategies.selectors.claims import predicted_phases, usable_seconds

MOST = 4
"""Times as many steps as in a cohort that all do the same: more would only overfit one client."""


def together(view: View, clients: np.ndarray) -> np.ndarray:
    """Return the local steps with which `clients` are predicted to finish together.

    The model's transfer takes what it takes, and steps as long as one of S does on average, by what
    the clients claim. Each next step goes to the client that would be done with it first, until all
    together take as many as with S each: no other choice makes the last of them finish earlier.
    Each gets from 1 to 4 S steps. Of whom nothing can be predicted gets S. Who is slower, in
    transfer or steps and faster in neither, never gets more steps.

    Args:
        view: the round, with S.
        clients: int64 [k].

    Returns:
        int64 [k].
    """
    with np.errstate(all="ignore"):
        took = predicted_phases(view, clients)
        fixed_s = usable_seconds(took.download_s + took.upload_s)
        step_s = usable_seconds((took.stall_s + took.compute_s) / view.local_steps)
    steps = np.full(len(clients), view.local_steps, dtype=np.int64)
    known = np.flatnonzero(~np.isnan(fixed_s + step_s))
    steps[known] = _filled(fixed_s[known], step_s[known], view.local_steps)
    return steps


def _filled(fixed_s: np.ndarray, step_s: np.ndarray, mean_steps: int) -> list[int]:
    """Return steps, `mean_steps` on average, so that fixed + steps * step_s is as even as can be.

    Among those that would finish alike the one of the shorter steps comes first, then the one of
    the shorter transfer, and of those alike in both the one with fewer steps by now.
    """
    transfer_s, one_s = fixed_s.tolist(), step_s.tolist()  # which may be infinite, unlike an error

    def after_another(client: int) -> tuple[float, float, float, int, int]:
        one, more = one_s[client], steps[client] + 1
        return transfer_s[client] + more * one, one, transfer_s[client], more, client

    steps = [1] * len(transfer_s)
    waiting = [after_another(client) for client in range(len(steps))]
    heapq.heapify(waiting)
    for _ in range(len(steps) * (mean_steps - 1)):
        client = waiting[0][-1]
        steps[client] += 1
        if steps[client] < MOST * mean_steps:
            heapq.heapreplace(waiting, after_another(client))
        else:
            heapq.heappop(waiting)
    return steps
