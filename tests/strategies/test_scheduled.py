"""The strategy on a scripted fleet: clock, late clients, bad replies and what is written down."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedio.config import Experiment
from fedio.errors import RunError
from fedio.runs import RunFolder
from strategies.aggregations import aggregation_of
from strategies.ledger import PHASES
from strategies.scheduled import Devices, Scheduled
from strategies.selectors import Uniform
from tests.strategies.replies import meter_of
from tests.strategies.scripted_grid import Script, ScriptedGrid, speeds
from tests.strategies.scripted_run import FIVE_S, initial, play, trains


def test_rounds_of_five_clients_by_hand(tmp_path: Path) -> None:
    # All five are asked for, three count: clients 0, 1, 2 take 10, 20, 30 s for 10 samples.
    run, grid, arrays = play(tmp_path, rounds=2, over_commitment=5 / 3)
    first = run.rounds[1]
    assert (first["start_s"], first["end_s"]) == (0.0, pytest.approx(30.0))
    assert first["selected"] == [0, 1, 2, 3, 4]
    assert first["counted"] == [0, 1, 2]
    assert first["late"] == [3, 4]
    # At 30 s client 3 is busy until 40 s and client 4 until 100 s: three are left, and all count.
    second = run.rounds[2]
    assert second["selected"] == [0, 1, 2]
    assert second["not_selected"] == {"busy": 2}
    assert second["end_s"] == pytest.approx(60.0)
    assert [row["duration_s"] for row in run.clients[:5]] == pytest.approx([10, 20, 30, 40, 100])
    # Equal weights: the mean of what the counted clients sent, the late ones left out.
    assert arrays["w"].numpy() == pytest.approx(np.full((2, 3), 2.0))
    assert sorted(grid.trained)[:5] == [(1, client) for client in range(5)]


def test_a_late_client_is_back_when_its_own_work_ends(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path, rounds=8, over_commitment=5 / 3)
    asked_at = [row["start_s"] for row in run.rounds[1:] if 4 in row["selected"]]
    first_possible = min(row["start_s"] for row in run.rounds[1:] if row["start_s"] >= 100.0)
    assert asked_at[:2] == [0.0, first_possible]


def test_what_a_late_client_says_is_not_known_before_it_arrives(tmp_path: Path) -> None:
    experiment = Experiment.model_validate(
        {
            "name": "scripted",
            "data": {"clients": 5},
            "rounds": {"cohort": 3, "over_commitment": 5 / 3},
        }
    ).for_arm()
    devices = Devices(["scripted"] * 5, speeds(5, FIVE_S))
    folder = RunFolder.create(tmp_path, experiment)
    strategy = Scheduled(experiment, Uniform(), aggregation_of(experiment.chosen), devices, folder)
    grid = ScriptedGrid(devices.speeds, trains)
    strategy.start(grid, initial(), num_rounds=1)
    fleet = strategy._fleet
    assert np.isfinite(fleet.duration_s).tolist() == [True, True, True, False, False]
    assert np.isfinite(fleet.utility).tolist() == [True, True, True, False, False]
    assert fleet.times_trained.tolist() == [1, 1, 1, 0, 0]
    strategy._timeline.move_to(41.0)
    assert np.isfinite(fleet.duration_s).tolist() == [True, True, True, True, False]


def test_when_all_are_busy_the_clock_moves_to_the_first_that_is_idle(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        samples = 20 if server_round == 1 else 1
        return trains(client, server_round) | {"meter": {"trained_samples": samples}}

    run, _, _ = play(
        tmp_path, script, rounds=2, seconds=(1.0, 9.0), cohort=2, deadline_s=5.0, empty_rounds=3
    )
    assert run.rounds[1]["counted"] == []
    assert run.rounds[1]["end_s"] == 5.0
    # Client 0 is idle at 20 s, client 1 at 180 s.
    assert run.rounds[2]["start_s"] == pytest.approx(20.0)
    assert run.rounds[2]["selected"] == run.rounds[2]["counted"] == [0]
    assert run.rounds[2]["end_s"] == pytest.approx(25.0)


def test_a_run_in_which_nothing_counts_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="boom"):
        play(tmp_path, lambda *_: ValueError("boom"), rounds=2, cohort=5, empty_rounds=9)
    assert not (tmp_path / "summary.json").exists()


def test_a_bad_reply_alone_is_left_out(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        bad = {0: {"weight": 0}, 1: {"arrays": {"w": np.full((2, 3), np.nan, np.float32)}}}
        return trains(client, server_round) | bad.get(client, {})

    run, _, arrays = play(tmp_path, script, rounds=1, cohort=5)
    assert run.rounds[1]["rejected"] == [0, 1]
    assert run.rounds[1]["counted"] == [2, 3, 4]
    assert arrays["w"].numpy() == pytest.approx(np.full((2, 3), 4.0))
    rejected = {row["client"]: row["problem"] for row in run.clients if row["problem"]}
    assert rejected == {
        0: "its weight is 0, not a number of samples",
        1: "w holds values that are not finite",
    }


def test_rejected_work_takes_its_time(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        bad = {"weight": 0} if client == 4 or server_round == 1 else {}
        return trains(client, server_round) | bad

    run, _, _ = play(tmp_path, script, rounds=3, cohort=4, over_commitment=5 / 4)
    assert run.rounds[1]["rejected"] == [0, 1, 2, 3, 4]
    # All five worked for nothing, the last of them for 100 s.
    assert run.rounds[1]["end_s"] == pytest.approx(100.0)
    # Four count in the next round, at 140 s; client 4, rejected again, is busy until 200 s.
    assert run.rounds[2]["end_s"] == pytest.approx(140.0)
    assert run.rounds[3]["not_selected"] == {"busy": 1}


def test_when_all_fail_the_model_stays_and_the_next_round_goes_on(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any] | Exception:
        return ValueError("boom") if server_round == 1 else trains(client, server_round)

    run, grid, _ = play(tmp_path, script, rounds=2, cohort=5)
    assert run.rounds[1]["failed"] == [0, 1, 2, 3, 4]
    second = [w for (r, _), w in zip(grid.trained, grid.received, strict=True) if r == 2]
    assert all((w == 0).all() for w in second)
    assert run.rounds[2]["counted"] == [0, 1, 2, 3, 4]


def test_too_many_empty_rounds_end_the_run_with_the_first_traceback(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        play(tmp_path, lambda client, _: ValueError(f"boom {client}"), cohort=5, empty_rounds=2)
    said = str(caught.value)
    assert "2 rounds in a row" in said.splitlines()[0]
    assert "round 1, partition 0: ValueError('boom 0')" in said
    assert "Traceback" in said
    assert not (tmp_path / "summary.json").exists()


def test_a_client_that_never_replies_is_late_and_its_round_ends(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any] | None:
        return None if client == 2 else trains(client, server_round)

    run, _, _ = play(tmp_path, script, rounds=1, cohort=5, reply_timeout_s=0.2, deadline_s=120.0)
    assert run.rounds[1]["late"] == [2]
    assert run.rounds[1]["counted"] == [0, 1, 3, 4]
    assert run.rounds[1]["end_s"] == 120.0
    assert run.clients[2]["outcome"] == "late"


def test_a_lying_claim_misleads_no_clock(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        return trains(client, server_round) | {"utility": 1e300 if client == 4 else float("nan")}

    honest, _, _ = play(tmp_path / "a", rounds=1, cohort=5)
    lying, _, _ = play(tmp_path / "b", script, rounds=1, cohort=5)
    assert honest.rounds[1] == lying.rounds[1]


def test_held_out_accuracy_is_kept_by_client(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path, rounds=1)
    # Client 0 has no held-out sample.
    assert run.summary["holdout"]["accuracy"] == [None, 0.1, 0.2, 0.3, 0.4]
    assert run.summary["holdout"]["samples"] == [0, 1, 2, 3, 4]


def test_evaluation_is_free_and_round_0_is_the_untrained_model(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path)
    assert [row["round"] for row in run.rounds] == [0, 1, 2, 3]
    assert run.rounds[0]["end_s"] == 0.0
    assert [row["accuracy"] for row in run.rounds] == [0.0, 0.1, 0.2, 0.3]
    for before, after in zip(run.rounds, run.rounds[1:], strict=False):
        assert before["end_s"] == after["start_s"]


def test_global_random_states_are_as_before(tmp_path: Path) -> None:
    before = global_states()
    play(tmp_path)
    assert global_states() == before


def global_states() -> tuple[object, ...]:
    legacy = np.random.get_state()  # noqa: NPY002 - the very state that must not change
    return random.getstate(), str(legacy), torch.get_rng_state().tolist()


def test_node_ids_change_nothing(tmp_path: Path) -> None:
    def rows(path: Path) -> list[Any]:
        return [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]

    play(tmp_path / "a", rounds=3)
    original = ScriptedGrid.__init__

    def renumbered(self: ScriptedGrid, devices: Any, script: Script) -> None:
        original(self, devices, script, {10**15 - 31 * i: i for i in range(len(FIVE_S))})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedGrid, "__init__", renumbered)
        play(tmp_path / "b", rounds=3)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def test_a_line_has_all_counts_and_phases_and_they_add_up(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        steps = {"steps": 2, "misses": 6, "step_misses": [3, 3], "depth": 2, "effective_samples": 5}
        return trains(client, server_round) | {
            "meter": {"trained_samples": 10, "step_samples": [5, 5], **steps}
        }

    run, _, _ = play(tmp_path, script, rounds=1, cohort=5)
    line = run.clients[1]
    assert {name: line[name] for name in ("depth", "misses", "effective_samples", "refused")} == {
        "depth": 2,
        "misses": 6,
        "effective_samples": 5.0,
        "refused": 0,
    }
    assert meter_of().totals.keys() <= line.keys()
    assert not any(name.startswith("step_") for name in line)
    assert all(line[phase] >= 0 for phase in PHASES)
    assert line["compute_s"] == 20.0
    parts = ("download_s", "stall_s", "compute_s", "upload_s")
    assert line["duration_s"] == pytest.approx(sum(line[part] for part in parts))
