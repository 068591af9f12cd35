"""What a probe is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clients.datasets.dataset import Shape

MODELS = ("mlp", "cnn")
SHAPE = (3, 32, 32)
SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
NETWORK_BYTES_PER_S = 5e6


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure, and where.

    Attributes:
        folder: on the slow tier.
        cache_folder: on the fast tier.
        models: networks to train, by name, all different.
        sizes: of samples in bytes, two or more, all different.
        budget_bytes: to write at most; None: as much as usual, if there is room.
        shape: channels, height and width of the images that are trained and decoded to.
        accelerator: `auto`, `cpu`, `cuda` or `cuda:i`.
        download_bytes_per_s: assumed.
        upload_bytes_per_s: assumed.
    """

    folder: Path
    cache_folder: Path
    models: tuple[str, ...] = MODELS
    sizes: tuple[int, ...] = SIZES
    budget_bytes: int | None = None
    shape: Shape = SHAPE
    accelerator: str = "auto"
    download_bytes_per_s: float = NETWORK_BYTES_PER_S
    upload_bytes_per_s: float = NETWORK_BYTES_PER_S
