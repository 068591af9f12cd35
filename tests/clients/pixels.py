"""A data set of pixels, for experiments: `dataset = "tests.clients.pixels:load"`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clients.datasets import Dataset, Split
from clients.datasets.dataset import Pixels
from storage import ArrayOrigin

SHAPE = (3, 8, 8)


def load(home: Path, samples: int = 80) -> Split:
    """Noise, a little brighter for each class."""
    del home
    return Split(_part(samples, 0), _part(20, 1), f"noise {samples}")


def _part(samples: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % 10)
    noise = rng.integers(0, 100, (samples, *SHAPE))
    pixels = (noise + 15 * labels[:, None, None, None]).astype(np.uint8)
    return Dataset("noise", 10, labels, ArrayOrigin(pixels), Pixels(SHAPE))
