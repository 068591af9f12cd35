"""The share of a cohort that is appended for its experience: fixed, or learned round by round."""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod

import numpy as np

from fedio.errors import InputError
from strategies.selector import State, View

SHARES = np.arange(1, 10) / 10
LEARN_FROM_ROUND = 10
TREES = 100
EXPLORE = 0.1  # of the rounds that could ask the forest
LEAST_TIME_SHARE = 0.1  # of the shortest round, where the shortest less a deviation is not positive
LARGEST = 1e30  # the forest computes in float32; no honest loss or duration comes near


class Share(ABC):
    """Gives the share rho of each round."""

    @abstractmethod
    def initial_state(self) -> State:
        """Return the state before the first round."""

    @abstractmethod
    def choose(self, view: View, state: State, rng: np.random.Generator) -> tuple[float, State]:
        """Return rho, within 0 to 1, and the state for the next round."""


class FixedShare(Share):
    """The same share in every round.

    Raises:
        InputError: it is not within 0 to 1.
    """

    def __init__(self, share: float | str) -> None:
        if isinstance(share, bool | str) or not 0 <= share <= 1:
            raise InputError(f"share is {share!r}: use 'learned' or a number from 0 to 1")
        self.share = float(share)

    def initial_state(self) -> State:
        """Return nothing."""
        return {}

    def choose(
        self,
        view: View,  # noqa: ARG002
        state: State,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> tuple[float, State]:
        """Return it."""
        return self.share, dict(state)


class LearnedShare(Share):
    """Asks a random forest which share brings much progress in little time.

    In rounds 1 to 9 rho is drawn from 0.1, 0.2 .. 0.9. From round 10 on a forest of 100 trees is
    fitted on (dLoss, dTime, dLoss / dTime) -> rho of all past rounds, and asked at
    (max dLoss + std, min dTime - std, their quotient), std being that of dLoss and of dTime.

    dLoss is by how much the mean loss fell that clients claim, from those that trained in one round
    to those of the next; dTime is the virtual seconds between the two selections. A round of which
    either is unknown teaches nothing, and without any known round rho is drawn.

    Source: FedCaSe (SoCC 2024), its artifact. Two faults of it are guarded. min dTime - std may be
    0 or less: then a tenth of min dTime is asked for. And nothing explores after round 9, so that
    the forest only ever sees its own answers: one round in ten goes on drawing rho.

    Raises:
        InputError: scikit-learn is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise InputError(
                "a learned share needs scikit-learn: pip install 'fedio[fedcase]', or set share"
            )

    def initial_state(self) -> State:
        """Return an empty history."""
        return {
            "rhos": np.zeros(0),
            "loss_falls": np.zeros(0),
            "times_s": np.zeros(0),
            "round": np.array(0),
            "rho": np.array(np.nan),
            "loss": np.array(np.nan),
            "now_s": np.array(np.nan),
        }

    def choose(self, view: View, state: State, rng: np.random.Generator) -> tuple[float, State]:
        """Add the last round to the history, then draw rho or ask the forest."""
        state = _with_last_round(view, state)
        seed, explore = int(rng.integers(2**32)), rng.random() < EXPLORE
        rho = float(rng.choice(SHARES))
        if view.round >= LEARN_FROM_ROUND and len(state["rhos"]) and not explore:
            rho = _forest_answer(state, seed)
        return rho, state | {
            "round": np.array(view.round),
            "rho": np.array(rho),
            "now_s": np.array(view.now_s),
        }


def features(loss_falls: np.ndarray, times_s: np.ndarray) -> np.ndarray:
    """Return (dLoss, dTime, dLoss / dTime) in rows, float64 [k, 3], bounded; dTime > 0."""
    with np.errstate(over="ignore"):
        table = np.column_stack([loss_falls, times_s, loss_falls / times_s])
    bounded: np.ndarray = np.clip(table, -LARGEST, LARGEST)
    return bounded


def question(loss_falls: np.ndarray, times_s: np.ndarray) -> np.ndarray:
    """Return what to ask the forest, float64 [1, 3]: more progress in less time than ever seen."""
    fall = loss_falls.max() + loss_falls.std()
    time_s = times_s.min() - times_s.std()
    if time_s <= 0:
        time_s = LEAST_TIME_SHARE * times_s.min()
    return features(np.array([fall]), np.array([time_s]))


def _with_last_round(view: View, state: State) -> State:
    """Return the state with what the last round brought, as far as the server can know it."""
    told = view.fleet.claimed_round
    claimed = view.fleet.loss[(told == state["round"]) & (told > 0)]
    claimed = claimed[np.abs(claimed) < LARGEST]  # and so no NaN
    if not len(claimed):
        return state
    loss = float(claimed.mean())
    fall, time_s = float(state["loss"]) - loss, view.now_s - float(state["now_s"])
    known = {"loss": np.array(loss)}
    if np.isfinite(fall) and 1 / LARGEST < time_s < LARGEST:
        known["rhos"] = np.append(state["rhos"], state["rho"])
        known["loss_falls"] = np.append(state["loss_falls"], fall)
        known["times_s"] = np.append(state["times_s"], time_s)
    return state | known


def _forest_answer(state: State, seed: int) -> float:
    """Return what a forest, fitted on the history, says to the question."""
    # Imported here: it takes a second, and only this needs it.
    ensemble = importlib.import_module("sklearn.ensemble")
    falls, times_s = state["loss_falls"], state["times_s"]
    forest = ensemble.RandomForestRegressor(n_estimators=TREES, n_jobs=1, random_state=seed)
    forest.fit(features(falls, times_s), state["rhos"])
    return float(np.clip(forest.predict(question(falls, times_s))[0], 0.0, 1.0))
