"""The origin: files of several sizes, one a sample, written and read one at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.probe.noise import Noise
from experiments.probe.points import Points
from storage.direct import read_direct


def measure_writes(folder: Path, counts: Mapping[int, int], rng: np.random.Generator) -> Points:
    """Write files in random order, each until the disk has it (fsync(2)); leave them in `folder`.

    Args:
        folder: where to.
        counts: size in bytes -> how many files.
        rng: what to draw order and content from.
    """
    noise = Noise(max(counts), rng)
    return Points.of(
        (size, _write_s(path_of(folder, size, number), noise.payload(size)))
        for size, number in _shuffled(counts, rng)
    )


def measure_reads(folder: Path, counts: Mapping[int, int], rng: np.random.Generator) -> Points:
    """Read what `measure_writes` has left, past the page cache: random order, each file once.

    Args:
        folder: where the files are.
        counts: size in bytes -> how many of the files of that size.
        rng: what to draw the order from.

    Raises:
        OriginError: a file cannot be read.
    """
    buffer = memoryview(bytearray(max(counts)))
    return Points.of(
        (size, _read_s(path_of(folder, size, number), buffer[:size]))
        for size, number in _shuffled(counts, rng)
    )


def path_of(folder: Path, size: int, number: int) -> Path:
    """Return the file of that size and number."""
    return folder / f"{size}-{number}"


def _write_s(path: Path, payload: memoryview) -> float:
    began = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        written = 0
        while written < len(payload):
            written += file.write(payload[written:])
        os.fsync(file)
    return time.perf_counter() - began


def _read_s(path: Path, view: memoryview) -> float:
    began = time.perf_counter()
    read_direct(path, view)
    return time.perf_counter() - began


def _shuffled(counts: Mapping[int, int], rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return each size and number once; a slow minute then hits all sizes alike."""
    files = [(size, number) for size, count in counts.items() for number in range(count)]
    return [files[i] for i in rng.permutation(len(files))]
