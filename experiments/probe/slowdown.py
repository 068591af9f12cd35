"""How much decoding and training slow each other down when both go on at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from clients.datasets.dataset import Shape
from clients.trainer import Trainer
from experiments.probe.decoding import decoding_of
from experiments.probe.training import training_of

TURNS, BATCH, SIDE_PX = 7, 20, 400


def measure_slowdown(trainer: Trainer, shape: Shape, rng: np.random.Generator) -> list[float]:
    """Train and decode alone, then both together, in turns.

    While both go on each is so many times slower; both are counted as one, the geometric mean.

    Returns:
        A factor for each turn; below 1 is noise.
    """
    train = training_of(trainer, BATCH, shape, rng)
    decode = decoding_of(SIDE_PX, shape, rng)
    factors = []
    for turn in range(TURNS + 1):
        train_s, decode_s = _seconds(train), _seconds(decode)
        both_train_s, both_decode_s = _together(train, decode)
        if turn:  # the first is for warming up
            factors.append(float(np.sqrt(both_train_s / train_s * both_decode_s / decode_s)))
    return factors


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _together(train: Callable[[], object], decode: Callable[[], object]) -> tuple[float, float]:
    """Train once while another thread decodes; returns seconds of both, for one time."""
    is_over = threading.Event()
    decode_s: list[float] = []

    def keep_decoding() -> None:
        while not is_over.is_set():
            decode_s.append(_seconds(decode))

    decoder = threading.Thread(target=keep_decoding, name="probe-decoding")
    decoder.start()
    try:
        train_s = _seconds(train)
    finally:
        is_over.set()
        decoder.join()
    return train_s, float(np.median(decode_s))
