"""Aggregation strategies: Flower's results to the bit, and a state that goes on as if unbroken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Strategy,
)

from fedio.arrays import pack, unpack
from fedio.config import Arm
from fedio.errors import InputError
from fedio.flower_internals import assume_identity
from fedio.protocol import CONFIG
from strategies.aggregations import (
    AGGREGATIONS,
    STATE,
    aggregation_of,
    in_types_of,
    restore,
    state_of,
)
from strategies.buffered import FedBuff
from strategies.cohort_grid import CohortGrid, messages_in_order
from tests.strategies.replies import reply

HERE = "tests.strategies.test_aggregations"
# What a configuration names, and the same made of Flower's class by hand.
CASES: dict[str, tuple[dict[str, Any], Callable[..., Strategy]]] = {
    "fedavg": ({}, FedAvg),
    "fedprox": ({"proximal_mu": 0.1}, FedProx),
    "fedadam": ({"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01}, FedAdam),
    "fedyogi": ({"eta": 0.05, "tau": 0.01}, FedYogi),
    "fedavgm": ({"server_learning_rate": 0.7, "server_momentum": 0.9}, FedAvgM),
    "flwr.serverapp.strategy:FedAdagrad": ({"eta": 0.05}, FedAdagrad),
}


@pytest.fixture(autouse=True)
def _identity() -> None:
    assume_identity(1, 1)


class OwnAdam(FedAdam):
    """A strategy of a user's that has more to remember than the one it is made of."""


class Keeps(Strategy):
    """A strategy of a user's from the ground up: it takes no arguments of ours."""

    def configure_train(self, *_: object) -> list[Message]:
        return []

    configure_evaluate = configure_train

    def aggregate_train(self, *_: object) -> tuple[None, None]:
        return None, None

    def aggregate_evaluate(self, *_: object) -> None:
        return None

    def summary(self) -> None:
        """Say nothing."""


def arm(name: str, weighting: str = "samples", **args: Any) -> Arm:
    values = {"aggregation": {"name": name, "args": args}, "weighting": weighting}
    return Arm.model_validate(values)


def first_model() -> ArrayRecord:
    rng = np.random.default_rng(7)
    shapes = {"z": (3, 2), "a": (2,), "m": ()}  # not in the order of their names
    return ArrayRecord(
        {name: pack(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    )


def replies(server_round: int, model: ArrayRecord) -> list[Message]:
    """Return what three clients make of a model: all are somewhere near it."""
    rng = np.random.default_rng([11, server_round])

    def trained(values: np.ndarray) -> np.ndarray:
        return np.asarray(values + rng.normal(scale=0.1, size=values.shape), np.float32)

    return [
        reply(
            client,
            server_round,
            arrays={name: trained(unpack(array)) for name, array in model.items()},
            weight=client + 1,
        )
        for client in range(3)
    ]


def play(strategy: Strategy, rounds: range, model: ArrayRecord) -> list[ArrayRecord]:
    """Return the models after these rounds, the last one last."""
    models = [model]
    for server_round in rounds:
        sent = list(
            strategy.configure_train(
                server_round, models[-1], ConfigRecord(), CohortGrid([4, 5, 6])
            )
        )
        assert sorted(message.metadata.dst_node_id for message in sent) == [4, 5, 6]
        arrays, metrics = strategy.aggregate_train(server_round, replies(server_round, models[-1]))
        assert arrays is not None
        assert metrics is not None
        models.append(arrays)
    return models


def assert_same(one: ArrayRecord, other: ArrayRecord) -> None:
    assert list(one) == list(other)
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
        assert array.data == other[name].data


@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize("name", CASES)
def test_each_gives_flowers_own_result(name: str, weighting: str) -> None:
    args, kind = CASES[name]
    theirs = kind(**args, weighted_by_key={"samples": "num-examples", "equal": "one"}[weighting])
    ours = aggregation_of(arm(name, weighting, **args))
    assert type(ours) is type(theirs)
    for one, other in zip(
        play(ours, range(1, 6), first_model()),
        play(theirs, range(1, 6), first_model()),
        strict=True,
    ):
        assert_same(one, other)


@pytest.mark.parametrize("name", CASES)
def test_a_restored_twin_goes_on_as_if_nothing_had_been(name: str) -> None:
    args, kind = CASES[name]
    whole = play(aggregation_of(arm(name, **args)), range(1, 11), first_model())
    before, after = (aggregation_of(arm(name, **args)) for _ in range(2))
    half = play(before, range(1, 6), first_model())[-1]
    state = state_of(before)
    state = {key: state[key].copy() for key in sorted(state, reverse=True)}
    assert {key.split("/")[0] for key in state} == STATE[kind].keys()  # type: ignore[index]
    restore(after, state)
    for one, other in zip(play(after, range(6, 11), half), whole[5:], strict=True):
        assert_same(one, other)
    assert state_of(after).keys() == state.keys()


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_there_yet_is_no_state(name: str) -> None:
    args, _ = CASES[name]
    fresh = aggregation_of(arm(name, **args))
    assert state_of(fresh) == {}
    restore(fresh, {})
    assert state_of(fresh) == {}


def test_the_state_is_needed() -> None:
    for name, (args, kind) in CASES.items():
        if not STATE[kind]:  # type: ignore[index]
            continue
        strategy, fresh = (aggregation_of(arm(name, **args)) for _ in range(2))
        half = play(strategy, range(1, 6), first_model())[-1]
        one, other = play(strategy, range(6, 7), half)[-1], play(fresh, range(6, 7), half)[-1]
        assert one["z"].data != other["z"].data


def test_the_table_is_covered() -> None:
    buffered = {"fedbuff"}  # it aggregates otherwise
    assert {name for name in CASES if ":" not in name} | buffered == AGGREGATIONS.keys()
    for name, make in AGGREGATIONS.items():
        assert type(make()) in STATE, name


def test_one_node_is_enough_and_the_proximal_term_is_in_the_message() -> None:
    strategy = aggregation_of(arm("fedprox", proximal_mu=0.25))
    [message] = messages_in_order(
        lambda grid: strategy.configure_train(3, first_model(), ConfigRecord(), grid), [9]
    )
    assert dict(message.content.config_records[CONFIG]) == {"proximal-mu": 0.25, "server-round": 3}


def test_a_buffer_is_as_it_is_asked_for() -> None:
    strategy = aggregation_of(arm("fedbuff", buffer=5, lr=0.5, exponent=0.25))
    assert isinstance(strategy, FedBuff)
    made = strategy.buffer
    assert (made.size, made.lr, made.exponent) == (5, 0.5, 0.25)
    assert strategy.min_train_nodes == 1
    assert state_of(strategy) == {}


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("fedadm", {}, "did you mean 'fedadam'"),
        ("fedavg", {"eta": 0.1}, "'eta'; known: none"),
        ("fedadam", {"learning_rate": 0.1}, "known: eta, beta_1, beta_2, tau"),
        ("fedadam", {"eta": 0}, "eta must be > 0"),
        ("fedadam", {"eta": "0.1"}, "eta must be > 0"),
        ("fedadam", {"eta": True}, "eta must be > 0"),
        ("fedadam", {"eta": float("inf")}, "eta must be > 0"),
        ("fedyogi", {"tau": float("nan")}, "tau must be > 0"),
        ("fedyogi", {"beta_2": 1.0}, "beta_2 must be >= 0 and < 1"),
        ("fedavgm", {"server_momentum": -0.1}, "server_momentum must be >= 0 and < 1"),
        ("fedprox", {"proximal_mu": -1}, "proximal_mu must be >= 0"),
        ("fedbuff", {"buffer": 0}, "buffer must be a whole number >= 1"),
        ("fedbuff", {"buffer": 2.0}, "buffer must be a whole number >= 1"),
        ("fedbuff", {"exponent": -0.5}, "exponent must be >= 0"),
        ("fedavg", {"fraction_train": 0.5}, "fraction_train is not for a configuration to set"),
        ("flwr.serverapp.strategy:FedMedian", {"min_train_nodes": 3}, "min_train_nodes is not"),
        ("flwr.serverapp.strategy:FedMedian", {"middle": 3}, "does not take"),
        ("flwr.app:Message", {}, "not a Strategy"),
        ("nowhere:Strategy", {}, "cannot load"),
    ],
)
def test_what_cannot_be_is_the_users_error(name: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        aggregation_of(arm(name, **args))


def test_a_users_strategy_asks_all_and_says_once_what_is_kept_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = "strategies.aggregations"
    with caplog.at_level(logging.WARNING, logger=logger):
        for name in AGGREGATIONS:
            aggregation_of(arm(name))
        assert all(record.name != logger for record in caplog.records)
        caplog.clear()
        own = aggregation_of(arm(f"{HERE}:OwnAdam", eta=0.05))
        bare = aggregation_of(arm(f"{HERE}:Keeps"))
        median = aggregation_of(arm("flwr.serverapp.strategy:FedMedian"))
    assert [text.rpartition("keeps ")[2] for text in caplog.messages] == [
        "m_t, v_t",
        "nothing",
        "nothing",
    ]
    assert isinstance(median, FedMedian)
    play(median, range(1, 2), first_model())
    play(own, range(1, 2), first_model())
    assert {key.split("/")[0] for key in state_of(own)} == {"m_t", "v_t"}
    assert state_of(bare) == {}
    assert not hasattr(bare, "min_train_nodes")


def test_a_model_keeps_its_types() -> None:
    model = first_model()
    adam = play(aggregation_of(arm("fedadam")), range(1, 2), model)[-1]
    assert {array.dtype for array in adam.values()} == {"float64"}
    kept = in_types_of(model, adam)
    assert {array.dtype for array in kept.values()} == {"float32"}
    for name, array in kept.items():
        assert array.numpy().tolist() == adam[name].numpy().astype(np.float32).tolist()
    assert in_types_of(model, kept) is kept
