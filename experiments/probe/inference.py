"""Inference: MobileNet on one image, by which published figures compare devices."""

from __future__ import annotations

import time

import torch

from clients.accelerator import find_accelerator, one_thread

_WARMING, _MEASURED = 3, 15


def measure_inference(accelerator: str) -> list[float]:
    """Return seconds of single inferences of MobileNetV2 with random weights, 3 x 224 x 224.

    Raises:
        InputError: that accelerator is not here.
    """
    from torchvision.models import mobilenet_v2  # noqa: PLC0415 - slow to import

    device = find_accelerator(accelerator)
    with torch.random.fork_rng(devices=[]):
        model = mobilenet_v2(weights=None).eval().to(device)
        image = torch.rand(1, 3, 224, 224, device=device)
    seconds = []
    with one_thread(), torch.inference_mode():
        for _ in range(_WARMING + _MEASURED):
            began = time.perf_counter()
            model(image).cpu()  # waits for the accelerator
            seconds.append(time.perf_counter() - began)
    return seconds[_WARMING:]
