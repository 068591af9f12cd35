"""A comparison is refused before anything runs where its arms could not be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.compare import plan
from fedio.config import Experiment
from fedio.errors import InputError

LRU = {"policy": "lru"}
GDSF = {"policy": "gdsf", "sampler": {"name": "pads", "args": {"a": 1, "b": 2}}}
PREPARED = {"form": "prepared"}


def arms_of(experiment: Experiment, out: Path, *, quick: bool = False) -> list[str]:
    return [job.experiment.arm for job in plan(experiment, out, quick=quick, seeds=None).jobs]


def experiment(arms: dict[str, Any], compare: dict[str, Any] | None = None) -> Experiment:
    return Experiment.model_validate({"name": "x", "arms": arms, "compare": compare or {}})


@pytest.mark.parametrize(
    "arms",
    [
        {"a": LRU, "b": GDSF},
        {"a": LRU | PREPARED, "b": GDSF | PREPARED},
        {"a": LRU, "b": LRU | PREPARED},
        {"a": LRU, "b": LRU | {"form": "best", "kind": "bound"}, "c": LRU | PREPARED},
        {
            "a": LRU,
            "b": GDSF | PREPARED,
            "c": LRU | PREPARED,
            "d": GDSF | {"sampler": {"name": "pads", "args": {"b": 2, "a": 1}}},
        },
    ],
)
def test_arms_are_compared_in_one_form_or_all_of_them_in_each(
    tmp_path: Path, arms: dict[str, Any]
) -> None:
    assert arms_of(experiment(arms), tmp_path / "out") == list(arms)


@pytest.mark.parametrize(
    "change",
    [
        {"selector": "oort"},
        {"policy": "static"},
        {"sampler": "pads"},
        {"prefetch": False},
        {"staging": True},
        {"weighting": "equal"},
    ],
)
def test_arms_that_differ_in_form_and_in_something_else_are_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        arms_of(experiment({"a": LRU, "b": LRU | PREPARED | change}), tmp_path / "out")
    assert str(caught.value) == (
        "arm a has form 'encoded', and none with form 'prepared' is like it in all else: "
        "give all arms one form, or add that arm"
    )
    assert not (tmp_path / "out").exists()


def test_one_arm_too_many_in_a_form_is_named(tmp_path: Path) -> None:
    twins = {"a": LRU, "b": LRU | PREPARED}
    with pytest.raises(InputError, match="arm c has form 'prepared', and none with form 'encoded'"):
        arms_of(experiment(twins | {"c": GDSF | PREPARED}), tmp_path / "out")


def test_only_arms_that_run_count(tmp_path: Path) -> None:
    arms = {"a": LRU, "b": GDSF | PREPARED, "c": LRU | PREPARED}
    chosen = experiment(arms, {"arms": ["a", "c"], "quick_arms": ["a", "b"]})
    assert arms_of(chosen, tmp_path / "out") == ["a", "c"]
    with pytest.raises(InputError, match="arm a has form"):
        arms_of(chosen, tmp_path / "out", quick=True)


def test_an_arm_may_have_seeds_of_its_own_and_those_of_one_seed_run_together(
    tmp_path: Path,
) -> None:
    section = {"seeds": 2, "arm_seeds": {"a": 3, "c": 1}, "quick_seeds": 2}
    chosen = experiment({"a": LRU, "b": GDSF, "c": LRU}, section)

    def jobs(*, quick: bool = False, seeds: int | None = None) -> list[str]:
        made = plan(chosen, tmp_path / "out", quick=quick, seeds=seeds)
        return [f"{job.experiment.arm}{job.experiment.seed}" for job in made.jobs]

    assert jobs() == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert jobs(quick=True) == ["a0", "b0", "c0", "a1", "b1", "c1"]
    assert jobs(seeds=1) == jobs(quick=True, seeds=1) == ["a0", "b0", "c0"]
