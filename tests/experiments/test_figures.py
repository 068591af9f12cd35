"""Runs that end before all rounds, do not reach the target, or have no counterpart."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments import report, table
from experiments.figures import compare_json
from experiments.run_figures import (
    accuracy_at_horizon,
    final_accuracy,
    time_to_target,
    time_to_target_s,
)
from experiments.statistics import Time
from fedio.runs import Row, Run, read_run
from tests.experiments.synthetic_runs import client_row, experiment, round_row, write_run

TARGET = 0.8
CENSORED = "A run that did not reach the target"


def evaluated(
    path: Path,
    accuracies: Sequence[float | None],
    arm: str = "a",
    seed: int = 0,
    **ends: Any,
) -> Run:
    """A run whose round r ends at 10 r seconds with the r-th accuracy, from round 0 on."""
    rows = [round_row(r, 10.0 * r, value) for r, value in enumerate(accuracies)]
    config = experiment(arm, seed, rounds={"cohort": 2, "rounds": 50, **ends})
    return read_run(write_run(path / f"{arm}-{seed}", config, rows))


def reaching(rounds: int | None) -> list[float]:
    """Accuracies that reach the target after so many rounds; never: 6 rounds below it."""
    return [0.1, *[0.5] * 6] if rounds is None else [0.1, *[0.5] * (rounds - 1), *[0.8] * 3]


def compared(path: Path, **arms: Sequence[int | None]) -> Row:
    """The comparison of arms that reach the target after so many rounds, by seed; `a` is first."""
    return compare_json(
        [
            evaluated(path, reaching(rounds), arm, seed)
            for arm, reached in arms.items()
            for seed, rounds in enumerate(reached)
        ],
        TARGET,
    )


def printed(comparison: Row) -> list[str]:
    text = io.StringIO()
    table.print_table(Console(width=80, file=text), comparison)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    return lines


@pytest.mark.parametrize(
    ("accuracies", "horizon_s", "expected"),
    [
        ([0.1, 0.8, 0.8, 0.8], 30.0, Time(10.0, reached=True)),  # the last is just in time
        ([0.1, 0.8, 0.8, 0.8], 29.0, Time(10.0, reached=False)),  # and now it may have held
        ([0.1, 0.8, 0.5, 0.5, 0.8], 35.0, Time(35.0, reached=False)),
        ([0.1, 0.5, 0.5], 100.0, Time(20.0, reached=False)),  # nothing is known of what follows
        ([0.1, 0.8, 0.8, 0.5], None, Time(30.0, reached=False)),
        ([0.1, 0.5, 0.8, 0.8], None, Time(20.0, reached=False)),
        ([0.1, 0.8, None, 0.8, None], None, Time(10.0, reached=False)),
        ([0.1, 0.8, None, 0.8, None, 0.8], None, Time(10.0, reached=True)),
        ([0.9], None, Time(0.0, reached=False)),
    ],
)
def test_a_time_that_was_not_reached_is_censored_at_what_is_certain(
    tmp_path: Path, accuracies: list[float | None], horizon_s: float | None, expected: Time
) -> None:
    run = evaluated(tmp_path, accuracies, horizon_s=horizon_s)
    assert time_to_target(run, TARGET) == expected
    assert time_to_target_s(run, TARGET) == (expected.seconds if expected.reached else None)


def test_final_accuracy_is_of_the_last_five_up_to_the_horizon(tmp_path: Path) -> None:
    accuracies = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9]
    run = evaluated(tmp_path / "some", accuracies, horizon_s=60.0)
    assert final_accuracy(run) == pytest.approx(0.5)  # 0.3 to 0.7
    assert accuracy_at_horizon(run) == final_accuracy(run)
    run = evaluated(tmp_path / "before", accuracies, horizon_s=71.0)
    assert final_accuracy(run) == pytest.approx(0.62)
    assert accuracy_at_horizon(run) is None  # it was not there yet
    run = evaluated(tmp_path / "none", accuracies)
    assert final_accuracy(run) == pytest.approx(0.62)
    assert accuracy_at_horizon(run) is None


def test_what_a_run_did_after_the_horizon_counts_for_all_else(tmp_path: Path) -> None:
    rounds = [
        round_row(0, 0.0, 0.1),
        round_row(1, 10.0, 0.5, selected=[0]),
        round_row(2, 20.0, 0.9, selected=[1]),
    ]
    clients = [client_row(r, r - 1, origin_bytes=100, written_bytes=10) for r in (1, 2)]
    config = experiment(rounds={"cohort": 2, "horizon_s": 15.0})
    run = read_run(write_run(tmp_path / "run", config, rounds, clients))
    (arm,) = compare_json([run])["arms"]
    assert arm["final_accuracy"] == 0.5
    assert (arm["origin_bytes"], arm["written_bytes"], arm["virtual_s"]) == (200, 20, 20.0)
    assert (arm["coverage"], arm["never_selected"]) == (0.5, 2)


def test_a_run_that_stops_at_its_accuracy_has_reached_it_and_compares_at_no_horizon(
    tmp_path: Path,
) -> None:
    ends = {"horizon_s": 100.0, "stop_accuracy": TARGET}
    runs = [
        evaluated(tmp_path, reaching(rounds), arm, seed, **ends)
        for arm, rounds in (("a", 4), ("b", 2))
        for seed in (0, 1)
    ]
    comparison = compare_json(runs, TARGET)
    b = comparison["arms"][1]
    assert (b["reached"], b["censored"], b["time_to_target_s"]) == (2, 0, pytest.approx(20.0))
    assert (b["speedup"], b["speedup_bound"]) == (pytest.approx(2.0), None)
    assert b["final_accuracy"] == pytest.approx((0.5 + 3 * 0.8) / 4)
    assert (b["accuracy_difference"], b["equal_accuracy"]) == (None, None)
    text = " ".join(printed(comparison))
    assert "At most" not in text
    assert (
        "50 rounds at most, until 1.7 min are over (what is evaluated later does not count) or 3 "
        "evaluations in a row have 80.0%" in text.replace("  ", " ")
    )
    assert CENSORED not in text
    # To a higher target the same runs are censored, where they stopped.
    (_, b) = compare_json(runs, 0.9)["arms"]
    assert (b["reached"], b["censored"], b["speedup"]) == (0, 2, None)


def test_speedups_of_censored_arms_are_bounds(tmp_path: Path) -> None:
    comparison = compared(tmp_path, a=(2, 2), b=(1, None))
    (a, b) = comparison["arms"]
    assert (a["reached"], a["censored"], a["speedup"]) == (2, 0, 1.0)
    assert (b["reached"], b["censored"], b["time_to_target_s"]) == (1, 1, None)
    # 2 and at most 20 s / 60 s.
    assert b["speedup"] == pytest.approx(math.sqrt(2 / 3))
    assert (b["speedup_bound"], b["speedup_low"], b["speedup_pairs"]) == ("at most", None, 2)
    lines = printed(comparison)
    assert ["b", "1", "of", "2", "-", "<=", "0.82"] in map(str.split, lines)
    assert sum(CENSORED in line for line in table.notes(comparison)) == 1
    assert "left out:" not in " ".join(lines)


def test_speedups_over_a_censored_reference_are_bounds(tmp_path: Path) -> None:
    comparison = compared(tmp_path, a=(2, None), b=(1, 1))
    (a, b) = comparison["arms"]
    assert (a["speedup"], a["speedup_low"], a["speedup_pairs"]) == (1.0, None, 1)
    assert b["speedup"] == pytest.approx(math.sqrt(12))  # 2 and at least 6
    assert (b["speedup_bound"], b["speedup_high"]) == ("at least", None)
    assert ["b", "2", "of", "2", "10.0", "s", ">=", "3.46"] in map(str.split, printed(comparison))


@pytest.mark.parametrize(
    ("a", "b", "cell", "is_told_apart"),
    [
        (2, None, "<= 0.33 [-, 0.33]", True),
        (None, 2, ">= 3.00 [3.00, -]", True),
        (4, 4, "1.00", False),
    ],
)
def test_bounds_of_eight_seeds_have_one_end(
    tmp_path: Path, a: int | None, b: int | None, cell: str, is_told_apart: bool
) -> None:
    comparison = compared(tmp_path, a=[a] * 8, b=[b] * 8)
    lines = printed(comparison)
    assert any(line.startswith("b ") and line.endswith(f" {cell}") for line in lines)
    assert ("show no arm to be faster" in " ".join(lines)) is not is_told_apart


@pytest.mark.parametrize(
    ("b", "is_said"),
    [
        ([2, 4], True),
        ([1] * 7 + [None], True),  # at most 1.68, and down to less
        ([1] * 8, False),
        ([None] * 2, False),  # at most 0.33, and nothing is known of the interval
        ([2], False),
    ],
)
def test_it_is_said_where_no_arm_is_told_apart(
    tmp_path: Path, b: list[int | None], is_said: bool
) -> None:
    comparison = compared(tmp_path, a=[2, 3, *[2] * 6], b=b)
    assert any("show no arm" in line for line in table.notes(comparison)) is is_said
    more = compared(tmp_path / "more", a=[2, 3, *[2] * 6], b=b, c=[2, 3])
    assert any("show no arm" in line for line in table.notes(more)) is is_said


def test_seeds_that_differ_in_what_is_censored_give_no_figure(tmp_path: Path) -> None:
    comparison = compared(tmp_path, a=(2, None), b=(None, 1))
    b = comparison["arms"][1]
    assert (b["speedup"], b["speedup_bound"]) == (None, "mixed")
    assert ["b", "1", "of", "2", "-", "mixed"] in map(str.split, printed(comparison))


def test_seeds_with_which_neither_reached_are_left_out_and_counted(tmp_path: Path) -> None:
    comparison = compared(tmp_path, a=(2, 2, None), b=(1, 2, None), c=(2, 2, 2))
    (_, b, c) = comparison["arms"]
    assert b["speedup"] == pytest.approx(math.sqrt(2))
    assert (b["speedup_low"], b["speedup_bound"], b["speedup_pairs"]) == (None, None, 2)
    assert (c["speedup_bound"], c["speedup_pairs"]) == ("at least", 3)
    assert "Left out, since neither reached the target: b 1." in " ".join(printed(comparison))


def at_horizon(path: Path, **finals: Sequence[float]) -> Row:
    """The comparison of arms with these final accuracies, by seed, at a horizon of 20 s."""
    return compare_json(
        [
            evaluated(path, [0.1, value, value, 0.99], arm, seed, horizon_s=20.0)
            for arm, values in finals.items()
            for seed, value in enumerate(values)
        ],
        TARGET,
    )


def test_final_accuracies_at_one_horizon_are_compared(tmp_path: Path) -> None:
    comparison = at_horizon(
        tmp_path, a=(0.7, 0.71, 0.72), b=(0.702, 0.714, 0.726), c=(0.72, 0.73, 0.735)
    )
    (a, b, c) = comparison["arms"]
    assert (a["accuracy_difference"], a["equal_accuracy"]) == (None, None)  # the reference
    assert b["accuracy_difference"] == pytest.approx(0.004)
    # Deviation 0.002, t(0.95, 2) = 2.91999.
    assert b["accuracy_difference_low"] == pytest.approx(0.004 - 0.0033717, abs=1e-7)
    assert b["accuracy_difference_high"] == pytest.approx(0.004 + 0.0033717, abs=1e-7)
    assert (b["equal_accuracy"], c["equal_accuracy"]) == ("yes", "higher")
    lines = printed(comparison)
    assert any("+0.40 [+0.06, +0.74] yes" in line for line in lines)
    assert any(line.startswith("a ") and " - " in line for line in lines)


def test_of_one_seed_or_without_a_horizon_accuracies_are_not_compared(tmp_path: Path) -> None:
    one = at_horizon(tmp_path / "one", a=(0.7,), b=(0.702,))
    none = compared(tmp_path / "none", a=(2, 2), b=(3, 3))
    for comparison in (one, none):
        assert all(
            arm[key] is None
            for arm in comparison["arms"]
            for key in ("accuracy_difference", "accuracy_difference_low", "equal_accuracy")
        )
        assert "less ref." not in " ".join(printed(comparison))


def test_arms_with_fewer_seeds_are_told_apart_and_pair_those_they_have(tmp_path: Path) -> None:
    comparison = compared(tmp_path, a=(2, 4, 4, 2), b=(1, 1), c=(2, 2), d=(1, 1, 1, 1))
    (a, b, _, d) = comparison["arms"]
    assert a["time_to_target_s"] == pytest.approx(10 * math.sqrt(8))  # of all its seeds
    assert (b["speedup"], b["speedup_pairs"]) == (pytest.approx(math.sqrt(8)), 2)
    assert d["speedup_pairs"] == 4
    lines = printed(comparison)
    assert [line.split()[:2] for line in lines if line[:2] in {"a ", "b ", "c ", "d "}][:4] == [
        ["a", "4"], ["b", "2"], ["c", "2"], ["d", "4"],
    ]  # fmt: skip
    fewer = [line for line in table.notes(comparison) if " ran seeds " in line]
    assert [line.split(" only")[0] for line in fewer] == ["b, c ran seeds 0, 1"]
    even = compared(tmp_path / "even", a=(2, 4), b=(1, 1))
    assert "seeds " not in {cell for line in printed(even)[:4] for cell in line.split()}
    assert not any(" ran seeds " in line for line in table.notes(even))


def test_the_report_says_what_censoring_and_equal_accuracy_are_where_they_matter(
    tmp_path: Path,
) -> None:
    def page(name: str, accuracies: list[float], **ends: Any) -> str:
        runs = [
            evaluated(tmp_path / name, accuracies, arm, seed, **ends)
            for arm in ("a", "b")
            for seed in (0, 1)
        ]
        return report.render(runs, compare_json(runs, TARGET), {})

    plain = page("plain", reaching(2))
    assert "is censored" not in plain
    assert "Schuirmann" not in plain
    assert "is censored" in page("censored", reaching(None))
    horizon = page("horizon", reaching(2), horizon_s=30.0)
    assert "Schuirmann" in horizon
    assert "less ref." in horizon
    assert "+0.00 yes" in horizon
