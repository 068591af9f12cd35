"""The accelerator: where the model is, and how batches get there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedio.errors import InputError


class Accelerator:
    """A CPU or a CUDA device, and the copies to it.

    On a CUDA device a copy runs on a stream of its own, beside what the device is computing, and
    what is computed afterwards waits for it. From `pinned` memory the device fetches the bytes by
    itself; from any other the driver first moves them through memory of its own, which keeps the
    calling thread busy. On the CPU nothing is copied.
    """

    def __init__(self, name: str) -> None:
        """Find it.

        Args:
            name: `auto`, `cpu`, `cuda` or `cuda:i`.

        Raises:
            InputError: that accelerator is not here.
        """
        self.device = find_accelerator(name)
        self._copies: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def pinned(self, size_bytes: int) -> np.ndarray:
        """Return memory to put batches into, uint8 [size_bytes], resident from the start.

        For a CUDA device it is page-locked. On the CPU it is plain.
        """
        if self._copies is None:
            return np.full(size_bytes, 0, np.uint8)
        locked: np.ndarray = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return locked

    def copy(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """Return arrays as tensors on the accelerator, to be used on its current stream.

        Do not change the arrays before `wait`. On the CPU the tensors are views of them.
        """
        here = [torch.from_numpy(array) for array in arrays]
        if self._copies is None:
            return here
        with torch.cuda.stream(self._copies):
            there = [tensor.to(self.device, non_blocking=True) for tensor in here]
            self._copied.record(self._copies)
        training = torch.cuda.current_stream(self.device)
        training.wait_event(self._copied)
        for tensor in there:
            # Its memory belongs to the stream of copies, which must not write into it again before
            # training has used it.
            tensor.record_stream(training)
        return there

    def wait(self) -> None:
        """Wait until what was copied last no longer needs the arrays, so that they may change.

        On the CPU they are free when the tensors are.
        """
        if self._copies is not None:
            self._copied.synchronize()


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
