"""Gigabytes of photos as files: a few hundred are drawn, and stored under many names."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clients.datasets.drawing import draw
from experiments.probe.decoding import QUALITY

CLASSES, DRAWN = 5, 120
MEDIAN_SIDE_PX, SIGMA, LEAST_SIDE_PX, MOST_SIDE_PX = 850, 0.35, 300, 1900
TEST_FILES = 20


def write_photos(
    folder: Path, total_bytes: int, rng: np.random.Generator, say: Callable[[str], None]
) -> int:
    """Write photos in train/<class>/ and test/<class>/; returns how many are for training.

    Contents repeat, files do not: to the disk each is one of its own.

    Args:
        folder: where to.
        total_bytes: of all files for training, about.
        rng: what to draw from.
        say: is told what is being done.
    """
    say(f"drawing {DRAWN} photos")
    drawn = [_photo(i % CLASSES, rng) for i in range(DRAWN)]
    count = round(total_bytes / np.mean(list(map(len, drawn))))
    say(f"writing {count} files of {total_bytes / 1e9:.1f} GB")
    for part, files in (("train", count), ("test", TEST_FILES)):
        for label in range(CLASSES):
            (folder / part / str(label)).mkdir(parents=True)
        for i in range(files):
            (folder / part / str(i % CLASSES) / f"{i:06d}.jpg").write_bytes(drawn[i % DRAWN])
    return count


def _photo(label: int, rng: np.random.Generator) -> bytes:
    side = np.clip(
        MEDIAN_SIDE_PX * np.exp(SIGMA * rng.standard_normal()), LEAST_SIDE_PX, MOST_SIDE_PX
    )
    file = io.BytesIO()
    draw(label, int(side), rng).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
