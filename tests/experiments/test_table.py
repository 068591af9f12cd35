"""The figures of arms, worked out by hand, and the table that shows them."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments import table, units
from experiments.columns import tables
from experiments.figures import arm_figures, compare_json, group_by_arm
from experiments.run_figures import final_accuracy, jain_index, stall_s, time_to_target_s
from fedio.errors import InputError
from fedio.runs import Row, Run, read_run
from tests.experiments.synthetic_runs import (
    PHASES,
    client_row,
    experiment,
    round_row,
    staged_row,
    wall_row,
    write_run,
)

# What the comparison object of DESIGN holds for each arm.
ARM_KEYS = {
    "name", "kind", "time_to_target_s", "speedup", "speedup_low", "speedup_high",
    "final_accuracy", "worst_decile_accuracy", "never_selected_accuracy", "hit_ratio",
    "byte_hit_ratio", "unique_samples_per_round", "coverage", "origin_bytes", "written_bytes",
    "jain_index", "staged_ratio", "staging_origin_bytes", "staging_written_bytes",
    "effective_samples_per_round", "skipped_samples", "stall_share", "prefetch", "form", "staging",
    "never_selected", "reached", "censored", "speedup_bound", "speedup_pairs",
    "accuracy_difference", "accuracy_difference_low", "accuracy_difference_high", "equal_accuracy",
}  # fmt: skip


# Columns that are left out where they say nothing.
OPTIONAL = {"cache", "reads", "cached", "stages", "staged", "stall", "effective", "skipped"}
OPTIONAL |= {"aggregates", "per step", "steps", "late", "left", "slow"}
OPTIONAL |= {"seeds", "reached", "less ref."}


def evaluated(path: Path, accuracies: list[float | None], **config: Any) -> Run:
    """A run whose round r ends at 10 r seconds with the r-th accuracy."""
    rounds = [round_row(r, 10.0 * r, accuracy) for r, accuracy in enumerate(accuracies)]
    return read_run(write_run(path, experiment(**config), rounds))


def lines_of(comparison: dict[str, Any], width: int = 80) -> list[str]:
    text = io.StringIO()
    table.print_table(Console(width=width, file=text), comparison)
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.1, 0.8, 0.7, 0.8, 0.81, 0.9], 30.0),  # the first of the three, not the third
        ([0.1, 0.7, 0.8, 0.8], None),  # two are not enough
        ([0.1, 0.8, 0.8, 0.79, 0.8, 0.8], None),
        ([0.9, 0.9, 0.9, 0.1], None),  # the untrained model does not count
        ([0.1, None, 0.8, None, 0.8, None, 0.85], 20.0),  # rounds without evaluation are skipped
        ([0.1], None),
    ],
)
def test_time_to_target_is_that_of_the_first_of_three_evaluations(
    tmp_path: Path, accuracies: list[float | None], expected: float | None
) -> None:
    assert time_to_target_s(evaluated(tmp_path / "run", accuracies), 0.8) == expected


def test_final_accuracy_is_the_mean_of_the_last_five(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "long", [0.1, 0.2, 0.5, 0.6, None, 0.7, 0.8, 0.9])
    assert final_accuracy(run) == pytest.approx(0.7)
    assert final_accuracy(evaluated(tmp_path / "short", [0.1, 0.4, 0.6])) == pytest.approx(0.5)
    assert final_accuracy(evaluated(tmp_path / "none", [0.1, None])) is None


def test_jain_index_of_known_counts() -> None:
    assert jain_index([3, 1, 0, 0]) == pytest.approx(16 / 40)
    assert jain_index([2, 2, 2]) == 1
    assert jain_index([5, 0]) == 0.5
    assert jain_index([0, 0]) is None


def by_hand(path: Path) -> Run:
    """Two rounds on four clients: client 0 twice, 1 late, 2 failed, 3 never."""
    rounds = [
        round_row(0, 0.0, 0.1),
        round_row(1, 20.0, 0.5, selected=[0, 1], counted=[0], late=[1], staged=[
            staged_row(2, 12.0, origin_bytes=70, written_bytes=60),
            staged_row(3, 20.0, origin_bytes=30, written_bytes=20),
        ]),
        round_row(2, 50.0, 0.7, start_s=20.0, selected=[0, 2], counted=[0], failed=[2], staged=[]),
    ]  # fmt: skip
    clients = [
        client_row(1, 0, requests=10, hits=0, misses=10, unique_samples=8, hit_bytes=0,
                   origin_bytes=1000, written_bytes=400, effective_samples=7.5, skipped=1,
                   stall_s=5.0, duration_s=20.0),
        client_row(1, 1, "late", requests=10, hits=2, misses=8, unique_samples=10,
                   hit_bytes=300, origin_bytes=800, written_bytes=100, effective_samples=9.5,
                   stall_s=10.0, duration_s=30.0),
        client_row(2, 0, requests=20, hits=8, staged=3, misses=12, unique_samples=6, hit_bytes=900,
                   origin_bytes=1200, written_bytes=0, effective_samples=4.0, skipped=2,
                   duration_s=30.0),
        client_row(2, 2, "failed", problem="ValueError: no data"),
    ]  # fmt: skip
    holdout = {"accuracy": [0.9, 0.4, None, 0.6], "samples": [5, 5, 0, 5]}
    config = experiment(chosen={"staging": True, "form": "best"})
    return read_run(write_run(path, config, rounds, clients, holdout=holdout))


def test_figures_of_an_arm_by_hand(tmp_path: Path) -> None:
    run = by_hand(tmp_path / "run")
    figures = arm_figures([run], 0.8, [run])
    assert set(figures) >= ARM_KEYS
    expected = {
        "name": "uniform+lru",
        "kind": "arm",
        "seeds": [0],
        "time_to_target_s": None,
        "speedup": None,
        "final_accuracy": pytest.approx(0.6),
        "final_accuracy_spread": None,
        "worst_decile_accuracy": 0.4,  # the lowest one of three
        "never_selected_accuracy": 0.6,  # client 3
        "hit_ratio": pytest.approx(10 / 40),
        "staged_ratio": pytest.approx(3 / 40),
        "byte_hit_ratio": pytest.approx(1200 / 4200),  # of what training read
        "unique_samples_per_round": pytest.approx(24 / 2),
        "coverage": pytest.approx(3 / 4),
        "never_selected": 1,
        "effective_samples_per_round": pytest.approx(21 / 2),
        "skipped_samples": 3,
        "stall_share": pytest.approx(15 / 80),
        "origin_bytes": 3000 + 100,  # nothing is staged for free
        "written_bytes": 500 + 80,
        "staging_origin_bytes": 100,
        "staging_written_bytes": 80,
        "prefetch": True,
        "form": "best",
        "staging": True,
        "jain_index": pytest.approx(16 / (4 * 6)),  # 2, 1, 1, 0
        "virtual_s": 50.0,
        "late": 1,
        "failed": 1,
    }
    assert {key: figures[key] for key in expected} == expected


def test_a_run_from_before_reading_ran_ahead_still_has_its_figures(tmp_path: Path) -> None:
    seconds = dict(zip(PHASES, [1.0, 4.0, 0.5, 2.0, 1.5, None, 6.0, 3.0], strict=True))
    row = client_row(1, 0, requests=10, hits=4, unique_samples=8, duration_s=18.0, **seconds)
    for key in ("stall_s", "effective_samples", "skipped", "depth", "readers"):
        del row[key]
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 18.0, 0.5)]
    run = read_run(write_run(tmp_path / "run", experiment(), rounds, [row]))
    assert stall_s(run.clients[0]) == 8.0  # all that storage and decoding took
    figures = arm_figures([run], 0.8, [run])
    assert figures["stall_share"] == pytest.approx(8 / 18)
    assert (figures["effective_samples_per_round"], figures["skipped_samples"]) == (None, None)
    assert (figures["prefetch"], figures["form"], figures["staging"]) == (False, "encoded", False)
    assert figures["unique_samples_per_round"] == 8
    text = " ".join(lines_of(compare_json([run])))
    assert "In every arm reading and training take turns, samples are cached encoded" in text
    assert not {"effective", "skipped", "staged"} & set(text.split())


def test_seconds_of_stall_are_as_told_and_unknown_where_it_failed() -> None:
    assert stall_s(client_row(1, 0, stall_s=2.5, duration_s=9.0)) == 2.5
    assert stall_s(client_row(1, 0, "failed")) is None


def one_arm(path: Path, arm: str, chosen: Row | None = None, **counts: Any) -> Run:
    """A run of one round and one participation."""
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 20.0, 0.5)]
    clients = [client_row(1, 0, duration_s=20.0, **counts)]
    config = experiment(arm, chosen=chosen or {})
    return read_run(write_run(path / arm, config, rounds, clients))


def test_columns_are_shown_where_they_say_something(tmp_path: Path) -> None:
    def shown(*runs: Run) -> set[str]:
        groups = tables(compare_json(runs)["arms"]).values()
        found = {column.title for group in groups for column in group}
        return found & OPTIONAL - {"reached"}  # here nothing ever is

    plain = one_arm(tmp_path, "a", unique_samples=10, effective_samples=10.01)
    assert shown(plain) == set()
    for arm, (title, chosen, counts) in {
        "b": ("reads", {"prefetch": False}, {}),
        "c": ("cached", {"form": "prepared"}, {}),
        "d": ("stages", {"staging": True}, {}),
        "e": ("staged", {}, {"requests": 10, "hits": 1, "staged": 1}),
        "p": ("aggregates", {"aggregation": "fedadam"}, {}),
        "q": ("per step", {"normalisation": "fednova"}, {}),
        "r": ("steps", {"local_work": "together"}, {}),
        "f": ("stall", {}, {"stall_s": 1.0}),
        "g": ("effective", {}, {"unique_samples": 10, "effective_samples": 9.0}),
        "h": ("skipped", {}, {"skipped": 1}),
    }.items():
        assert shown(plain, one_arm(tmp_path, arm, chosen, **counts)) == {title}


def test_what_all_arms_do_alike_is_said_once(tmp_path: Path) -> None:
    def said(*runs: Run) -> str:
        return " ".join(line for line in table.notes(compare_json(runs)) if "In every arm" in line)

    a, b = one_arm(tmp_path, "a"), one_arm(tmp_path, "b", {"form": "prepared"})
    c = one_arm(tmp_path, "c", {"form": "best", "staging": True, "prefetch": False})
    assert said(a) == (
        "In every arm reading overlaps training, samples are cached encoded and nothing is staged."
    )
    assert said(a, b) == "In every arm reading overlaps training and nothing is staged."
    assert said(c) == (
        "In every arm reading and training take turns, samples are cached in the form that saves "
        "more per byte and who trains next fills its cache while it is idle."
    )
    assert said(a, c) == ""


def test_arms_that_differ_in_all_of_it_fit_eighty_columns(tmp_path: Path) -> None:
    counts: Row = {
        "requests": 100, "hits": 41, "staged": 11, "stall_s": 7.0, "skipped": 1234,
        "unique_samples": 1760, "effective_samples": 1650.0, "origin_bytes": 337 * 10**9,
        "hit_bytes": 20 * 10**9, "written_bytes": 337 * 10**9, "resident_samples": 31.5,
    }  # fmt: skip
    turns = {"prefetch": False, "form": "prepared", "staging": True}
    runs = [
        one_arm(tmp_path, "io_aware+static", **counts),
        one_arm(tmp_path, "uniform+static", turns, **counts),
    ]
    lines = lines_of(compare_json(runs))
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines]
    for cells in (
        "in turn prepared yes 20.0 s 35.0%",
        "337 GB 31.50 41.0% 11.0% 5.6% 337 GB",
        "1,760 1,650 1,234",
        "- 0.0% 4.00 - -",
    ):
        assert ["uniform+static", *cells.split()] in rows


def test_staging_and_what_else_must_be_known_is_beside_the_table(tmp_path: Path) -> None:
    comparison = compare_json([by_hand(tmp_path / "run")])
    assert (
        "uniform+lru: staging read 100 B of its bytes from the origin, wrote 80 B."
        in table.notes(comparison)
    )
    own = experiment(
        timing={"model": "own"},
        training={"precision": "bfloat16"},
        cache={"share": 0.5, "daily_write_bytes": 10**9},
    )
    run = read_run(write_run(tmp_path / "own", own, [round_row(0, 0.0, 0.1)]))
    text = " ".join(table.notes(compare_json([run])))
    assert (
        "Timing model own (the learning model, as the profiles measured it); learning model mlp in "
        "bfloat16." in text
    )
    assert "50% of each client's bytes, lmdb store; staging stops at 1 GB written in a day." in text
    assert "staging read" not in text


def test_stand_ins_are_no_hits_and_are_named_beside_the_table(tmp_path: Path) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 20.0, 0.5)]
    counts = {"requests": 40, "hits": 10, "misses": 25, "hit_bytes": 300, "origin_bytes": 900}
    for substituted in (0, 5):
        clients = [client_row(1, 0, **counts, substituted=substituted)]
        run = read_run(write_run(tmp_path / str(substituted), experiment(), rounds, clients))
        comparison = compare_json([run])
        (arm,) = comparison["arms"]
        assert (arm["hit_ratio"], arm["substituted_ratio"]) == (0.25, substituted / 40)
        assert arm["byte_hit_ratio"] == 0.25
        notes = [line for line in table.notes(comparison) if "stand-in" in line]
        assert len(notes) == (substituted > 0)
    assert "for 12.5% of its requests" in notes[0]


def test_worst_tenth_is_rounded_up(tmp_path: Path) -> None:
    accuracies = [0.9] * 9 + [0.2, 0.4]
    config = experiment(clients=11)
    path = write_run(
        tmp_path / "run",
        config,
        [round_row(0, 0.0, 0.1)],
        holdout={"accuracy": accuracies, "samples": [1] * 11},
    )
    run = read_run(path)
    assert arm_figures([run], 0.5, [run])["worst_decile_accuracy"] == pytest.approx(0.3)


def test_times_over_seeds_are_geometric_means_and_accuracies_means(tmp_path: Path) -> None:
    slow = [0.1, *[0.5] * 7, 0.8, 0.8, 0.8]
    runs = [
        evaluated(tmp_path / "0", [0.1, 0.5, 0.9, 0.9, 0.9], seed=0),  # 20 s, final 0.8
        evaluated(tmp_path / "1", slow, seed=1),  # 80 s, final 0.68
    ]
    figures = arm_figures(runs, 0.8, runs)
    assert figures["time_to_target_s"] == pytest.approx(40.0)
    assert figures["speedup"] == figures["speedup_low"] == figures["speedup_high"] == 1.0
    assert figures["final_accuracy"] == pytest.approx(0.74)
    assert figures["final_accuracy_spread"] == pytest.approx(0.12 / math.sqrt(2))
    unreached = [*runs, evaluated(tmp_path / "2", [0.1, 0.2], seed=2)]
    assert arm_figures(unreached, 0.8, runs)["time_to_target_s"] is None


def two_arms(folder: Path, **config: Any) -> list[Run]:
    """`a` reaches 0.8 after 10 s and `b` after 30 s."""
    runs = []
    for arm, start in (("a", 1), ("b", 3)):
        accuracies = [0.1] + [0.5] * (start - 1) + [0.8] * 3
        rounds = [round_row(r, 10.0 * r, value) for r, value in enumerate(accuracies)]
        runs.append(read_run(write_run(folder / arm, experiment(arm, **config), rounds)))
    return runs


def test_comparison_object(tmp_path: Path) -> None:
    comparison = compare_json(two_arms(tmp_path), target=0.8, reference="b")
    assert comparison["schema"] == 1
    assert comparison["preset"] == "made-up"
    assert comparison["reference"] == "b"
    assert comparison["target_accuracy"] == 0.8
    assert comparison["seeds"] == [0]
    assert comparison["io_to_compute"] == 1.25
    assert comparison["command"] == "fedio compare made-up"
    assert comparison["instruction_set"] == "AVX2"
    assert comparison["versions"] == {"fedio": "0.1.0", "torch": "2.14.1"}
    assert [arm["name"] for arm in comparison["arms"]] == ["a", "b"]
    assert [arm["speedup"] for arm in comparison["arms"]] == pytest.approx([3.0, 1.0])


def test_what_is_not_given_comes_from_the_experiment(tmp_path: Path) -> None:
    plain = compare_json(two_arms(tmp_path / "plain"))
    assert (plain["reference"], plain["target_accuracy"], plain["preset"]) == ("a", 0.8, "made-up")
    section = {"arms": ["b", "a"], "reference": "b", "target_accuracy": 0.4}
    runs = two_arms(tmp_path / "named", arms={"a": {}, "b": {}}, compare=section)
    named = compare_json(runs)
    assert (named["reference"], named["target_accuracy"]) == ("b", 0.4)
    assert [arm["name"] for arm in named["arms"]] == ["b", "a"]
    assert compare_json(runs[:1])["reference"] == "a"  # its reference is not among these


def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    a, b = two_arms(tmp_path)
    with pytest.raises(InputError, match="'c'"):
        compare_json([a, b], reference="c")
    with pytest.raises(InputError, match="no runs"):
        compare_json([])
    with pytest.raises(InputError, match="both hold a with seed 0"):
        group_by_arm([a, b, a])
    changed = evaluated(tmp_path / "changed", [0.1], arm="a", seed=1, kind="bound")
    with pytest.raises(InputError, match="different things by arm a"):
        group_by_arm([a, changed])
    other = evaluated(tmp_path / "other", [0.1], arm="b", training={"lr": 0.5})
    with pytest.raises(InputError, match=r"training\.lr"):
        group_by_arm([a, other])


def test_runs_by_different_clocks_are_refused_in_one_line(tmp_path: Path) -> None:
    def run(name: str, seed: int, **config: Any) -> Run:
        return evaluated(tmp_path / name, [0.1, 0.2], seed=seed, **config)

    virtual, wall = run("a", 0), run("b", 1, engine={"clock": "wall"})
    with pytest.raises(InputError, match=r"virtual time and .* device time at pace 'profile'; "):
        compare_json([virtual, wall])
    hurried = run("c", 2, engine={"clock": "wall"}, emulation={"pace": "none"})
    with pytest.raises(InputError, match="at pace 'none'; they do not compare: report them apart"):
        compare_json([wall, hurried])
    watched = run("d", 3, engine={"clock": "wall"}, emulation={"telemetry_s": 5.0})
    assert compare_json([wall, watched])["clock"] == "wall"


def test_device_time_is_called_so_and_who_could_not_keep_up_is_counted(tmp_path: Path) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 20.0, 0.5), round_row(2, 50.0, 0.5)]
    clients = [
        wall_row(1, 0),
        wall_row(1, 1, behind_s=0.5),  # just kept up
        wall_row(1, 2, behind_s=0.51),
        wall_row(2, 3, "failed"),
    ]
    config = experiment(engine={"clock": "wall"})
    run = read_run(write_run(tmp_path / "run", config, rounds, clients))
    comparison = compare_json([run])
    (arm,) = comparison["arms"]
    assert comparison["clock"] == "wall"
    assert (arm["device_s"], arm["round_s"]) == (50.0, 25.0)
    assert "virtual_s" not in arm
    assert arm["behind_share"] == pytest.approx(1 / 3)
    lines = lines_of(comparison)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "All seconds are device time" in text
    assert "seconds are virtual" not in text
    assert "uniform+lru 25.0 s 33.3%" in text


def test_faults_and_what_became_of_those_they_struck_are_listed(tmp_path: Path) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 20.0, 0.5)]
    clients = [
        client_row(1, 0, "failed", faults=["kill"]),
        client_row(1, 1, "late", faults=["slow_storage", "stop"]),
        client_row(1, 2, faults=["slow_storage"]),
        client_row(1, 3, faults=[]),
    ]
    comparison = compare_json(
        [read_run(write_run(tmp_path / "run", experiment(), rounds, clients))]
    )
    assert comparison["faults"] == {
        "kill": {"injected": 1, "outcomes": {"failed": 1}},
        "slow_storage": {"injected": 2, "outcomes": {"counted": 1, "late": 1}},
        "stop": {"injected": 1, "outcomes": {"late": 1}},
    }
    assert "slow storage 2 1 counted, 1 late" in " ".join(" ".join(lines_of(comparison)).split())
    assert "clock_error" not in comparison
    spared = read_run(write_run(tmp_path / "spared", experiment(), rounds, clients[3:]))
    assert "none struck" in " ".join(lines_of(compare_json([spared])))
    plain = read_run(write_run(tmp_path / "plain", experiment(), rounds))
    assert "faults" not in compare_json([plain])


def test_table_shows_every_figure_within_eighty_columns(tmp_path: Path) -> None:
    a, b = two_arms(tmp_path)
    lines = lines_of(compare_json([a, b], target=0.8, reference="b"))
    assert max(map(len, lines)) <= 80
    assert [line.split()[1:] for line in lines if line.startswith("a ")][:2] == [
        ["10.0", "s", "3.00"], ["80.0%"],
    ]  # fmt: skip
    text = " ".join(lines)
    for column in table.COLUMNS:
        if column.title not in OPTIONAL:
            assert column.title in text
            assert column.legend in " ".join(text.split())
    assert "I/O : compute 1.25" in text
    assert "Timing model mobilenet; learning model mlp" in text
    assert "All seconds are virtual" in text
    assert "not inflated" in text


def test_table_says_what_ends_rounds_and_when_devices_are_there(tmp_path: Path) -> None:
    rounds = {"cohort": 2, "rounds": 5, "deadline_s": [[1, 60.0], [4, 30.0]], "late": "cancel"}
    presence = {"kind": "periodic", "period_s": 600.0, "share": 0.5}
    text = " ".join(
        lines_of(compare_json(two_arms(tmp_path, rounds=rounds, availability=presence)))
    )
    assert "until a deadline of 60.0 s from round 1, 30.0 s from round 4" in text
    assert "who is late is told to stop" in text
    assert "50.0% of every 10.0 min; who leaves in mid-round aborts its work" in text


def test_table_names_nominal_sizes_kinds_failures_and_missing_seeds(tmp_path: Path) -> None:
    nominal = {
        "size_bytes": {"median": 4e6, "sigma": 0.5, "min": 1e6, "max": 2e7},
        "prepared_bytes": 150_528,
    }
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 5.0, 0.2)]
    runs = []
    for arm, seed, kind in (
        ("odd", 0, "arm"),
        ("all", 0, "bound"),
        ("all", 1, "bound"),
    ):
        config = experiment(arm, seed, kind=kind, nominal=nominal)
        failed = [client_row(1, 0, "failed")] if arm == "all" else []
        runs.append(read_run(write_run(tmp_path / f"{len(runs)}", config, rounds, failed)))
    text = " ".join(" ".join(lines_of(compare_json(runs))).split())
    assert "odd " in text
    assert "all (bound)" in text
    assert "median 4 MB, sigma 0.5, 1 MB to 20 MB; prepared 151 kB" in text
    assert "all: 2 participations failed" in text
    assert "odd ran seeds 0 only" in text


def test_units() -> None:
    assert [units.seconds(value) for value in (None, 4.0, 42.0, 600.0, 7200.0)] == [
        "-", "4.00 s", "42.0 s", "10.0 min", "2.00 h",
    ]  # fmt: skip
    assert [units.size(value) for value in (None, 12, 1500, 999_600, 2.5e9, 3e12)] == [
        "-", "12 B", "1.5 kB", "1 MB", "2.5 GB", "3 TB",
    ]  # fmt: skip
    assert [units.percent(value) for value in (None, 0.5)] == ["-", "50.0%"]
    assert [units.number(value) for value in (None, 1.234, 1234.5)] == ["-", "1.23", "1,234"]
