"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour photos of ten kinds, 32 x 32."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from clients.datasets import arrays
from clients.datasets.dataset import Split
from fedio.errors import InputError


def load(home: Path) -> Split:
    """Return CIFAR-10; torchvision reads it, and downloads it if it is in no usual folder.

    Raises:
        InputError: it is nowhere to be found.
    """
    return arrays.load(home / "datasets" / "cifar10", "cifar10", 10, partial(_fetch, home))


def _fetch(home: Path, work: Path) -> dict[str, arrays.Part]:
    # torchvision compares each file with its published MD5 before it unpickles it.
    from torchvision.datasets import CIFAR10  # noqa: PLC0415 - slow to import

    found = [root for root in (home, Path("data")) if (root / CIFAR10.base_folder).exists()]
    reason = ""
    for root in (*found, work):
        try:
            parts = {
                "train": CIFAR10(root, train=True, download=root == work),
                "test": CIFAR10(root, train=False),
            }
        except (OSError, RuntimeError) as error:
            reason = str(error)
            continue
        return {
            name: (np.moveaxis(part.data, -1, 1), np.asarray(part.targets, np.int64))
            for name, part in parts.items()
        }
    raise InputError(
        f"CIFAR-10 cannot be downloaded ({reason}): "
        f"put the folder cifar-10-batches-py into {home}, or use the data set photos"
    )
