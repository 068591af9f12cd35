"""States of a fleet in which claims and observations may be anything at all, made in bulk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from strategies.fleet import Fleet
from strategies.selector import View

CLIENTS = 24  # at most
ROUNDS = 3  # seen of one fleet, so that a selector's state goes on
GARBAGE = 0.7  # of the columns of a state; the others are ordinary
REALS = np.array(
    [0.0, -0.0, 5e-324, 1e-9, 1.0, 2.0, 3.5, 0.5, 1e12, 1e30, 1.7e308, np.nan, np.inf, -np.inf, -1]
)
WHOLES = np.array([-1, 0, 1, 7, 200, 2**52])


def any_states(seed: int, fleets: int, ordinary: Fleet) -> Iterator[list[View]]:
    """Yield, for each of `fleets` fleets, views of the same clients in a few rounds.

    All the numbers are drawn at once per column. One at a time, or by Hypothesis itself, they would
    take longer than the selections that are tested with them.

    Args:
        seed: everything follows from it.
        fleets: how many fleets.
        ordinary: a table of one client that is as clients should be.
    """
    rng = np.random.default_rng(seed)
    states = fleets * ROUNDS
    rounds = rng.integers(1, 50, states)
    shape = (states, CLIENTS)
    columns = {name: _column(name, array, shape, rng) for name, array in ordinary.arrays().items()}
    for name in ("last_round", "selected_round"):
        columns[name] = rng.integers(0, rounds[:, None], shape) * rng.integers(0, 2, shape)
    columns["claimed_round"] = np.zeros(shape, dtype=np.int64)  # nothing to learn a share from
    columns["busy_until_s"] = rng.choice([0.0, 5.0], shape)
    for column in columns.values():
        column.flags.writeable = False
    feasible = rng.random(shape) < rng.random((states, 1))
    staging, counts = rng.random(states) < 0.5, rng.integers(0, CLIENTS + 4, states).tolist()
    for fleet, clients in enumerate(rng.integers(1, CLIENTS + 1, fleets).tolist()):
        yield [
            View(
                fleet=Fleet.from_arrays({k: a[at, :clients] for k, a in columns.items()}),
                round=int(rounds[at]),
                now_s=1.0,
                feasible=feasible[at, :clients],
                wanted=counts[at] % (clients + 4),
                count=counts[at] % (clients + 4),
                local_steps=8,
                batch_size=20,
                model_bytes=1e6,
                staging=bool(staging[at]),
                sampler=("uniform", "pads")[at % 2],
            )
            for at in range(fleet * ROUNDS, (fleet + 1) * ROUNDS)
        ]


def _column(
    name: str, ordinary: np.ndarray, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Return garbage for most states and what is ordinary for the rest."""
    if ordinary.dtype == np.bool_:
        return rng.random(shape) < 0.8
    if name in {"times_selected", "times_trained", "failures"}:
        return rng.integers(0, 4, shape)
    odd = rng.choice(WHOLES if ordinary.dtype == np.int64 else REALS, shape)
    garbage = rng.random((shape[0], 1)) < GARBAGE
    return np.where(garbage, odd, ordinary[0])
