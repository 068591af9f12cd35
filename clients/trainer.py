"""Local training and evaluation of a PyTorch model on batches of images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

from clients.accelerator import Accelerator, one_thread
from clients.feed import Batch, Feed
from clients.pace import OWN_PACE, Pace
from fedio.arrays import pack, unpack
from fedio.config import Training

EVALUATION_BATCH = 500


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean accuracy and loss over so many samples."""

    samples: int
    accuracy: float
    loss: float


@dataclass(frozen=True, slots=True)
class Wall:
    """Wall-clock seconds of the thread that trains; they sum to all of its time.

    An accelerator works on its own. While it still computes a step the thread may already wait for
    the next batch, and that is stalled; where losses are handed on, and at the end, the thread
    waits for the accelerator, and that is computing.

    Attributes:
        stall_s: waiting for the next batch.
        copy_s: moving batches to the accelerator.
        compute_s: all the rest: loading weights, steps, feedback, packing results.
    """

    stall_s: float
    copy_s: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model, and what its training was like.

    Attributes:
        arrays: the weights after it.
        losses: of every access in order, without weights, float64 [m].
        step_samples: how many of them each step had, int64 [steps].
        wall: where the time went.
    """

    arrays: ArrayRecord
    losses: np.ndarray
    step_samples: np.ndarray
    wall: Wall


class _Pull:
    """The proximal term: a pull back to the weights that training started from."""

    def __init__(self, mu: float, parameters: list[torch.Tensor]) -> None:
        self._mu = mu
        self._parameters = parameters
        self._start = [parameter.detach().clone() for parameter in parameters]

    def added_to(self, gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return the gradients of a loss with mu (w - w_start) added."""
        with torch.no_grad():
            return tuple(
                gradient.add(parameter.sub(start), alpha=self._mu)
                for gradient, parameter, start in zip(
                    gradients, self._parameters, self._start, strict=True
                )
            )


class Trainer:
    """Holds one model and its place, and trains it from whatever weights it is given.

    On the host everything runs on one thread, so that results do not depend on the number of cores.
    Precision is that of the forward pass in training; weights, steps and evaluation are float32.
    """

    def __init__(
        self, model: nn.Module, training: Training, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        """Move the model to its accelerator.

        Args:
            model: what is trained.
            training: how.
            now_s: the clock that training is timed by.

        Raises:
            InputError: the accelerator is not here.
        """
        self.accelerator = Accelerator(training.accelerator)
        self._model = model.to(self.accelerator.device)
        self._training = training
        self._now_s = now_s
        self._losses = self._each_loss
        if training.precision == "bfloat16":
            mixed = torch.autocast(self.accelerator.device.type, torch.bfloat16)
            self._losses = mixed(self._each_loss)
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
        proximal_mu: float = 0.0,
        pace: Pace = OWN_PACE,
    ) -> Trained:
        """Train from `arrays` on each batch once with SGD.

        Args:
            arrays: the weights to start from; left as they are.
            batches: at least one, none of them empty. Once the next is asked for, the memory of the
                last may be used again.
            lr: the learning rate.
            feedback: called after each step with the losses before it, without weights, float64
                [B].
            proximal_mu: weight of mu/2 |w - w_start|^2, which is added to the mean loss (FedProx,
                Li et al., MLSys 2020, equation 2); not part of the losses handed on.
            pace: how long a step takes, from when its batch is there.
        """
        began_s = self._now_s()
        self._load(arrays)
        self._model.train()
        momenta: list[torch.Tensor | None] = [None] * len(self._parameters)
        pull = _Pull(proximal_mu, self._parameters) if proximal_mu else None
        losses: list[torch.Tensor] = []
        feed = Feed(batches, self.accelerator, self._now_s)
        with one_thread():
            while (batch := feed.next()) is not None:
                pace.begin_training()
                losses.append(self._train_on(batch, lr, momenta, pull))
                del batch
                if feedback is not None:
                    feedback(losses[-1].cpu().numpy().astype(np.float64))
                pace.train(losses[-1].numel(), feed.came_s)
        trained = self.arrays()
        all_losses = torch.cat(losses).cpu().numpy().astype(np.float64)
        step_samples = np.array([step.numel() for step in losses])
        compute_s = self._now_s() - began_s - feed.stall_s - feed.copy_s
        wall = Wall(feed.stall_s, feed.copy_s, compute_s)
        return Trained(trained, all_losses, step_samples, wall)

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
                pixels, target = self.accelerator.copy(images[part], labels[part])
                logits = self._logits(pixels)
                right += int((logits.argmax(1) == target).sum())
                loss += float(F.cross_entropy(logits, target, reduction="sum"))
        samples = len(labels)
        return Evaluation(samples, right / max(samples, 1), loss / max(samples, 1))

    def arrays(self) -> ArrayRecord:
        """Return the current weights."""
        return ArrayRecord({name: pack(value.cpu().numpy()) for name, value in self._state.items()})

    def _train_on(
        self,
        batch: list[torch.Tensor],
        lr: float,
        momenta: list[torch.Tensor | None],
        pull: _Pull | None,
    ) -> torch.Tensor:
        """Take a step on images, labels and maybe weights; return the losses before it, [B]."""
        pixels, target, *weights = batch
        losses = self._losses(pixels, target)
        # The gradient of the mean, without a mean in the graph.
        share = torch.full_like(losses, 1 / losses.numel())
        for weight in weights:
            share.mul_(weight)
        gradients = torch.autograd.grad(losses, self._parameters, share)
        if pull is not None:
            gradients = pull.added_to(gradients)
        self._step(gradients, lr, momenta)
        return losses.detach()

    def _step(
        self,
        gradients: tuple[torch.Tensor, ...],
        lr: float,
        momenta: list[torch.Tensor | None],
    ) -> None:
        """Take a step of SGD as torch.optim.SGD defines it, without an optimizer's bookkeeping.

        Args:
            gradients: of each parameter.
            lr: the learning rate.
            momenta: the momentum buffer of each parameter, None before the first step; updated.
        """
        decay, momentum = self._training.weight_decay, self._training.momentum
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

    def _logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the model's answers; pixels 0..255 become -1..1."""
        logits: torch.Tensor = self._model(pixels.sub(127.5).div_(127.5))
        return logits

    def _each_loss(self, pixels: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        return F.cross_entropy(self._logits(pixels), target, reduction="none")
