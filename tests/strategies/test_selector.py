"""What a view must be, and that a selector which chooses wrongly is told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedio.config import Arm, Spec
from fedio.errors import InputError
from strategies.selector import Cohort, Reasons, Selector, State, View
from strategies.server_app import selector_of

ViewOf = Callable[..., View]


@pytest.mark.parametrize("changes", [{"server_round": 0}, {"count": -1}, {"feasible": np.ones(4)}])
def test_an_impossible_view_is_refused(view_of: ViewOf, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"need >= 1 and >= 0|must be bool \[4\]"):
        view_of(4, **({"count": 1} | changes))


class Chooses(Selector):
    """Chooses whatever it is told."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort = cohort

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        del view, candidates, rng
        return self.cohort, state


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([3, 3], "distinct and ascending"),
        ([4, 3], "distinct and ascending"),
        ([[3, 4]], "distinct and ascending"),
        ([1.0], "not int64"),
        ([-1, 3], "do not exist"),
        ([3, 9], "do not exist"),
        ([3, 8], "not known"),
    ],
)
def test_a_selector_that_names_wrongly_for_the_next_round_is_told(
    view_of: ViewOf, named: list[Any], said: str
) -> None:
    everyone = np.ones(9, dtype=np.bool_)
    view = view_of(9, 1, feasible=everyone, samples=[200] * 8 + [-1])
    cohort = Cohort(np.array([2]), np.array([8]), Reasons(["a"], {}, {}), np.array(named))
    with pytest.raises(InputError, match=f"chose clients for the next round that.* {said}"):
        Chooses(cohort).select(view, {}, np.random.default_rng(0))
    sound = replace(cohort, next=np.array([0, 3, 7]))
    assert Chooses(sound).select(view, {}, np.random.default_rng(0))[0] is sound


@pytest.mark.parametrize(
    ("clients", "steps", "why", "said"),
    [
        ([0, 0, 1], [8, 8, 8], ["a"] * 3, "a client twice"),
        ([0, 1], [8, 8], ["a"] * 2, "2 clients where 3 were wanted"),
        ([], [], [], "0 clients where 3 were wanted"),
        ([0, 1, 99], [8] * 3, ["a"] * 3, "client 99, which is not feasible"),
        ([0, 1, -1], [8] * 3, ["a"] * 3, "client -1, which is not feasible"),
        ([0, 1, 2], [8, 8], ["a"] * 3, "one positive number per client"),
        ([0, 1, 2], [8, 0, 8], ["a"] * 3, "one positive number per client"),
        ([0, 1, 2], [8] * 3, ["a"], "reasons that are not one per client"),
        ([0.0, 1.0, 2.0], [8] * 3, ["a"] * 3, "not int64"),
    ],
)
def test_a_selector_that_chooses_wrongly_is_named(
    view_of: ViewOf, clients: list[int], steps: list[int], why: list[str], said: str
) -> None:
    ids = np.array(clients) if clients else np.empty(0, np.int64)
    cohort = Cohort(ids, np.array(steps, np.int64), Reasons(why, {}, {}))
    with pytest.raises(InputError, match=f"round 10: selector Chooses chose .*{said}"):
        Chooses(cohort).select(view_of(9, 3), {}, np.random.default_rng(0))
    with pytest.raises(InputError, match="gave a list, not a Cohort"):
        Chooses([1, 2, 3]).select(view_of(9, 3), {}, np.random.default_rng(0))  # type: ignore[arg-type]


def test_clients_cannot_stage_for_a_selector_that_names_nobody() -> None:
    assert selector_of(Arm(selector=Spec(name="uniform"), staging=True)).names_next
    assert not selector_of(Arm(selector=Spec(name="oort"))).names_next
    with pytest.raises(InputError, match="selector 'oort' does not say who trains next"):
        selector_of(Arm(selector=Spec(name="oort"), staging=True))
