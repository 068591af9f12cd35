"""Normalised averaging: FedNova's update out of Flower's mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from fedio.arrays import pack
from fedio.protocol import ARRAYS
from strategies.normalisation import normalised, step_norms
from tests.strategies.replies import reply


def model(*values: float, dtype: type = np.float32) -> ArrayRecord:
    return ArrayRecord({"w": pack(np.array(values, dtype))})


def sends(client: int, *values: float, weight: float = 1.0) -> Message:
    return reply(client, arrays={"w": np.array(values, np.float32)}, weight=weight)


def mean(replies: list[Message]) -> np.ndarray:
    arrays, _ = FedAvg().aggregate_train(1, replies)
    assert arrays is not None
    return arrays["w"].numpy()


def test_a_mean_of_normalised_replies_by_hand() -> None:
    # From x = 1 client 0 goes to 3 in 2 steps, 1 a step, and client 1 to 17 in 8, 2 a step; p is
    # 1/4 and 3/4, tau 2/4 + 3 * 8/4 = 6.5. The update is 6.5 * (1/4 * 1 + 3/4 * 2) = 11.375.
    replies = [sends(0, 3.0, weight=5), sends(1, 17.0, weight=15)]
    found = normalised(replies, model(1.0), np.array([2, 8]), np.array([5.0, 15.0]), 0.0)
    assert mean(found) == pytest.approx([12.375])
    assert mean(replies) == pytest.approx([13.5])
    # The replies are what they were, and all but the arrays is in the new ones.
    assert replies[1].content.array_records[ARRAYS]["w"].numpy() == [17.0]
    assert found[1].metadata == replies[1].metadata
    for name in replies[1].content.keys() - {ARRAYS}:
        assert found[1].content[name] == replies[1].content[name]


def test_with_momentum_the_first_gradients_count_more() -> None:
    # Two steps with rho = 1/2: a = (1.5, 1), in all 2.5; one step: 1.
    assert step_norms(np.array([1, 2, 3]), 0.5).tolist() == [1.0, 2.5, 4.25]
    replies = [sends(0, 1.0), sends(1, 5.0)]
    found = normalised(replies, model(0.0), np.array([1, 2]), np.array([1.0, 1.0]), 0.5)
    # tau = 1.75: 1.75 * (1/2 * 1 + 1/2 * 5/2.5).
    assert mean(found) == pytest.approx([2.625])


@given(st.integers(1, 60), st.floats(0, 0.99))
def test_the_norm_is_the_papers_formula(steps: int, rho: float) -> None:
    expected = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert step_norms(np.array([steps]), rho)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.8), (0.9, 0.8)])
def test_the_norm_is_how_far_sgd_goes_on_a_slope_of_one(momentum: float, mu: float) -> None:
    lr = 0.1
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([w], lr=lr, momentum=momentum)
    for step in range(1, 8):
        sgd.zero_grad()
        (w.sum() + mu / 2 * w.square().sum()).backward()
        sgd.step()
        assert step_norms(np.array([step]), momentum, lr * mu)[0] == pytest.approx(-w.item() / lr)


def test_equal_steps_leave_the_very_same_replies() -> None:
    replies = [sends(0, 1.1), sends(1, 2.7)]
    weights = np.array([1.0, 2.0])
    for steps in ([8, 8], [0, 0]):
        found = normalised(replies, model(0.3), np.array(steps), weights, 0.9)
        assert all(one is other for one, other in zip(found, replies, strict=True))
    assert normalised([], model(0.3), np.zeros(0, np.int64), np.zeros(0), 0.9) == []


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 10)), min_size=1, max_size=6))
def test_clients_that_move_alike_per_step_are_averaged_as_they_are(
    clients: list[tuple[int, float]],
) -> None:
    steps = np.array([own for own, _ in clients])
    weights = np.array([weight for _, weight in clients])
    norms = step_norms(steps, 0.9)
    replies = [
        sends(i, *(norms[i] * np.array([1.0, -2.0])), weight=weights[i]) for i in range(len(steps))
    ]
    found = mean(normalised(replies, model(0.0, 0.0), steps, weights, 0.9))
    tau = np.average(norms, weights=weights)
    assert found == pytest.approx(tau * np.array([1.0, -2.0]), rel=1e-5)


def test_types_and_names_stay() -> None:
    arrays = {"b": np.array([2], np.int64), "a": np.ones((2, 2), np.float32)}
    sent = ArrayRecord({name: pack(values * 0) for name, values in arrays.items()})
    replies = [reply(client, arrays=arrays) for client in range(2)]
    found = normalised(replies, sent, np.array([1, 3]), np.ones(2), 0.0)
    for message in found:
        record = message.content.array_records[ARRAYS]
        assert [(name, array.dtype) for name, array in record.items()] == [
            ("b", "int64"),
            ("a", "float32"),
        ]
