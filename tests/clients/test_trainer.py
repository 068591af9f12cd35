"""The trainer: the same as plain PyTorch, on one thread, whatever was trained before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from clients.trainer import Trainer, find_accelerator
from fedio.config import Training
from fedio.errors import InputError

TRAINING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, accelerator="cpu")


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, 256, (4, 3, 2, 2), dtype=np.uint8), rng.integers(0, 3, 4))
        for _ in range(5)
    ]


def test_training_equals_a_plain_pytorch_loop() -> None:
    trainer = Trainer(model(), TRAINING)
    losses: list[np.ndarray] = []
    trained = trainer.train(trainer.arrays(), batches(), 0.1, losses.append)

    plain = model()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    expected = []
    for images, labels in batches():
        sgd.zero_grad()
        pixels = torch.from_numpy(images).float() / 127.5 - 1
        each = F.cross_entropy(plain(pixels), torch.from_numpy(labels), reduction="none")
        each.mean().backward()
        sgd.step()
        expected.append(each.detach().numpy())
    for name, value in plain.state_dict().items():
        assert trained.arrays[name].numpy() == pytest.approx(value.numpy(), abs=1e-6)
    assert trained.losses == pytest.approx(np.array(expected), abs=1e-6)
    assert np.array(losses).tolist() == trained.losses.tolist()


def test_nothing_is_left_over_from_the_training_before() -> None:
    trainer = Trainer(model(), TRAINING)
    start = trainer.arrays()
    first = trainer.train(start, batches(), 0.1, lambda _: None)
    trainer.train(first.arrays, batches()[::-1], 0.5, lambda _: None)
    again = trainer.train(start, batches(), 0.1, lambda _: None)
    for name, array in first.arrays.items():
        assert array.data == again.arrays[name].data


def test_the_number_of_threads_is_as_before() -> None:
    before = torch.get_num_threads()
    trainer = Trainer(model(), TRAINING)
    trainer.train(trainer.arrays(), batches(), 0.1, lambda _: None)
    assert torch.get_num_threads() == before


def test_evaluation_by_hand() -> None:
    trainer = Trainer(model(), TRAINING)
    images, labels = batches()[0]
    with torch.no_grad():
        logits = model()(torch.from_numpy(images).float() / 127.5 - 1).numpy()
    found = trainer.evaluate(trainer.arrays(), images, labels)
    assert found.samples == 4
    assert found.accuracy == (logits.argmax(1) == labels).mean()
    nothing = trainer.evaluate(trainer.arrays(), images[:0], labels[:0])
    assert (nothing.samples, nothing.accuracy) == (0, 0.0)


def test_an_accelerator_that_is_not_here_is_refused() -> None:
    assert find_accelerator("cpu").type == "cpu"
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert find_accelerator("auto").type == expected
    with pytest.raises(InputError, match=r"no cuda:99 here.*use auto or cpu"):
        find_accelerator("cuda:99")


@pytest.mark.gpu
def test_training_on_a_gpu_agrees_with_the_cpu() -> None:
    on_cpu = Trainer(model(), TRAINING)
    start = on_cpu.arrays()
    on_gpu = Trainer(model(), TRAINING.model_copy(update={"accelerator": "cuda"}))
    one = on_cpu.train(start, batches(), 0.1, lambda _: None)
    other = on_gpu.train(start, batches(), 0.1, lambda _: None)
    for name, array in one.arrays.items():
        assert other.arrays[name].numpy() == pytest.approx(array.numpy(), abs=1e-4)
