"""A run that is interrupted goes on from its checkpoint as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedio.checkpoints import read_checkpoint, write_checkpoint
from fedio.errors import InputError
from fedio.runs import CHECKPOINT_FILE, ROUNDS_FILE, SUMMARY_FILE, Run, RunFolder
from strategies.selectors import SELECTORS
from tests.strategies.scripted_grid import Script
from tests.strategies.scripted_run import FIVE_S, play

ROUNDS = 12
SELECTIONS: list[dict[str, Any]] = [
    {"selector": name} for name in SELECTORS if name != "fedcase"
] + [
    {"selector": {"name": "fedcase", "args": {"base": base, "share": share}}}
    for base, share in (("oort", 0.5), ("uniform", "learned"))
]
AGGREGATIONS = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedavgm")
TEN_S = tuple(np.linspace(1, 20, 10).tolist())


class Interrupted(Exception):  # noqa: N818 - as from outside
    pass


def drawn(client: int, server_round: int) -> dict[str, Any]:
    """What a client answers: its own in every round, the same whenever it is asked."""
    rng = np.random.default_rng([client, server_round])
    weights = rng.normal(size=(2, 3)).astype(np.float32)
    utility = float(rng.lognormal(2, 1))
    return {"meter": {"trained_samples": 10}, "arrays": {"w": weights}, "utility": utility}


def until(last_round: int, script: Script = drawn) -> Script:
    def answer(client: int, server_round: int) -> Any:
        if server_round > last_round:
            raise Interrupted
        return script(client, server_round)

    return answer


def files(run: Run) -> list[bytes]:
    names = (ROUNDS_FILE, "clients.jsonl")
    return [(run.path / name).read_bytes() for name in names]


def assert_goes_on(folder: Path, at: int = 5, script: Script = drawn, **setting: Any) -> Run:
    """Interrupt a run after round `at`, go on, and compare with one that was not interrupted."""
    setting = {"rounds": ROUNDS, "seconds": TEN_S} | setting
    whole, _, arrays = play(folder / "whole", script, **setting)
    with pytest.raises(Interrupted):
        play(folder / "cut", until(at, script), **setting)
    resumed, grid, resumed_arrays = play(folder / "cut", script, resume=True, **setting)
    assert min(server_round for server_round, _ in grid.trained) == at + 1
    assert files(resumed) == files(whole)
    np.testing.assert_array_equal(resumed_arrays["w"].numpy(), arrays["w"].numpy())
    return whole


@pytest.mark.parametrize("arm", SELECTIONS, ids=lambda arm: str(arm["selector"]))
def test_every_selector_goes_on(tmp_path: Path, arm: dict[str, Any]) -> None:
    pytest.importorskip("sklearn")
    run = assert_goes_on(tmp_path, at=7, arm=arm, over_commitment=4 / 3)
    assert any(row["late"] for row in run.rounds)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_goes_on(tmp_path: Path, aggregation: str) -> None:
    assert_goes_on(tmp_path, arm={"aggregation": aggregation})


@pytest.mark.parametrize("at", [1, 2, ROUNDS - 1])
def test_it_goes_on_from_any_round(tmp_path: Path, at: int) -> None:
    assert_goes_on(tmp_path, at=at, arm={"selector": "oort"}, over_commitment=5 / 3)


def test_staging_and_its_days_go_on(tmp_path: Path) -> None:
    def stages(client: int, server_round: int, window_s: float) -> dict[str, int]:
        del window_s
        return {"written_samples": 1, "written_bytes": 100 + client + server_round}

    run = assert_goes_on(
        tmp_path, stages=stages, cache={"daily_write_bytes": 1500}, over_commitment=5 / 3
    )
    assert any(row["staged"] for row in run.rounds[1:])


def test_absences_go_on(tmp_path: Path) -> None:
    presence = {"kind": "random", "stay_s": 150.0, "absence_s": 80.0, "forecast_s": 50.0}
    run = assert_goes_on(
        tmp_path, availability=presence, arm={"selector": "uniform"}, deadline_s=200.0
    )
    assert any(row["left"] for row in run.rounds)
    assert any("away" in row["not_selected"] for row in run.rounds)


def test_trouble_is_remembered(tmp_path: Path) -> None:
    def script(client: int, server_round: int) -> Any:
        return ValueError("boom") if server_round in {4, 5, 6} else drawn(client, server_round)

    assert_goes_on(tmp_path, at=5, script=script, empty_rounds=4)


def test_a_run_in_whose_first_round_it_stops_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        play(tmp_path, until(0))
    assert not RunFolder(tmp_path).is_begun


def test_a_finished_run_keeps_no_checkpoint(tmp_path: Path) -> None:
    run, _, _ = play(tmp_path)
    assert (run.path / SUMMARY_FILE).is_file()
    assert not (run.path / CHECKPOINT_FILE).parent.exists()


def test_without_checkpoints_none_is_written(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        play(tmp_path, until(2), engine={"checkpoints": False})
    assert not RunFolder(tmp_path).is_begun


def test_what_was_written_after_the_checkpoint_is_taken_back(tmp_path: Path) -> None:
    whole, _, _ = play(tmp_path / "whole", drawn, rounds=4)
    with pytest.raises(Interrupted):
        play(tmp_path / "cut", until(2), rounds=4)
    for name in (ROUNDS_FILE, "clients.jsonl"):
        with (tmp_path / "cut" / name).open("a") as file:
            file.write('{"round": 3, "half a li')
    resumed, _, _ = play(tmp_path / "cut", drawn, rounds=4, resume=True)
    assert files(resumed) == files(whole)


@pytest.mark.parametrize("part", ["fleet.utility", "selector.exploration", "timeline.now_s"])
@pytest.mark.parametrize("change", ["missing", "misshapen", "flipped", "of another experiment"])
def test_a_checkpoint_that_does_not_fit_is_refused_in_a_line(
    tmp_path: Path, part: str, change: str
) -> None:
    with pytest.raises(Interrupted):
        play(tmp_path, until(2), arm={"selector": "oort"})
    file = tmp_path / CHECKPOINT_FILE
    kept = read_checkpoint(file)
    if change == "missing":
        del kept.arrays[part]
    elif change == "misshapen":
        kept.arrays["fleet.loss"] = np.ones(2)
    elif change == "of another experiment":
        kept.notes["experiment"] = "0123"
    write_checkpoint(file, kept)
    if change == "flipped":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with pytest.raises(InputError, match="run again without --resume"):
        play(tmp_path, drawn, resume=True, arm={"selector": "oort"})


@pytest.mark.parametrize("damage", ["checkpoint", "rounds"])
def test_what_is_damaged_is_not_gone_on_from(tmp_path: Path, damage: str) -> None:
    with pytest.raises(Interrupted):
        play(tmp_path, until(2), seconds=FIVE_S)
    if damage == "checkpoint":
        (tmp_path / CHECKPOINT_FILE).write_bytes(b"garbage")
    else:
        (tmp_path / ROUNDS_FILE).write_text("")
    with pytest.raises(InputError, match="without --resume"):
        play(tmp_path, drawn, resume=True)
