"""Staging in a real run: devices keep to their windows and to what a day allows."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from experiments.engines import inline
from fedio.config import Experiment
from fedio.runs import Run, RunFolder, read_run

LIMIT_BYTES = 150_000
ORIGIN = """
description = "A phone with a slow card, so that windows are too short for all that is missing"
source = "made up"
inference_ms = 1
download_bytes_per_s = 1e7
upload_bytes_per_s = 1e7
memory_bytes = 4000000000
[origin]
read_latency_s = 0.01
read_bytes_per_s = 1e6
write_latency_s = 0.01
write_bytes_per_s = 1e6
[cache]
read_latency_s = 0.0001
read_bytes_per_s = 1e8
write_latency_s = 0.001
write_bytes_per_s = 1e7
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("staging")
    profile = folder / "slow.toml"
    profile.write_text(ORIGIN)
    experiment = Experiment.model_validate(
        {
            "name": "stages",
            "data": {
                "folder": str(folder / "data"),
                "clients": 12,
                "dataset": {"name": "photos", "args": {"samples": 240, "test_samples": 20}},
            },
            "training": {"local_steps": 3, "batch_size": 8, "accelerator": "cpu"},
            "fleet": {"profiles": {str(profile): 1.0}, "spread": 1.0},
            "cache": {"share": 1.0, "store": "memory", "daily_write_bytes": LIMIT_BYTES},
            "rounds": {"rounds": 10, "cohort": 2, "over_commitment": 1.5},
            "arms": {"stages": {"staging": True}},
        }
    ).for_arm()
    inline.run(experiment, RunFolder.create(folder / "run", experiment))
    return read_run(folder / "run")


def staged(run: Run) -> list[dict[str, Any]]:
    return [row for line in run.rounds[1:] for row in line["staged"]]


def test_nobody_stages_longer_than_it_was_idle(run: Run) -> None:
    rows = staged(run)
    # The test would say nothing if all windows were wide, or all shut.
    assert any(row["staged_samples"] for row in rows)
    assert any(row["seconds"] > 0.9 * row["window_s"] for row in rows)
    assert any(row["held_samples"] + row["staged_samples"] < row["needed_samples"] for row in rows)
    for row in rows:
        assert row["seconds"] <= row["window_s"] * (1 + 1e-9)


def test_nobody_stages_more_than_a_day_allows(run: Run) -> None:
    assert run.rounds[-1]["end_s"] < 86_400
    written_bytes: dict[int, int] = defaultdict(int)
    limited = 0
    for line in run.rounds[1:]:
        for row in run.clients:
            if row["round"] == line["round"]:
                written_bytes[row["client"]] += row["written_bytes"]
        for row in line["staged"]:
            left_bytes = max(LIMIT_BYTES - written_bytes[row["client"]], 0)
            assert row["written_bytes"] <= left_bytes
            limited += left_bytes < 5_000
            written_bytes[row["client"]] += row["written_bytes"]
    assert limited


def test_what_is_staged_is_found_in_the_round_it_is_for(run: Run) -> None:
    hits = {(row["round"], row["client"]): row["staged"] for row in run.clients}
    for line in run.rounds[1:]:
        for row in line["staged"]:
            following = line["round"] + 1, row["client"]
            if row["staged_samples"] and following in hits:
                assert hits[following] > 0
    assert sum(hits.values())
    for line in run.clients:
        came = any(
            row["client"] == line["client"] and row["staged_samples"]
            for row in run.rounds[line["round"] - 1].get("staged", [])
        )
        assert came or not line["staged"]


def test_nobody_stages_for_a_round_that_does_not_come(run: Run, tmp_path: Path) -> None:
    horizon_s = run.rounds[4]["end_s"]
    values = run.experiment.model_dump(mode="json")
    values["rounds"]["horizon_s"] = horizon_s
    experiment = Experiment.model_validate(values)
    inline.run(experiment, RunFolder.create(tmp_path / "run", experiment))
    rounds = read_run(tmp_path / "run").rounds
    assert len(rounds) == 5
    assert rounds[3]["staged"] == run.rounds[3]["staged"] != []
    assert rounds[4]["staged"] == []
    assert run.rounds[4]["staged"] != []
