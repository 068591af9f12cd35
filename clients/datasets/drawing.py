"""Draw one image of a class: a textured shape of the class's colour on a noisy background.

What tells the class: shape, texture, and a range of hues that overlaps with the next one. What does
not: place, size, angle, brightness, background, a small second shape that distracts, and noise.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable

import numpy as np
from PIL import Image

SHAPES: tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], ...] = (
    lambda x, y: np.hypot(x, y) < 0.9,  # disc
    lambda x, y: np.maximum(abs(x), abs(y)) < 0.8,  # square
    lambda x, y: (y < 0.7) & (y > 2 * abs(x) - 1),  # triangle
    lambda x, y: abs(np.hypot(x, y) - 0.75) < 0.25,  # ring
    lambda x, y: (np.minimum(abs(x), abs(y)) < 0.28) & (np.maximum(abs(x), abs(y)) < 1),  # cross
)
TEXTURES: tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], ...] = (
    lambda x, _: np.ones_like(x),  # plain
    lambda x, _: np.where(np.mod(x * 1.7, 1) < 0.5, 1.0, 0.35),  # stripes
    lambda x, y: (
        np.where(np.mod(x * 1.5, 1) < 0.5, 1.0, 0.35)  # checks
        * np.where(np.mod(y * 1.5, 1) < 0.5, 1.0, 0.6)
    ),
)
MAX_CLASSES = len(SHAPES) * len(TEXTURES)


def draw(label: int, side_px: int, rng: np.random.Generator) -> Image.Image:
    """Return an RGB image of `side_px` x `side_px` that shows class `label`."""
    shape = label % len(SHAPES)
    texture = label // len(SHAPES)
    axis = np.linspace(-1, 1, side_px, dtype=np.float32)
    background = _hue(rng.random(), saturation=rng.uniform(0, 0.3), value=rng.uniform(0.1, 0.4))
    slope = rng.uniform(-0.15, 0.15, 2).astype(np.float32)
    light = slope[0] * axis[:, None] + slope[1] * axis + 1
    pixels = light[..., None] * background
    _place(pixels, axis, int(rng.integers(len(SHAPES))), (0.1, 0.16), _hue(rng.random()), None, rng)
    hue = shape / len(SHAPES) + rng.normal(0, 0.06)
    _place(pixels, axis, shape, (0.5, 0.75), _hue(hue, value=rng.uniform(0.7, 1)), texture, rng)
    pixels += rng.normal(0, 0.04, pixels.shape).astype(np.float32)
    return Image.fromarray((pixels.clip(0, 1) * 255).astype(np.uint8))


def _place(  # noqa: PLR0913, PLR0917
    pixels: np.ndarray,
    axis: np.ndarray,
    shape: int,
    radius: tuple[float, float],
    colour: np.ndarray,
    texture: int | None,
    rng: np.random.Generator,
) -> None:
    """Paint a shape of a random radius, place and angle over float32 `pixels` [h, w, 3]."""
    size = np.float32(rng.uniform(*radius))
    room = 1 - float(size)
    centre_x, centre_y = rng.uniform(-room, room, 2).astype(np.float32)
    angle = np.float32(rng.uniform(-0.35, 0.35))
    x0, y0 = (axis - centre_x) / size, ((axis - centre_y) / size)[:, None]
    x, y = np.cos(angle) * x0 + np.sin(angle) * y0, np.cos(angle) * y0 - np.sin(angle) * x0
    inside = SHAPES[shape](x, y)
    shade = TEXTURES[texture or 0](x[inside], y[inside])
    pixels[inside] = shade[:, None] * colour


def _hue(hue: float, saturation: float = 0.8, value: float = 0.8) -> np.ndarray:
    """Return float32 RGB in 0 .. 1; `hue` counts turns of the colour circle."""
    return np.asarray(colorsys.hsv_to_rgb(hue % 1, saturation, value), np.float32)
