"""Clients that lie, a tenth of the fleet: how much of their share the honest ones keep.

The share is of all selections, against a run of the same seed in which nobody lies. Liars send
either *garbage*, whatever they report being no number, 1e30 or negative, or what is *plausible*: a
utility, and a loss, drawn from the highest tenth of what honest clients would claim at the time,
and that all their samples are in their caches.

Measured over 8 seeds, 200 clients, 100 rounds of 10 (mean, least):

FIGURES
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategies.selectors import SELECTORS
from tests.strategies.selection_runs import Claims, Clients, Says, phones, run

CLIENTS, ROUNDS, WANTED = 200, 100, 10
# A learned share takes seconds to learn, and the same clients are appended.
ARGUMENTS: dict[str, dict[str, Any]] = {"fedcase": {"share": 0.5}}
# What honest clients keep of their share at least, on average, where liars are plausible.
PLAUSIBLE = dict.fromkeys(SELECTORS, 0.95)


def liars(seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 9]).choice(CLIENTS, CLIENTS // 10, replace=False)


def garbage(clients: Clients, lying: np.ndarray) -> Says:
    rng = np.random.default_rng([clients.seed, 10])

    def says(who: np.ndarray, truth: Claims) -> Claims:
        lies = np.isin(who, lying)
        noise = {name: rng.choice([np.nan, 1e30, -5.0], len(who)) for name in truth}
        return {name: np.where(lies, noise[name], truth[name]) for name in truth}

    return says


def plausible(clients: Clients, lying: np.ndarray) -> Says:
    rng = np.random.default_rng([clients.seed, 10])
    rest = np.setdiff1d(np.arange(clients.count), lying)

    def says(who: np.ndarray, truth: Claims) -> Claims:
        lies, honest = np.isin(who, lying), clients.report(rest)
        told = {"resident_samples": clients.truth.samples[who].astype(np.float64)}
        for name in truth.keys() - told.keys():
            highest = np.sort(honest[name])[-(len(rest) // 10) :]
            told[name] = rng.choice(highest, len(who))
        return {name: np.where(lies, told[name], truth[name]) for name in truth}

    return says


def kept_share(name: str, kind: str, seed: int) -> float:
    """Return how much of their share honest clients keep."""
    lying, shares = liars(seed), []
    for lie in (False, True):
        clients = phones(CLIENTS, seed)
        says = {"garbage": garbage, "plausible": plausible}[kind](clients, lying)
        selector = SELECTORS[name](**ARGUMENTS.get(name, {}))
        told = {"says": says} if lie else {}
        selected = run(selector, clients, ROUNDS, WANTED, **told).selected
        shares.append(np.delete(selected, lying, axis=1).sum() / selected.sum())
    return float(shares[1] / shares[0])
