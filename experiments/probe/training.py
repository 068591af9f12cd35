"""Training: steps of SGD on batches of several sizes, as a client takes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from clients.datasets.dataset import Shape
from clients.models import build
from clients.trainer import Trainer
from experiments.probe.points import Points
from experiments.probe.turns import in_turns
from fedio.config import Spec, Training

BATCH_SIZES = (5, 10, 20, 40, 80)
STEPS = 8
"""Of one participation: its steps share the loading and the packing of the weights."""

CLASSES = 10
_LR = 0.01


def trainer_of(model: str, shape: Shape, accelerator: str, rng: np.random.Generator) -> Trainer:
    """Return what trains that network on images of `shape`.

    Raises:
        InputError: there is no such model or accelerator.
    """
    built = build(Spec(name=model), shape, CLASSES, rng)
    return Trainer(built, Training(accelerator=accelerator))


def measure_training(trainer: Trainer, shape: Shape, rng: np.random.Generator) -> Points:
    """Train on batches of each size in turns, from the same weights; the data lie in memory.

    A point is one step; its size is the samples of the batch.
    """
    works: dict[float, Callable[[], object]] = {}
    for size in BATCH_SIZES:
        works[size] = training_of(trainer, size, shape, rng)
    return in_turns(works, STEPS, rng)


def training_of(
    trainer: Trainer, batch_size: int, shape: Shape, rng: np.random.Generator
) -> Callable[[], object]:
    """Return what trains a participation of `STEPS` on a batch in memory, always from the start."""
    images = rng.integers(0, 256, (batch_size, *shape), np.uint8)
    batch = images, rng.integers(0, CLASSES, batch_size), None
    return partial(trainer.train, trainer.arrays(), [batch] * STEPS, _LR)
