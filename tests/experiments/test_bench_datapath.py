"""The benchmark of the data path: what it does, at a tiny scale; its times are nobody's test."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from clients.device import Host
from experiments.bench import BENCHES, datapath, measure
from experiments.bench.datapath_loader import LoaderSide
from experiments.bench.measure import Row

TINY = datapath.Setting(side_px=40, size_px=8, model="mlp", batch=4, steps=3, samples=12)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.slow
def test_every_ratio_is_measured_beside_all_three_references() -> None:
    with patch.object(measure, "REPETITIONS", 1):
        rows = list(datapath.rows((TINY,)))
    assert BENCHES["datapath"] is datapath.rows
    assert [row.reference for row in rows] == 3 * ["sum", "max", "dataloader"]
    assert [row.setting["compute_to_io"] for row in rows[::3]] == ["2:1", "1:1", "1:2"]
    assert all(isinstance(row, Row) and row.ratio > 0 and row.value > 0 for row in rows)


def test_all_sides_train_the_same_batches(tmp_path: Path) -> None:
    host = Host(datapath.experiment_of(TINY, prefetch=True), tmp_path / "run")
    side = datapath._Side(host, TINY)
    loader = LoaderSide(host.device(0).data, host, side.order, TINY.batch)
    with loader:
        theirs = [(images.copy(), labels) for images, labels, _ in loader._batches()]
    assert len(theirs) == len(side._held) == TINY.steps
    for (images, labels), (own_images, own_labels, _) in zip(theirs, side._held, strict=True):
        np.testing.assert_array_equal(images, own_images)
        np.testing.assert_array_equal(labels, own_labels)
    side.train()
    host.close()
    assert len(side.fills_s) == 1
