"""Substitution: who is served in the place of what is not cached."""

from __future__ import annotations

import numpy as np

from storage.policy import Policy
from storage.read import Status
from storage.victim_queue import NOBODY

_SUBSTITUTED, _MISS, _CORRUPT = map(int, (Status.SUBSTITUTED, Status.MISS, Status.CORRUPT))


def with_stand_ins(samples: np.ndarray, resident: np.ndarray, policy: Policy) -> np.ndarray:
    """Return samples, int64[k], with a stand-in for each missing one that the policy has one for.

    Args:
        samples: what was requested, int64[k].
        resident: who is cached, bool[n].
        policy: it has been told of all reads before this one.
    """
    there = resident[samples]
    missing = samples[~there]
    stand_ins = policy.stand_ins(missing)
    named = samples.copy()
    named[~there] = np.where(stand_ins == NOBODY, missing, stand_ins)
    return named


def how_served(
    samples: np.ndarray,
    named: np.ndarray,
    there: np.ndarray,
    served: np.ndarray,
    staged: np.ndarray,
) -> np.ndarray:
    """Return how each request was served, a `Status` each, uint8[k].

    Args:
        samples: what was requested, int64[k].
        named: what was looked for in its place, int64[k]; the very same array if nobody stood in.
        there: which of it was cached, bool[k].
        served: which of that was read, bool[k]; the very same array if all of it was.
        staged: who came in ahead of its use, bool[n].
    """
    status = np.where(served, staged[named], _MISS).astype(np.uint8)
    if served is not there:
        status[there & ~served] = _CORRUPT
    if named is not samples:
        status[served & (named != samples)] = _SUBSTITUTED
    return status
