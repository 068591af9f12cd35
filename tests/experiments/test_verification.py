"""Verifying the clock on this machine: what is done and counted; what it finds is nobody's test."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from experiments import probe as probes
from experiments.cli import main
from experiments.probe import verification
from experiments.probe.verification import ARMS, CASES, PHASES, Amount

TINY = Amount(cycles=1, photo_bytes=3_000_000, probed_files=2)


@pytest.mark.slow
def test_every_phase_is_predicted_of_real_participations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"SAMPLES_EACH": 40, "PROBED_SIDES_PX": (48, 96), "STEPS": 2, "BATCH": 6, "SIZE_PX": 16}
    small["PROBED_BYTES"] = (4096, 16384)
    with (
        patch.multiple(verification, **small),
        patch.multiple("experiments.probe.photo_files", DRAWN=10, MEDIAN_SIDE_PX=300),
        patch.object(probes, "Amount", lambda: TINY),
    ):
        code = main(["probe", str(tmp_path), "--verify", "--json", str(tmp_path / "found.json")])
    assert code == 0
    found = json.loads((tmp_path / "found.json").read_text())
    keys = [(row["case"], row["arm"], row["phase"]) for row in found["rows"]]
    phases = [phase.removesuffix("_s") for phase in PHASES]
    assert keys == [(c, a, p) for c in CASES for a in (None, *ARMS) for p in phases]
    assert all(
        row["share"] >= 0 and row["error_p95"] >= row["error_median"] for row in found["rows"]
    )
    assert {row["participations"] for row in found["rows"] if row["arm"] is None} == {18}
    assert found["slowdown"] >= 1
    assert "times as long while both go on" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(tmp_path), "--verify", "--out", str(tmp_path / "x.toml")]) == 2
    assert "--verify writes no profile" in capsys.readouterr().err
    with patch.object(probes, "Amount", lambda: Amount(photo_bytes=10**18)):
        assert main(["probe", str(tmp_path), "--verify"]) == 2
    assert "free, and" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
