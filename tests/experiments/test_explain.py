"""A round explained: who, why, predicted and actual seconds, and what became of the others."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from experiments.explain import explain_round, explain_run, print_round
from fedio.errors import InputError
from fedio.runs import Run, read_run
from tests.experiments.synthetic_runs import (
    client_row,
    experiment,
    round_row,
    staged_row,
    write_run,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    rounds = [
        round_row(0, 0.0, 0.1),
        round_row(
            1, 12.5, 0.5, selected=[0, 2, 3], counted=[2], late=[3], failed=[0],
            not_selected={"busy": 1, "not drawn": 84},
            staged=[staged_row(7, 9.25, seconds=8.5, origin_bytes=2_500_000, written_bytes=150)],
        ),
        round_row(2, 30.0, None, start_s=12.5, wanted=1, staged=[]),
    ]  # fmt: skip
    clients = [
        client_row(
            1, 2, details={"score": 0.25, "rank": 3}, predicted_s=11.0, duration_s=12.5,
            download_s=1.0, origin_s=2.0, cache_s=0.25, decode_s=3.0, stall_s=7.0, compute_s=4.0,
            write_s=1.5, upload_s=0.5,
        ),
        client_row(1, 0, "failed", problem="ValueError: [red]no data[/red]", predicted_s=9.0),
    ]  # fmt: skip
    return read_run(write_run(tmp_path / "run", experiment(), rounds, clients))


def printed(run: Run, server_round: int) -> str:
    text = io.StringIO()
    print_round(Console(width=80, file=text), run, server_round)
    return text.getvalue()


def test_who_why_and_how_long(run: Run) -> None:
    explanation = explain_round(run, 1)
    assert [(one.client, one.outcome) for one in explanation.participations] == [
        (0, "failed"),
        (2, "counted"),
        (3, "late"),  # it left no row of its own
    ]
    failed, counted, late = explanation.participations
    assert counted.why == "explore, score 0.25, rank 3"
    assert (counted.predicted_s, counted.actual_s) == (11.0, 12.5)
    assert counted.phases_s == {
        "download": 1.0, "stall": 7.0, "compute": 4.0, "upload": 0.5,
        "origin": 2.0, "cache": 0.25, "decode": 3.0, "write": 1.5,
    }  # fmt: skip
    assert (failed.predicted_s, failed.actual_s, failed.phases_s) == (9.0, None, {})
    assert failed.problem == "ValueError: [red]no data[/red]"
    assert (late.why, late.predicted_s) == ("-", None)
    assert explanation.not_selected == {"busy": 1, "not drawn": 84}


def test_printed_round_holds_everything_literally(run: Run) -> None:
    text = printed(run, 1)
    assert "Round 1: 12.5 s, from 0.0 s to 12.5 s; wanted 2, selected 3" in text
    assert "(1 counted, 1 late, 1 failed); accuracy 50.0%" in " ".join(text.split())
    assert "Client 0 failed: ValueError: [red]no data[/red]" in text
    assert "Not selected, busy: 1" in text
    assert "Not selected, not drawn: 84" in text
    rows = [line.split() for line in text.splitlines()]
    for cells in (
        "2 phone-mid counted 11.0 s 12.5 s explore, score 0.25, rank 3",
        "client download stall compute upload busy: origin cache decode write",
        "2 1.00 7.00 4.00 0.50 2.00 0.25 3.00 1.50",
        "0 - - - - - - - -",
    ):
        assert cells.split() in rows


def test_rounds_without_clients_are_explained_too(run: Run) -> None:
    assert printed(run, 0) == "Round 0: the untrained model, accuracy 10.0%\n"
    assert "selected 0 (none replied); accuracy not evaluated" in " ".join(printed(run, 2).split())


def test_what_was_staged_in_a_round_is_listed(run: Run) -> None:
    text = printed(run, 1)
    assert "Staged for round 2 by who was idle" in text
    rows = [line.split() for line in text.splitlines()]
    for cells in (
        "client idle took needed held staged from origin written",
        "7 9.2 s 8.5 s 160 20 30 2.5 MB 150 B",
    ):
        assert cells.split() in rows
    assert "Staged" not in printed(run, 2)
    assert explain_round(run, 0).staged == []


def test_a_stall_that_was_not_told_is_what_was_neither_network_nor_compute(tmp_path: Path) -> None:
    row = client_row(1, 2, duration_s=12.0, download_s=1.0, compute_s=4.0, upload_s=0.5)
    del row["stall_s"]
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 12.0, 0.5, selected=[2], counted=[2])]
    old = read_run(write_run(tmp_path / "old", experiment(), rounds, [row]))
    (one,) = explain_round(old, 1).participations
    assert one.phases_s["stall"] == 6.5


def test_every_round_of_a_run(run: Run) -> None:
    explained = explain_run(run)
    assert [one.row["round"] for one in explained] == [0, 1, 2]
    assert explained[1] == explain_round(run, 1)


def test_a_round_that_is_not_there(run: Run) -> None:
    with pytest.raises(InputError, match="no round 3: name one from 0 to 2"):
        explain_round(run, 3)
