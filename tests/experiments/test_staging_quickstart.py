"""Staging on the quickstart's fleet: clients hold what cache and idle window allow for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clients.prepare import prepare
from experiments.engines import inline
from fedio.loading import find, load
from fedio.profiles import fleet_of
from fedio.runs import RunFolder, read_run


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lru", "next_use"])
def test_staging_serves_what_cache_and_window_allow_for(tmp_path: Path, policy: str) -> None:
    overrides = ["rounds.rounds=10"]
    experiment = load(find("quickstart"), overrides).for_arm(f"uniform+{policy}+staging")
    inline.run(experiment, RunFolder.create(tmp_path / "run", experiment))
    run, data = read_run(tmp_path / "run"), prepare(experiment)
    _, speeds = fleet_of(experiment)
    served = []
    for row in run.rounds:
        for staged in row.get("staged", ()):
            client, needed = staged["client"], staged["needed_samples"]
            sizes = data.size_bytes[data.samples_of(client)]
            origin = speeds.take(client).origin
            in_window = staged["window_s"] / float(origin.read_s(1, sizes.mean()))
            in_cache = experiment.cache.budget_of(int(sizes.sum())) / sizes.mean()
            could = min(needed, in_cache, staged["held_samples"] + in_window) / needed
            served.append((staged["held_samples"] + staged["staged_samples"]) / needed / could)
            assert staged["seconds"] <= staged["window_s"]
    assert len(served) > 80
    assert np.mean(served) >= 0.9
