"""Data sets whose payloads are raw pixels, kept as memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from clients.datasets import stored
from clients.datasets.dataset import Dataset, Pixels, Split
from storage.origin import ArrayOrigin

Part = tuple[np.ndarray, np.ndarray]
"""Pixels, uint8 [n, C, H, W], and labels, int64 [n]."""


def load(
    folder: Path, name: str, classes: int, fetch: Callable[[Path], Mapping[str, Part]]
) -> Split:
    """Return the data set stored in `folder`; if it is not there, store what `fetch` finds.

    Args:
        folder: where the arrays are, or will be.
        name: what the data set is called.
        classes: number of classes.
        fetch: returns the parts "train" and "test"; it may use the empty folder it is given.
    """

    def build(unfinished: Path) -> None:
        work = unfinished / "fetch"
        work.mkdir()
        parts = fetch(work)
        stored.remove(work)
        for part, (pixels, labels) in parts.items():
            np.save(unfinished / f"{part}-pixels.npy", np.ascontiguousarray(pixels, np.uint8))
            np.save(unfinished / f"{part}-labels.npy", np.asarray(labels, np.int64))
        stored.seal(unfinished, {"name": name})

    def open_(complete: Path) -> Split:
        digest = stored.check(complete).digest
        part = partial(_part, complete, name, classes)
        return Split(part("train"), part("test"), digest)

    return stored.once(folder, build, open_)


def _part(folder: Path, name: str, classes: int, part: str) -> Dataset:
    pixels = stored.array(folder / f"{part}-pixels.npy")
    labels = stored.array(folder / f"{part}-labels.npy")
    channels, height, width = pixels.shape[1:]
    return Dataset(name, classes, labels, ArrayOrigin(pixels), Pixels((channels, height, width)))
