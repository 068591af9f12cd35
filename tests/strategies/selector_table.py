"""The selectors that contract tests run over: each row of the table, and variants of some."""

from __future__ import annotations

from typing import Any

import numpy as np

from strategies.selector import Cohort, Selector, State, View
from strategies.selectors import SELECTORS

EVERY: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SELECTORS),
    ("power_of_choice", {"choices": 1.0}),
    ("oort", {"parameters": "fedscale"}),
    ("oort", {"blacklist_rounds": 0, "blacklist_max_len": 1.0, "pacer_step": 1}),
    ("tifl", {"tiers": 3, "interval_rounds": 1, "credit_rounds": 1}),
    ("refl", {"rest_rounds": 0}),
    ("fedcase", {"base": "uniform", "share": 0.6}),
    ("fedcase", {"base": "oort", "share": 0.3}),
    ("io_aware", {"explore": 1.0}),
]


def named(row: tuple[Any, ...]) -> str:
    return " ".join(f"{part}" for part in row if part != {})


def select(selector: Selector, view: View, seed: int = 0, state: State | None = None) -> Cohort:
    start = selector.initial_state(len(view.fleet)) if state is None else state
    return selector.select(view, start, np.random.default_rng(seed))[0]


def check(view: View, cohort: Cohort) -> None:
    """The cohort is feasible, distinct, of the right size and accounted for."""
    clients, reasons = cohort.clients, cohort.reasons
    appended = reasons.why.count("experienced")
    wanted = min(view.count, int(view.feasible.sum())) + appended
    assert clients.dtype == np.int64
    assert len(clients) == wanted
    assert (np.diff(clients) > 0).all()
    assert view.feasible[clients].all()
    assert cohort.local_steps.tolist() == [view.local_steps] * wanted
    assert cohort.next.dtype == np.int64
    assert (np.diff(cohort.next) > 0).all()
    assert view.fleet.known[cohort.next].all()
    assert len(cohort.next) <= (view.count if view.staging else 0)
    assert len(reasons.why) == wanted
    assert all(len(figures) == wanted for figures in reasons.details.values())
    assert np.isfinite(reasons.details.get("score", np.zeros(0))).all()
    assert np.isfinite(reasons.details.get("utility", np.zeros(0))).all()
    assert sum(reasons.rest.values()) == len(view.fleet) - wanted
    assert all(count > 0 for count in reasons.rest.values())


def check_state(state: State) -> None:
    """The state is named arrays of numbers, which any format can hold."""
    for name, array in state.items():
        assert isinstance(name, str)
        assert isinstance(array, np.ndarray), name
        assert array.dtype.kind in "biuf", name
