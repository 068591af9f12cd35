"""The networks that clients train, and their initial weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from clients.datasets.dataset import Shape
from fedio.errors import InputError
from fedio.plugins import Named, resolve


def mlp(shape: Shape, classes: int, hidden: int = 100) -> nn.Module:
    """Return one hidden layer on the flattened image; 79,510 parameters at 1 x 28 x 28."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(shape)), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Return two convolutions and a linear layer; 28,938 parameters at 1 x 28 x 28, 10 classes."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(32 * -(-height // 4) * -(-width // 4), classes),
    )


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """Return ResNet-18 (He et al. 2016) for small images, with GroupNorm.

    The first convolution is 3 x 3 with stride 1 and without pooling after it, as in section 4.2
    there. GroupNorm with 32 groups (Wu and He 2018) has no running statistics to aggregate.
    """
    from torchvision.models import resnet18 as build_resnet18  # noqa: PLC0415 - slow to import

    model: nn.Module = build_resnet18(
        num_classes=classes, norm_layer=lambda channels: nn.GroupNorm(32, channels)
    )
    model.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "mlp": mlp, "resnet18": resnet18}


def build(spec: Named, shape: Shape, classes: int, rng: np.random.Generator) -> nn.Module:
    """Return the model for images of `shape` (channels, height, width), its weights from `rng`.

    torch's own random state is the same before and after.

    Raises:
        InputError: unknown model, or arguments it does not take.
    """
    make = resolve(spec, MODELS, "model")
    try:
        inspect.signature(make).bind(shape, classes, **spec.args)
    except TypeError as error:
        raise InputError(f"model {spec.name!r} does not take {spec.args}: {error}") from error
    seed = int(rng.integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            return make(shape, classes, **spec.args)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"model {spec.name!r} with {spec.args}: {error}") from error
