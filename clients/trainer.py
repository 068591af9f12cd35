"""Local training and evaluation of a PyTorch model on batches of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

from fedio.arrays import pack, unpack
from fedio.config import Training
from fedio.errors import InputError

Batch = tuple[np.ndarray, np.ndarray]
EVALUATION_BATCH = 500


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean accuracy and loss over so many samples."""

    samples: int
    accuracy: float
    loss: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model, and the loss of every access in order: float64 [steps, batch]."""

    arrays: ArrayRecord
    losses: np.ndarray


class Trainer:
    """Holds one model and its place, and trains it from whatever weights it is given.

    Everything runs on one thread, so that results do not depend on the number of cores.
    """

    def __init__(self, model: nn.Module, training: Training) -> None:
        self._device = find_accelerator(training.accelerator)
        self._model = model.to(self._device)
        self._training = training
        self._parameters: list[torch.Tensor] = [
            parameter for parameter in self._model.parameters() if parameter.requires_grad
        ]
        # These share memory with the model: filling them is loading it.
        self._state = {name: value.detach() for name, value in self._model.state_dict().items()}

    def train(
        self,
        arrays: ArrayRecord,
        batches: Iterable[Batch],
        lr: float,
        feedback: Callable[[np.ndarray], None] | None = None,
    ) -> Trained:
        """Train from `arrays` on each batch once with SGD.

        Args:
            arrays: the weights to start from; left as they are.
            batches: images uint8 [B, C, H, W] and labels int64 [B].
            lr: the learning rate.
            feedback: called after each step with the B losses before it, float64 [B].
        """
        self._load(arrays)
        self._model.train()
        momenta: list[torch.Tensor | None] = [None] * len(self._parameters)
        losses = []
        with one_thread():
            for images, labels in batches:
                each = F.cross_entropy(*self._forward(images, labels), reduction="none")
                self._step(each, lr, momenta)
                losses.append(each.detach())
                if feedback is not None:
                    feedback(losses[-1].cpu().numpy().astype(np.float64))
        return Trained(self.arrays(), torch.stack(losses).cpu().numpy().astype(np.float64))

    def evaluate(self, arrays: ArrayRecord, images: np.ndarray, labels: np.ndarray) -> Evaluation:
        """Return accuracy and mean loss of the weights `arrays`.

        Args:
            arrays: the weights to evaluate; left as they are.
            images: uint8 [n, C, H, W].
            labels: int64 [n].
        """
        self._load(arrays)
        self._model.eval()
        right, loss = 0, 0.0
        with one_thread(), torch.inference_mode():
            for first in range(0, len(labels), EVALUATION_BATCH):
                part = slice(first, first + EVALUATION_BATCH)
                logits, target = self._forward(images[part], labels[part])
                right += int((logits.argmax(1) == target).sum())
                loss += float(F.cross_entropy(logits, target, reduction="sum"))
        samples = len(labels)
        return Evaluation(samples, right / max(samples, 1), loss / max(samples, 1))

    def arrays(self) -> ArrayRecord:
        """Return the current weights."""
        return ArrayRecord({name: pack(value.cpu().numpy()) for name, value in self._state.items()})

    def _step(self, losses: torch.Tensor, lr: float, momenta: list[torch.Tensor | None]) -> None:
        """Take a step of SGD as torch.optim.SGD defines it, without an optimizer's bookkeeping.

        Args:
            losses: of each sample, float [B]; their mean is what is made smaller.
            lr: the learning rate.
            momenta: the momentum buffer of each parameter, None before the first step; updated.
        """
        decay, momentum = self._training.weight_decay, self._training.momentum
        # The gradient of the mean, without a mean in the graph.
        share = torch.full_like(losses, 1 / len(losses))
        gradients = torch.autograd.grad(losses, self._parameters, share)
        with torch.no_grad():
            for i, (parameter, gradient) in enumerate(
                zip(self._parameters, gradients, strict=True)
            ):
                step = gradient.add(parameter, alpha=decay) if decay else gradient
                if momentum:
                    held = momenta[i]
                    step = step if held is None else held.mul_(momentum).add_(step)
                    momenta[i] = step
                parameter.sub_(step, alpha=lr)

    def _load(self, arrays: ArrayRecord) -> None:
        """Copy weights into the model."""
        if set(arrays) != set(self._state):
            raise ValueError("the arrays are not those of the model")
        for name, value in self._state.items():
            weights = unpack(arrays[name])
            if value.device.type == "cpu":
                np.copyto(value.numpy(), weights)
            else:
                value.copy_(torch.tensor(weights))

    def _forward(self, images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and targets; pixels 0..255 become -1..1."""
        pixels = torch.from_numpy(images).to(self._device)
        target = torch.from_numpy(labels).to(self._device)
        return self._model(pixels.sub(127.5).div_(127.5)), target


def find_accelerator(name: str) -> torch.device:
    """Return the torch device for `auto`, `cpu`, `cuda` or `cuda:i`.

    Raises:
        InputError: that accelerator is not here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"training.accelerator: no {name} here ({torch.cuda.device_count()} CUDA devices); "
            "use auto or cpu"
        )
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
