"""On what terms rounds are played: deadlines, too few replies, absences, local work."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedio.config import Rounds
from fedio.errors import FruitlessError, RunError
from strategies.capacity import COPIES_OF_THE_MODEL, fits
from strategies.fleet import Fleet
from tests.strategies.scripted_run import play, trains

FOUR_S = (1.0, 2.0, 3.0, 4.0)


def test_a_deadline_may_depend_on_the_round(tmp_path: Path) -> None:
    # Clients 0 to 3 take 10 to 40 s, all four are asked for.
    run, _, _ = play(
        tmp_path, rounds=3, seconds=FOUR_S, cohort=4, deadline_s=[[1, 25.0], [3, 100.0]]
    )
    assert [row["end_s"] for row in run.rounds] == pytest.approx([0.0, 25.0, 50.0, 90.0])
    assert [row["counted"] for row in run.rounds[1:]] == [[0, 1], [0, 1], [0, 1, 2, 3]]
    # At 25 s clients 2 and 3 are at work until 30 and 40 s, and are not asked.
    assert [row["late"] for row in run.rounds[1:]] == [[2, 3], [], []]


@pytest.mark.parametrize(
    ("deadline_s", "said"),
    [
        ([[2, 5.0]], "start at 1"),
        ([[1, 5.0], [1, 6.0]], "increase"),
        ([[1, 5.0], [9, 6.0], [5, 6.0]], "increase"),
        ([], "start at 1"),
        ([[1, -5.0]], "greater than 0"),
    ],
)
def test_impossible_deadlines(deadline_s: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Rounds(deadline_s=deadline_s)


def test_a_deadline_holds_until_the_next() -> None:
    rounds = Rounds.model_validate({"deadline_s": [[1, 50.0], [4, 30.0], [6, 20.0]]})
    assert [rounds.deadline_of(r) for r in range(1, 8)] == [50, 50, 50, 30, 30, 20, 20]
    assert Rounds().deadline_of(3) is None


def test_too_few_replies_leave_the_model_as_it_is(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> Any:
        return ValueError("boom") if client and server_round == 1 else trains(client, server_round)

    run, grid, _ = play(
        tmp_path, script, rounds=2, seconds=FOUR_S, cohort=4, minimum=2, empty_rounds=2
    )
    assert (run.rounds[1]["counted"], run.rounds[1]["unused"]) == ([], [0])
    assert run.clients[0]["outcome"] == "unused"
    second = [w for (r, _), w in zip(grid.trained, grid.received, strict=True) if r == 2]
    assert all((w == 0).all() for w in second)
    assert run.rounds[2]["counted"] == [0, 1, 2, 3]


def test_too_few_replies_again_and_again_end_the_run(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> Any:
        return ValueError("boom") if client else trains(client, server_round)

    with pytest.raises(RunError, match="3 rounds in a row"):
        play(tmp_path, script, rounds=9, cohort=5, minimum=2, empty_rounds=3)


def test_a_run_that_brings_nothing_says_why(tmp_path: Path) -> None:
    with pytest.raises(FruitlessError, match="round 1: too few replies came in time"):
        play(tmp_path / "a", cohort=5, minimum=3, deadline_s=25.0, empty_rounds=2)
    with pytest.raises(FruitlessError, match="round 1: every reply came after the deadline"):
        play(tmp_path / "b", deadline_s=5.0, empty_rounds=2)
    with pytest.raises(FruitlessError, match="all rounds brought no usable reply"):
        play(tmp_path / "c", deadline_s=5.0, empty_rounds=9)
    short = {"kind": "periodic", "period_s": 50.0, "share": 0.02}
    with pytest.raises(FruitlessError, match="went away before it was done"):
        play(tmp_path / "d", rounds=2, availability=short, seconds=(9.0, 9.0, 9.0))


def test_the_minimum_is_no_more_than_the_cohort() -> None:
    with pytest.raises(ValueError, match="minimum is 6"):
        Rounds(cohort=5, minimum=6)


def test_who_is_late_may_be_told_to_stop(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path, rounds=2, over_commitment=5 / 3, late="cancel")
    # Clients 3 and 4 would be busy until 40 and 100 s; at 30 s they are asked again.
    assert run.rounds[2]["selected"] == [0, 1, 2, 3, 4]
    assert run.rounds[1]["late"] == run.rounds[2]["late"] == [3, 4]


def absences(on_leave: str, **setting: Any) -> dict[str, Any]:
    """Four clients; client 1 is there for 15 s only, then again after 100 s."""
    return {"kind": "trace", "on_leave": on_leave} | setting


def write_stays(path: Path) -> str:
    rows = ["client,start_s,end_s", "0,0,1000", "1,0,15", "1,100,1000", "2,0,1000", "3,0,1000"]
    file = path / "stays.csv"
    file.write_text("# period_s = 1000\n" + "\n".join(rows) + "\n")
    return str(file)


def taken_by(tmp_path: Path, on_leave: str, **setting: Any) -> tuple[Any, int]:
    """Play over that trace; return the run, and which client has its row 1."""
    trace = absences(on_leave, file=write_stays(tmp_path))
    run, _, _ = play(
        tmp_path / "run", seconds=(2.0, 2.0, 2.0, 2.0), cohort=4, availability=trace, **setting
    )
    rows = [row for row in run.clients if row["round"] == 1]
    gone = [row["client"] for row in rows if row["arrival_s"] != pytest.approx(20.0)]
    assert len(gone) == 1
    return run, gone[0]


def test_who_leaves_in_mid_round_aborts(tmp_path: Path) -> None:
    # Each needs 20 s; one is gone after 15.
    run, gone = taken_by(tmp_path, "abort", rounds=7)
    first = run.rounds[1]
    assert first["left"] == [gone]
    assert first["end_s"] == pytest.approx(20.0)
    row = next(row for row in run.clients if row["client"] == gone)
    assert (row["outcome"], row["arrival_s"]) == ("left", None)
    assert run.rounds[2]["not_selected"] == {"away": 1}
    # It is back at 100 s, and asked in the round that starts then.
    asked_at = [row["start_s"] for row in run.rounds[1:] if gone in row["selected"]]
    assert asked_at == pytest.approx([0.0, 100.0, 120.0])


def test_who_leaves_in_mid_round_may_go_on_when_it_is_back(tmp_path: Path) -> None:
    # 15 s of its work are done at 15 s, and the other 5 from 100 s on.
    run, gone = taken_by(tmp_path, "resume", rounds=2)
    row = next(row for row in run.clients if row["client"] == gone)
    assert row["outcome"] == "counted"
    assert (row["arrival_s"], row["duration_s"]) == pytest.approx((105.0, 20.0))
    assert run.rounds[1]["end_s"] == pytest.approx(105.0)


def test_when_nobody_is_there_the_clock_moves_to_who_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "stays.csv"
    file.write_text("# period_s = 1000\nclient,start_s,end_s\n0,50,90\n1,70,90\n2,80,90\n")
    trace = absences("abort", file=str(file))
    run, _, _ = play(
        tmp_path / "run", rounds=1, seconds=(1.0, 1.0, 1.0), cohort=2, availability=trace
    )
    assert run.rounds[1]["start_s"] == 50.0
    assert len(run.rounds[1]["selected"]) == 1
    assert run.rounds[1]["not_selected"] == {"away": 2}


def test_who_cannot_hold_the_model_is_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(fleet: Fleet, model_bytes: float, batch_size: int) -> np.ndarray:
        fleet.speeds.memory_bytes[[1, 3]] = COPIES_OF_THE_MODEL * model_bytes
        return fits(fleet, model_bytes, batch_size)

    monkeypatch.setattr("strategies.scheduled.fits", small)
    with caplog.at_level(logging.WARNING):
        run, _, _ = play(tmp_path, rounds=2, cohort=5)
    assert run.rounds[1]["selected"] == [0, 2, 4]
    assert run.rounds[1]["not_selected"] == {"does not fit": 2}
    assert "2 of 5 clients cannot hold the model and a batch in memory" in caplog.text
    assert "1, 3" in caplog.text


def test_whoever_does_not_say_what_it_has_is_taken_to_fit() -> None:
    fleet = Fleet.unknown(4)
    fleet.mean_cached_bytes[:] = [10.0, 10.0, np.nan, 10.0]
    fleet.speeds.memory_bytes[:] = [np.nan, 400.0, 1.0, 399.0]
    assert fits(fleet, 100.0, 10).tolist() == [True, True, True, False]


def test_local_steps_let_a_cohort_finish_together(tmp_path: Path) -> None:
    run, grid, _ = play(
        tmp_path, rounds=1, seconds=(1.0, 3.0), cohort=2, arm={"local_work": "together"}
    )
    # 2 steps each on average, 3 to 1: each takes 5 samples a step.
    assert grid.asked_steps == {0: 3, 1: 1}
    assert [row["predicted_s"] for row in run.clients] == pytest.approx([15.0, 15.0])


def test_updates_count_per_step(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        del server_round
        steps, moved = ((3, 3.0), (1, 4.0))[client]
        meter = {"steps": steps, "trained_samples": 5 * steps, "step_samples": [5] * steps}
        return {"meter": meter, "arrays": {"w": np.full((2, 3), moved, np.float32)}}

    def model(arm: dict[str, Any]) -> float:
        _, _, arrays = play(
            tmp_path / str(len(arm)), script, rounds=1, seconds=(1.0, 3.0), cohort=2, arm=arm
        )
        return float(arrays["w"].numpy()[0, 0])

    # The mean of 3 and 4. With a momentum of 0.9 three gradients count (1 + 0.9 + 0.81) + 1.9 + 1
    # and one counts 1: 3.305 on average, in which each moves (3 / 5.61 + 4 / 1) / 2.
    assert model({}) == 3.5
    assert model({"normalisation": "fednova"}) == pytest.approx(3.305 * (3 / 5.61 + 4) / 2)


@pytest.mark.parametrize("aggregation", ["fedadam", "fedyogi"])
def test_what_comes_to_nothing_finite_is_left_out(tmp_path: Path, aggregation: str) -> None:
    def script(client: int, server_round: int) -> dict[str, Any]:
        # Each is finite, and its square is not.
        value = 1e30 if server_round == 2 else float(client + server_round)
        return trains(client, server_round) | {"arrays": {"w": np.full((2, 3), value, np.float32)}}

    def honest(client: int, server_round: int) -> Any:
        return ValueError("boom") if server_round == 2 else script(client, server_round)

    arm = {"aggregation": aggregation}
    run, _, arrays = play(tmp_path / "a", script, rounds=4, cohort=5, arm=arm)
    without, _, expected = play(tmp_path / "b", honest, rounds=4, cohort=5, arm=arm)
    assert run.rounds[2]["counted"] == []
    assert run.rounds[2]["unused"] == [0, 1, 2, 3, 4]
    assert run.rounds[3]["counted"] == without.rounds[3]["counted"] != []
    np.testing.assert_array_equal(arrays["w"].numpy(), expected["w"].numpy())
