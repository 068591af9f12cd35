"""Decoding: JPEG files of several sizes, to the images that are trained."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np

from clients.datasets.dataset import Images, Shape
from clients.datasets.drawing import MAX_CLASSES, draw
from experiments.probe.points import Points
from experiments.probe.turns import in_turns

SIDES_PX = (48, 80, 112, 160, 256)
"""From the shortest to the longest side of the data set `photos`."""

QUALITY = 85
_IMAGES = 16


def measure_decoding(
    shape: Shape, rng: np.random.Generator, sides_px: Sequence[int] = SIDES_PX
) -> Points:
    """Decode drawn photos to `shape` (channels, height, width), those of each size in turns.

    A point is one image; its size is the mean of the encoded images of its side length.
    """
    works: dict[float, Callable[[], object]] = {}
    for side_px in sides_px:
        images = [_jpeg(side_px, rng) for _ in range(_IMAGES)]
        works[sum(map(len, images)) / _IMAGES] = _Decoding(images, shape)
    return in_turns(works, _IMAGES, rng)


def decoding_of(side_px: int, shape: Shape, rng: np.random.Generator) -> Callable[[], object]:
    """Return what decodes photos of that side length to `shape`."""
    return _Decoding([_jpeg(side_px, rng) for _ in range(_IMAGES)], shape)


class _Decoding:
    """Decodes the same images each time it is called."""

    def __init__(self, images: list[bytes], shape: Shape) -> None:
        self._decoder = Images(shape)
        self._buffer = np.frombuffer(b"".join(images), np.uint8)
        self._lengths = np.array(list(map(len, images)))
        self._starts = self._lengths.cumsum() - self._lengths
        self._decoded = np.empty((len(images), *shape), np.uint8)

    def __call__(self) -> None:
        self._decoder.decode(self._buffer, self._starts, self._lengths, self._decoded)


def _jpeg(side_px: int, rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    draw(int(rng.integers(MAX_CLASSES)), side_px, rng).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
