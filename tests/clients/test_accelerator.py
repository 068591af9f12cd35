"""Copies to an accelerator: beside its work, in order, and out of memory that is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import clients.accelerator
from clients.accelerator import Accelerator, find_accelerator
from clients.feed import Batch, Feed
from clients.trainer import Trained, Trainer
from fedio.config import Training
from fedio.errors import InputError


def test_an_accelerator_that_is_not_here_is_refused() -> None:
    assert find_accelerator("cpu").type == "cpu"
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert find_accelerator("auto").type == expected
    for refused in (find_accelerator, Accelerator):
        with pytest.raises(InputError, match=r"no cuda:99 here.*use auto or cpu"):
            refused("cuda:99")


def test_on_the_cpu_nothing_is_copied() -> None:
    cpu = Accelerator("cpu")
    memory = cpu.pinned(5)
    assert (memory.dtype, memory.tolist(), memory.flags.writeable) == (np.uint8, [0] * 5, True)
    images, weights = cpu.copy(memory, np.ones(2))
    cpu.wait()
    memory[3] = 7
    assert images.tolist() == [0, 0, 0, 7, 0]
    assert weights.dtype == torch.float64
    assert len(cpu.pinned(0)) == 0


class Stream:
    """A stream that writes down what it is asked for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for {event.of}")


class Event:
    """An event that does so."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.of = log, "nothing"

    def record(self, stream: Stream) -> None:
        self.of = stream.name

    def synchronize(self) -> None:
        self.log.append(f"the host waits for {self.of}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a CUDA device here that copies nothing, and return what it is asked for."""
    log: list[str] = []
    on = ["training"]

    @contextmanager
    def stream(which: Stream) -> Iterator[None]:
        on.append(which.name)
        yield
        on.pop()

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        assert device.type == "cuda"
        assert non_blocking
        log.append(f"{tensor.dtype} on {on[-1]}")
        return tensor

    def record_stream(tensor: torch.Tensor, which: Stream) -> None:
        log.append(f"{tensor.dtype} used by {which.name}")

    monkeypatch.setattr(clients.accelerator, "find_accelerator", torch.device)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream("copies", log))
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(log))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream(on[-1], log))
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    return log


def test_a_copy_runs_beside_training_which_waits_for_it(log: list[str]) -> None:
    cuda = Accelerator("cuda")
    cuda.wait()
    images, labels = cuda.copy(np.zeros(3, np.uint8), np.arange(3))
    assert images.dtype == torch.uint8
    assert labels.tolist() == [0, 1, 2]
    assert log == [
        "the host waits for nothing",
        "torch.uint8 on copies",
        "torch.int64 on copies",
        "training waits for copies",
        "torch.uint8 used by training",
        "torch.int64 used by training",
    ]
    cuda.wait()
    assert log[-1] == "the host waits for copies"


def test_the_next_batch_is_asked_for_when_the_last_is_copied(log: list[str]) -> None:
    def source() -> Iterator[Batch]:
        for _ in range(2):
            log.append("asked")
            yield np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.int64), None
        log.append("asked")

    feed = Feed(source(), Accelerator("cuda"), lambda: 0.0)
    while feed.next() is not None:
        log.append("trained")
    heard = [line for line in log if line in {"asked", "trained"} or "host" in line]
    assert heard == [
        "the host waits for nothing", "asked", "trained",
        "the host waits for copies", "asked", "trained",
        "the host waits for copies", "asked",
    ]  # fmt: skip


SHAPE = (3, 32, 32)
SIZES = (64, 17, 64, 64, 1, 64)


def trained(accelerator: str, allocate: Callable[[Accelerator], np.ndarray]) -> Trained:
    """Train on batches that all lie in the same memory, one after another."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 5))
    trainer = Trainer(model, Training(accelerator=accelerator, momentum=0.5))
    memory = allocate(trainer.accelerator)

    def source() -> Iterator[Batch]:
        rng = np.random.default_rng(1)
        for size in SIZES * 5:
            images = memory[: size * 3 * 32 * 32].reshape(size, *SHAPE)
            images[:] = rng.integers(0, 256, images.shape)
            yield images, rng.integers(0, 5, size), rng.uniform(0, 2, size)
            memory[:] = 255

    return trainer.train(trainer.arrays(), source(), 0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_a_gpu_trains_the_same_out_of_memory_that_is_used_again(pinned: bool) -> None:
    size_bytes = max(SIZES) * 3 * 32 * 32

    def allocate(accelerator: Accelerator) -> np.ndarray:
        allocate_bytes = accelerator.pinned if pinned else partial(np.empty, dtype=np.uint8)
        part = allocate_bytes(size_bytes + 4096)[4096:]
        assert torch.from_numpy(part).is_pinned() == pinned
        return part

    one = trained("cpu", lambda accelerator: accelerator.pinned(size_bytes))
    other = trained("cuda", allocate)
    for name, array in one.arrays.items():
        assert other.arrays[name].numpy() == pytest.approx(array.numpy(), abs=1e-3)
    assert other.losses == pytest.approx(one.losses, abs=1e-3)
    assert min(other.wall.stall_s, other.wall.copy_s, other.wall.compute_s) > 0
