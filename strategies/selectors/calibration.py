"""How far clients are from what is predicted of their claims, learned from what is observed."""

from __future__ import annotations

import numpy as np

from strategies.fleet import Fleet
from strategies.selector import State
from strategies.selectors.claims import usable_seconds

WEIGHT = 0.75  # of the latest observation, three times that of all before and of the claim
DIGITS = 9  # of a logarithm: the last bits of a sum in another order must not decide
MOST = 1e9


def uncalibrated(clients: int) -> State:
    """Return that predictions are taken to be right, and that nobody has been asked to train."""
    return {
        "correction": np.ones(clients),
        "asked": np.zeros(0, dtype=np.int64),
        "asked_round": np.zeros(0, dtype=np.int64),
        "asked_s": np.zeros(0),
    }


def calibrated(state: State, fleet: Fleet) -> State:
    """Return the state after the answers that came in since.

        log correction += WEIGHT * log(observed / expected seconds)

    What was expected is the prediction times the correction of that time. So whoever claims half
    its true time is at 0.84 of it after one participation, at 0.96 after two, at 0.99 after three.
    An answer of which nothing was expected teaches nothing.
    """
    asked, expected_s = state["asked"], state["asked_s"]
    answered = fleet.last_round[asked] >= state["asked_round"]
    with np.errstate(all="ignore"):
        ratio = usable_seconds(fleet.duration_s[asked]) / expected_s
        step = np.round(WEIGHT * np.log(ratio), DIGITS)
    seen = answered & np.isfinite(step)
    correction = state["correction"].copy()
    changed = correction[asked[seen]] * np.exp(np.clip(step[seen], -np.log(MOST), np.log(MOST)))
    correction[asked[seen]] = np.clip(changed, 1 / MOST, MOST)
    waiting = {name: state[name][~answered] for name in ("asked", "asked_round", "asked_s")}
    return state | {"correction": correction} | waiting


def with_asked(
    state: State, server_round: int, clients: np.ndarray, expected_s: np.ndarray
) -> State:
    """Return the state after clients were asked to train.

    Args:
        state: before.
        server_round: the round.
        clients: distinct, [k].
        expected_s: corrected predictions, [k]; NaN is unknown.
    """
    kept = ~np.isin(state["asked"], clients)
    new = {"asked": clients, "asked_s": expected_s}
    new["asked_round"] = np.full(len(clients), server_round, dtype=np.int64)
    return state | {name: np.concatenate([state[name][kept], new[name]]) for name in new}
