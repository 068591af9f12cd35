"""The trainer: the same as plain PyTorch, on one thread, whatever was trained before."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from clients.accelerator import one_thread
from clients.feed import Batch
from clients.trainer import Trained, Trainer
from fedio.config import Training

TRAINING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, accelerator="cpu")
BFLOAT16 = TRAINING.model_copy(update={"precision": "bfloat16"})
STEP_SAMPLES = [4, 4, 1, 3, 4]


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(weights: bool = False) -> list[Batch]:
    """Return five batches, some of them shorter than others."""
    rng = np.random.default_rng(0)
    return [
        (
            rng.integers(0, 256, (size, 3, 2, 2), dtype=np.uint8),
            rng.integers(0, 3, size),
            rng.uniform(0, 3, size) if weights else None,
        )
        for size in STEP_SAMPLES
    ]


def plain(given: list[Batch], mu: float = 0.0) -> tuple[nn.Module, list[np.ndarray]]:
    """Train as anybody would, with the proximal term spelt out in the loss."""
    trained, start = model(), model()
    sgd = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for images, labels, weights in given:
        sgd.zero_grad()
        pixels = torch.from_numpy(images).float() / 127.5 - 1
        each = F.cross_entropy(trained(pixels), torch.from_numpy(labels), reduction="none")
        weighted = each if weights is None else each * torch.from_numpy(weights).float()
        pairs = zip(trained.parameters(), start.parameters(), strict=True)
        distance = sum((w - w0.detach()).square().sum() for w, w0 in pairs)
        (weighted.mean() + mu / 2 * distance).backward()
        sgd.step()
        losses.append(each.detach().numpy())
    return trained, losses


def assert_same(one: Trained, other: Trained) -> None:
    for name, array in one.arrays.items():
        assert array.data == other.arrays[name].data
    assert one.losses.tolist() == other.losses.tolist()


def assert_close(one: Trained, other: Trained, tolerance: float) -> None:
    for name, array in one.arrays.items():
        assert other.arrays[name].numpy() == pytest.approx(array.numpy(), abs=tolerance)
    assert other.losses == pytest.approx(one.losses, abs=tolerance)


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("weights", [False, True])
def test_training_equals_a_plain_pytorch_loop(weights: bool, mu: float) -> None:
    trainer = Trainer(model(), TRAINING)
    told: list[np.ndarray] = []
    trained = trainer.train(trainer.arrays(), batches(weights), 0.1, told.append, mu)
    expected, losses = plain(batches(weights), mu)
    for name, value in expected.state_dict().items():
        assert trained.arrays[name].numpy() == pytest.approx(value.numpy(), abs=1e-6)
    assert trained.losses == pytest.approx(np.concatenate(losses), abs=1e-6)
    assert trained.losses.dtype == np.float64
    assert trained.step_samples.tolist() == [len(step) for step in told] == STEP_SAMPLES
    assert np.concatenate(told).tolist() == trained.losses.tolist()


def test_weights_of_one_change_nothing_and_weights_of_nothing_train_nothing() -> None:
    trainer = Trainer(model(), TRAINING.model_copy(update={"weight_decay": 0.0}))
    start = trainer.arrays()
    ones = [(images, labels, np.ones(len(labels))) for images, labels, _ in batches()]
    assert_same(trainer.train(start, batches(), 0.1), trainer.train(start, ones, 0.1))
    zeros = [(images, labels, np.zeros(len(labels))) for images, labels, _ in batches()]
    untrained = trainer.train(start, zeros, 0.1)
    assert all(start[name].data == untrained.arrays[name].data for name in start)
    assert untrained.losses.min() > 0


def test_the_proximal_term_holds_training_back_where_it_started() -> None:
    trainer = Trainer(model(), TRAINING.model_copy(update={"momentum": 0.0}))
    start = trainer.arrays()

    def distance(mu: float) -> float:
        trained = trainer.train(start, batches(), 0.1, proximal_mu=mu).arrays
        gaps = [trained[name].numpy() - start[name].numpy() for name in start]
        return float(sum(np.square(gap).sum() for gap in gaps))

    assert 0 < distance(5.0) < distance(0.5) < distance(0.0)


def test_nothing_is_left_over_from_the_training_before() -> None:
    trainer = Trainer(model(), TRAINING)
    start = trainer.arrays()
    first = trainer.train(start, batches(), 0.1, lambda _: None)
    trainer.train(first.arrays, batches()[::-1], 0.5, lambda _: None, proximal_mu=0.3)
    assert_same(first, trainer.train(start, batches(), 0.1, lambda _: None))


def test_the_number_of_threads_is_as_before() -> None:
    before = torch.get_num_threads()
    during = []
    trainer = Trainer(model(), TRAINING)
    trainer.train(
        trainer.arrays(), batches(), 0.1, lambda _: during.append(torch.get_num_threads())
    )
    assert set(during) == {1}
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), one_thread():
        _ = 1 / 0
    assert torch.get_num_threads() == before


def test_evaluation_by_hand() -> None:
    trainer = Trainer(model(), TRAINING)
    images, labels, _ = batches()[0]
    with torch.no_grad():
        logits = model()(torch.from_numpy(images).float() / 127.5 - 1)
    found = trainer.evaluate(trainer.arrays(), images, labels)
    assert found.samples == 4
    assert found.accuracy == (logits.argmax(1).numpy() == labels).mean()
    assert found.loss == pytest.approx(float(F.cross_entropy(logits, torch.from_numpy(labels))))
    nothing = trainer.evaluate(trainer.arrays(), images[:0], labels[:0])
    assert (nothing.samples, nothing.accuracy) == (0, 0.0)


def reusing(given: list[Batch], left: list[str]) -> Iterator[Batch]:
    """Hand out batches in the same memory, and note which of it anybody still holds."""
    slab = np.empty(4 * 12, np.uint8)
    for images, labels, weights in given:
        lent = slab[: images.size].reshape(images.shape)
        lent[:] = images
        batch = (lent, labels.copy(), None if weights is None else weights.copy())
        held = [weakref.ref(array) for array in batch if array is not None]
        yield batch
        del batch, lent
        left.extend(f"{array().dtype}" for array in held if array() is not None)  # type: ignore[union-attr]
        slab[:] = 255


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("training", [TRAINING, BFLOAT16])
def test_a_batch_is_let_go_of_before_the_next_is_asked_for(
    training: Training, weights: bool
) -> None:
    trainer = Trainer(model(), training)
    start = trainer.arrays()
    left: list[str] = []
    reused = trainer.train(start, reusing(batches(weights), left), 0.1, lambda _: None)
    assert left == []
    assert_same(trainer.train(start, batches(weights), 0.1), reused)


def test_bfloat16_is_near_float32_with_weights_that_stay_float32() -> None:
    exact, mixed = Trainer(model(), TRAINING), Trainer(model(), BFLOAT16)
    start = exact.arrays()
    told: list[np.ndarray] = []
    one = exact.train(start, batches(weights=True), 0.1)
    other = mixed.train(start, batches(weights=True), 0.1, told.append)
    assert_close(one, other, 0.02)
    assert one.losses.tolist() != other.losses.tolist()
    assert {array.dtype for array in other.arrays.values()} == {"float32"}
    assert {losses.dtype for losses in told} == {np.dtype(np.float64)}
    images, labels, _ = batches()[0]
    assert mixed.evaluate(start, images, labels) == exact.evaluate(start, images, labels)


class Clock:
    """Goes on by one second at each look, and further when it is told to."""

    def __init__(self) -> None:
        self.now, self.looks = 0, 0

    def __call__(self) -> float:
        self.now += 1
        self.looks += 1
        return self.now


@pytest.mark.parametrize("late_s", [0, 7])
@pytest.mark.parametrize("learning_s", [None, 0, 5])
def test_the_time_of_a_training_is_accounted_for(late_s: int, learning_s: int | None) -> None:
    clock = Clock()
    trainer = Trainer(model(), TRAINING, clock)
    started: list[int] = []

    def source() -> Iterator[Batch]:
        for batch in batches():
            started.append(clock.now)
            clock.now += late_s
            yield batch

    def learn(_: np.ndarray) -> None:
        clock.now += learning_s or 0

    wall = trainer.train(
        trainer.arrays(), source(), 0.1, None if learning_s is None else learn
    ).wall
    steps = len(STEP_SAMPLES)
    assert wall.stall_s + wall.copy_s + wall.compute_s == clock.now - 1
    # One look is a second, and there is one in each wait; after the last batch there is one more.
    assert wall.stall_s == steps * (1 + late_s) + 1
    # Twice for each batch: before it is asked for, and when it has come.
    assert wall.copy_s == 2 * steps + 1
    assert clock.looks <= 2 + 4 * steps + 3


def test_copying_takes_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    trainer = Trainer(model(), TRAINING, clock)
    copy, seconds = trainer.accelerator.copy, iter([10, 30, 60])

    def slow(*arrays: np.ndarray) -> list[torch.Tensor]:
        clock.now += next(seconds)
        return copy(*arrays)

    quick = trainer.train(trainer.arrays(), batches()[:3], 0.1).wall
    monkeypatch.setattr(trainer.accelerator, "copy", slow)
    wall = trainer.train(trainer.arrays(), batches()[:3], 0.1).wall
    assert wall.copy_s == quick.copy_s + 100
    assert (wall.stall_s, wall.compute_s) == (quick.stall_s, quick.compute_s)


@pytest.mark.gpu
@pytest.mark.parametrize("weights", [False, True])
def test_training_on_a_gpu_agrees_with_the_cpu(weights: bool) -> None:
    on_cpu = Trainer(model(), TRAINING)
    start = on_cpu.arrays()
    on_gpu = Trainer(model(), TRAINING.model_copy(update={"accelerator": "cuda"}))
    one = on_cpu.train(start, batches(weights), 0.1, lambda _: None)
    other = on_gpu.train(start, batches(weights), 0.1, lambda _: None)
    assert_close(one, other, 1e-4)


@pytest.mark.gpu
def test_bfloat16_on_a_gpu_is_near_float32() -> None:
    on_cpu = Trainer(model(), TRAINING)
    start = on_cpu.arrays()
    on_gpu = Trainer(model(), BFLOAT16.model_copy(update={"accelerator": "cuda"}))
    other = on_gpu.train(start, batches(weights=True), 0.1)
    assert_close(on_cpu.train(start, batches(weights=True), 0.1), other, 0.02)
    assert {array.dtype for array in other.arrays.values()} == {"float32"}
