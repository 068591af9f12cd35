"""A small experiment on drawn photos that all tests of the device side share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedio.config import Experiment


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def small(data_folder: Path) -> Callable[..., Experiment]:
    """Return an experiment of 4 clients with 20 photos each; sections can be replaced."""

    def make(policy: str = "lru", **sections: dict[str, Any]) -> Experiment:
        values: dict[str, Any] = {
            "name": "small",
            "data": {
                "clients": 4,
                "folder": str(data_folder),
                "dataset": {"name": "photos", "args": {"samples": 80, "test_samples": 20}},
            },
            "training": {"local_steps": 3, "batch_size": 8, "accelerator": "cpu"},
            "rounds": {"cohort": 2},
            "cache": {"share": 0.5},
            "arms": {"a": {"policy": policy}},
        }
        for name, section in sections.items():
            values[name] = values.get(name, {}) | section
        return Experiment.model_validate(values)

    return make
