"""A small real experiment: photos, an LRU cache that evicts, over-commitment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedio.config import Experiment
from fedio.loading import load

FILE = """
name = "tiny"

[data]
clients = 6
dataset = { name = "photos", args = { samples = 120, test_samples = 40 } }

[training]
local_steps = 5
batch_size = 8
lr = 0.05
accelerator = "cpu"

[fleet]
spread = 0.3
profiles = { phone-low = 1, phone-mid = 1, phone-high = 1 }

[cache]
share = 0.7

[rounds]
rounds = 5
cohort = 2
over_commitment = 1.5

[arms.one]
selector = "oort"
policy = "lru"

[arms.two]
selector = "io_aware"
policy = "static"

[compare]
reference = "one"
target_accuracy = 0.1
"""


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def tiny_file(tmp_path: Path, data_folder: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(FILE.replace("clients = 6", f'clients = 6\nfolder = "{data_folder}"'))
    return path


@pytest.fixture
def tiny(tiny_file: Path) -> Callable[..., Experiment]:
    """Load the experiment with overrides."""

    def make(*overrides: Any) -> Experiment:
        return load(tiny_file, overrides).for_arm()

    return make
