"""Aggregation strategies: Flower's own by name, and what a checkpoint keeps of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)

from fedio.arrays import pack, unpack
from fedio.config import Arm
from fedio.errors import InputError
from fedio.plugins import create
from fedio.protocol import ARRAYS, CONFIG, NUM_EXAMPLES, ONE
from strategies.buffered import FedBuff

logger = logging.getLogger(__name__)

WEIGHT_KEYS = {"samples": NUM_EXAMPLES, "equal": ONE}

Bound = tuple[str, Callable[[float], bool]]
POSITIVE: Bound = "> 0", lambda value: 0 < value < math.inf
NOT_NEGATIVE: Bound = ">= 0", lambda value: 0 <= value < math.inf
COUNT: Bound = "a whole number >= 1", lambda value: isinstance(value, int) and value >= 1
SHARE: Bound = ">= 0 and < 1", lambda value: 0 <= value < 1


def _makes(kind: type[FedAvg], **bounds: Bound) -> Callable[..., Strategy]:
    """Return what makes a strategy of Flower's from these arguments: it checks none itself."""

    def make(**args: Any) -> Strategy:
        if unknown := args.keys() - bounds:
            raise TypeError(f"{min(unknown)!r}; known: {', '.join(bounds) or 'none'}")
        for name, value in args.items():
            text, holds = bounds[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
                raise ValueError(f"{name} must be {text}")
        return kind(**args)

    return make


_ADAPTIVE = {"eta": POSITIVE, "beta_1": SHARE, "beta_2": SHARE, "tau": POSITIVE}
AGGREGATIONS: dict[str, Callable[..., Strategy]] = {
    "fedavg": _makes(FedAvg),
    "fedprox": _makes(FedProx, proximal_mu=NOT_NEGATIVE),
    "fedadam": _makes(FedAdam, **_ADAPTIVE),
    "fedyogi": _makes(FedYogi, **_ADAPTIVE),
    "fedavgm": _makes(FedAvgM, server_learning_rate=POSITIVE, server_momentum=SHARE),
    "fedbuff": _makes(FedBuff, buffer=COUNT, lr=POSITIVE, exponent=NOT_NEGATIVE),
}

# What each class carries from one round into the next, and as what. What it renews in each round
# before it uses it is left out, as FedAdam's `current_arrays`; so is what `BufferedRounds` keeps.
_MOMENTS: dict[str, type] = {"m_t": dict, "v_t": dict}
STATE: dict[type[Strategy], dict[str, type]] = {
    FedAvg: {},
    FedBuff: {},
    FedProx: {},
    FedAdagrad: _MOMENTS,
    FedAdam: _MOMENTS,
    FedYogi: _MOMENTS,
    FedAvgM: {"current_arrays": ArrayRecord, "momentum_vector": list},
}


def aggregation_of(arm: Arm) -> Strategy:
    """Return the aggregation strategy of an arm, which asks all nodes that it is shown.

    Raises:
        InputError: it is unknown, no strategy of Flower's kind, or does not take its arguments.
    """
    ours = {
        "fraction_train": 1.0,
        "fraction_evaluate": 1.0,
        "min_train_nodes": 1,
        "min_evaluate_nodes": 1,
        "min_available_nodes": 1,
        "weighted_by_key": WEIGHT_KEYS[arm.weighting],
        "arrayrecord_key": ARRAYS,
        "configrecord_key": CONFIG,
    }
    name, args = arm.aggregation.name, arm.aggregation.args
    if taken := args.keys() & ours:
        raise InputError(f"aggregation {name!r}: {min(taken)} is not for a configuration to set")
    strategy: Strategy = create(arm.aggregation, AGGREGATIONS, Strategy)  # type: ignore[type-abstract]
    for attribute, value in ours.items():
        if hasattr(strategy, attribute):
            setattr(strategy, attribute, value)
    if type(strategy) not in STATE:
        kept = ", ".join(_state(strategy)) or "nothing"
        logger.warning("aggregation %s: of its state a resumed run keeps %s", name, kept)
    return strategy


def state_of(strategy: Strategy) -> dict[str, np.ndarray]:
    """Return what a strategy carries into the next round, by `ATTRIBUTE/POSITION/NAME`."""
    return {
        f"{attribute}/{position}/{name}": values
        for attribute in _state(strategy)
        for position, (name, values) in enumerate(_named(getattr(strategy, attribute)))
    }


def restore(strategy: Strategy, state: Mapping[str, np.ndarray]) -> None:
    """Give a new strategy what `state_of` said of one like it."""
    for attribute, kind in _state(strategy).items():
        parts = [key.split("/", 2) for key in state if key.startswith(f"{attribute}/")]
        parts.sort(key=lambda part: int(part[1]))
        named = {name: state[f"{attribute}/{position}/{name}"] for _, position, name in parts}
        if named:
            setattr(strategy, attribute, _made(kind, named))


def undo(strategy: Strategy) -> Callable[[], None]:
    """Return what gives a strategy back what it carries now."""
    before = {name: copy(getattr(strategy, name)) for name in _state(strategy)}

    def back() -> None:
        for name, value in before.items():
            setattr(strategy, name, value)

    return back


def is_finite(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether all values of named arrays are finite."""
    return all(bool(np.isfinite(values).all()) for values in arrays.values())


def in_types_of(model: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Return `arrays` in the types of `model`; itself where they are the same.

    Flower's FedAdam makes float64 of float32, which would weigh twice as much on its way.
    """
    if all(arrays[name].dtype == array.dtype for name, array in model.items()):
        return arrays
    return ArrayRecord(
        {name: pack(unpack(arrays[name]).astype(array.dtype)) for name, array in model.items()}
    )


def _state(strategy: Strategy) -> dict[str, type]:
    """Return the attributes that make the state of a strategy, by the table's nearest class."""
    known = (STATE[kind] for kind in type(strategy).__mro__ if kind in STATE)
    return next(known, {})


def _named(value: object) -> Iterable[tuple[str, np.ndarray]]:
    """Return the arrays of an attribute, in order, by name."""
    if isinstance(value, ArrayRecord):
        return [(name, unpack(array)) for name, array in value.items()]
    if isinstance(value, list):
        return [(str(position), np.asarray(each)) for position, each in enumerate(value)]
    if isinstance(value, dict):
        return [(name, np.asarray(each)) for name, each in value.items()]
    return []  # nothing yet


def _made(kind: type, named: dict[str, np.ndarray]) -> object:
    """Return an attribute of that kind, made of named arrays in order."""
    if kind is ArrayRecord:
        return ArrayRecord({name: pack(values) for name, values in named.items()})
    return list(named.values()) if kind is list else named
