"""Clients that lie, a tenth of the fleet: how much of their share the honest ones keep.

The share is of all selections, against a run of the same seed in which nobody lies. Liars send
either *garbage*, whatever they report being no number, 1e30 or negative, or what is *plausible*: a
utility, and a loss, drawn from the highest tenth of what honest clients would claim at the time,
and that all their samples are in their caches.

Mean and least of what they keep, over 8 seeds of 200 clients and 100 rounds of 10:

    selector         garbage        plausible
    uniform          1.00  1.00     1.00  1.00
    refl             1.00  1.00     1.00  1.00    neither looks at these claims
    tifl             1.00  0.99     1.00  0.99    a claim moves a tier's probability only
    io_aware         1.01  1.00     0.97  0.96    bounded by the others', and found out by duration
    oort             0.98  0.95     0.89  0.87    the highest utilities are exploited, whose ever
    power_of_choice  1.09  1.07     0.90  0.88    so are losses
    fedcase          1.04  1.03     0.82  0.79    Oort's choice, and experience is mostly utility
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategies.selectors import SELECTORS
from tests.strategies.selection_runs import Claims, Clients, Says, phones, run

CLIENTS, ROUNDS, WANTED = 200, 100, 10
# A learned share takes seconds to learn, and appends the same clients.
ARGUMENTS: dict[str, dict[str, Any]] = {"fedcase": {"share": 0.5}}
# What honest clients keep of their share at least, if not 0.95.
BOUNDS = {
    ("plausible", "power_of_choice"): 0.87,
    ("plausible", "oort"): 0.87,
    ("plausible", "fedcase"): 0.80,
}


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


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("kind", ["garbage", "plausible"])
def test_honest_clients_keep_their_share(kind: str, name: str) -> None:
    kept = [kept_share(name, kind, seed) for seed in range(2)]
    assert np.mean(kept) >= BOUNDS.get((kind, name), 0.95)


def test_liars_are_a_tenth_and_say_what_they_are_to_say() -> None:
    clients, lying = phones(CLIENTS, 0), liars(0)
    assert len(np.unique(lying)) == CLIENTS // 10
    everyone = np.arange(CLIENTS)
    truth = clients.report(everyone)
    rest = np.setdiff1d(everyone, lying)
    for kind in (garbage, plausible):
        told = kind(clients, lying)(everyone, truth)
        for name, values in truth.items():
            np.testing.assert_array_equal(told[name][rest], values[rest])
    assert (told["resident_samples"][lying] == clients.truth.samples[lying]).all()
    least = np.quantile(truth["utility"][rest], 0.89)
    assert (told["utility"][lying] >= least).all()
    assert (told["utility"][lying] <= truth["utility"][rest].max()).all()
