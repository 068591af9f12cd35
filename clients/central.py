"""What the server needs of the learning task: the first weights, and the central test set."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from clients.models import build
from clients.prepare import prepare
from clients.trainer import Evaluation, Trainer
from fedio.config import Experiment
from fedio.seeds import Purpose, rng


class Central:
    """The global model's start, and its evaluation on the test set."""

    def __init__(self, experiment: Experiment) -> None:
        test = prepare(experiment).test
        self._images, self._labels = test.images(np.arange(len(test))), np.array(test.labels)
        weights = rng(experiment.seed, Purpose.WEIGHTS)
        model = build(experiment.model, test.shape, test.classes, weights)
        self._trainer = Trainer(model, experiment.training)
        self.initial_arrays: ArrayRecord = self._trainer.arrays()

    def evaluate(self, arrays: ArrayRecord) -> Evaluation:
        """Return accuracy and loss on the whole test set."""
        return self._trainer.evaluate(arrays, self._images, self._labels)
