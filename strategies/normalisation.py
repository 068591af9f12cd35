"""Normalised averaging: clients that take more local steps do not draw the model their way."""

from __future__ import annotations

from copy import copy

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from fedio.arrays import pack, unpack
from fedio.protocol import ARRAYS


def normalised(
    replies: list[Message],
    sent: ArrayRecord,
    steps: np.ndarray,
    weights: np.ndarray,
    momentum: float,
    pull: float = 0.0,
) -> list[Message]:
    """Return the replies with each update scaled so that their mean is FedNova's update.

    x_i becomes x + (tau / |a_i|_1) (x_i - x) with tau = sum_i p_i |a_i|_1; the mean by p is then
    x + tau sum_i p_i (x_i - x) / |a_i|_1. Where all took as many steps, the replies are returned as
    they are.

    Args:
        replies: with x_i, the model of each client, [k].
        sent: x, the model that all of them started from.
        steps: local steps of each client, int64 [k].
        weights: of each client in the mean that follows, float64 [k]; p is their share.
        momentum: of their SGD.
        pull: lr * mu of a proximal term, 0 for none.

    Source: FedNova (Wang et al., NeurIPS 2020), section 4, with tau_eff = sum_i p_i |a_i|_1.
    """
    if len(np.unique(steps)) <= 1:
        return replies
    norms = step_norms(steps, momentum, pull)
    scales = float(np.average(norms, weights=weights)) / norms
    return [
        _with_arrays(reply, scaled(sent, reply.content.array_records[ARRAYS], scale))
        for reply, scale in zip(replies, scales.tolist(), strict=True)
    ]


def step_norms(steps: np.ndarray, momentum: float, pull: float = 0.0) -> np.ndarray:
    """Return |a_i|_1: what all gradients of a client count together in its update, float64 [k].

    After m steps from x a client is at x - lr sum_j a_j g_j, so the sum of its a_j is what m
    gradients of 1 amount to. With momentum rho alone that is
    (m - rho (1 - rho^m) / (1 - rho)) / (1 - rho), and m without it.
    """
    steps = np.maximum(steps, 1)
    totals = np.zeros(steps.max(initial=1))
    held = moved = 0.0
    for step in range(len(totals)):
        held = momentum * held + 1 - pull * moved
        moved += held
        totals[step] = moved
    norms: np.ndarray = totals[steps - 1]
    return norms


def scaled(start: ArrayRecord, end: ArrayRecord, scale: float) -> ArrayRecord:
    """Return weights `scale` times as far from `start` as `end` is, in the types of `end`."""

    def far(name: str) -> np.ndarray:
        x, x_i = unpack(start[name]), unpack(end[name])
        moved: np.ndarray = x + scale * (x_i - x.astype(np.float64))
        return moved.astype(x_i.dtype)

    return ArrayRecord({name: pack(far(name)) for name in end})


def _with_arrays(reply: Message, arrays: ArrayRecord) -> Message:
    """Return the same reply with other arrays."""
    other = copy(reply)
    other.content = RecordDict({**reply.content, ARRAYS: arrays})
    return other
