"""Drawn images as real JPEG files: a data set that needs nothing, with sizes of its own.

The side length is log-normal and sets the size of the file. A seed and the arguments determine
every byte (for one version of Pillow and NumPy).
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator, validate_call

from clients.datasets import stored
from clients.datasets.dataset import Dataset, Images, Split
from clients.datasets.drawing import MAX_CLASSES, draw
from fedio.config import Section
from storage.origin import FileOrigin

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Pixels = Annotated[int, Field(ge=16, le=8192)]


class Drawing(Section):
    """What determines the files.

    Attributes:
        samples: training images.
        test_samples: test images.
        classes: kinds of image, equally frequent.
        median_side_px: median side length.
        sigma: spread of the logarithm of the side length.
        min_side_px: shortest side.
        max_side_px: longest side.
        quality: JPEG quality.
        seed: of all random choices.
    """

    samples: Count = 2000
    test_samples: Count = 400
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] = 10
    median_side_px: Pixels = 112
    sigma: Annotated[float, Field(ge=0, le=2)] = 0.4
    min_side_px: Pixels = 48
    max_side_px: Pixels = 256
    quality: Annotated[int, Field(ge=1, le=95)] = 85
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min_side_px <= self.median_side_px <= self.max_side_px:
            raise ValueError("needs min_side_px <= median_side_px <= max_side_px")
        return self


@validate_call
def load(home: Path, size: Annotated[int, Field(ge=4, le=1024)] = 32, **args: Any) -> Split:
    """Return the drawn images, decoded to size x size; `args` are the fields of `Drawing`.

    The files are made the first time, in folders of torchvision's ImageFolder layout.
    """
    drawing = Drawing(**args)
    values = json.dumps(drawing.model_dump(), sort_keys=True)
    name = f"photos-{hashlib.sha256(values.encode()).hexdigest()[:16]}"
    return stored.once(
        home / "datasets" / name, partial(_make, drawing), partial(_open, drawing, size)
    )


def _make(drawing: Drawing, folder: Path) -> None:
    parts = {"train": drawing.samples, "test": drawing.test_samples}
    for number, (part, samples) in enumerate(parts.items()):
        rng = np.random.default_rng(np.random.SeedSequence(drawing.seed, spawn_key=(number,)))
        labels = rng.permutation(np.arange(samples) % drawing.classes)
        for label in range(drawing.classes):
            (folder / part / f"{label:02d}").mkdir(parents=True)
        np.save(folder / f"{part}-labels.npy", labels.astype(np.int64))
        sides = drawing.median_side_px * np.exp(drawing.sigma * rng.standard_normal(samples))
        sides = sides.clip(drawing.min_side_px, drawing.max_side_px).round().astype(int)
        for path, label, side in zip(_files(folder / part, labels), labels, sides, strict=True):
            image = draw(int(label), int(side), rng)
            image.save(path, "JPEG", quality=drawing.quality)
    stored.seal(folder, drawing.model_dump())


def _open(drawing: Drawing, size: int, folder: Path) -> Split:
    digest = stored.check(folder).digest
    part = partial(_part, drawing.classes, size, folder)
    return Split(part("train"), part("test"), digest)


def _part(classes: int, size: int, folder: Path, part: str) -> Dataset:
    labels = stored.array(folder / f"{part}-labels.npy")
    origin = FileOrigin(_files(folder / part, labels))
    return Dataset("photos", classes, labels, origin, Images((3, size, size)))


def _files(folder: Path, labels: np.ndarray) -> list[Path]:
    return [folder / f"{label:02d}" / f"{i:06d}.jpg" for i, label in enumerate(labels)]
