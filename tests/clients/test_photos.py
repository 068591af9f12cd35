from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from clients.datasets import (
    Dataset,
    Split,
    photos,
)
from clients.models import build
from fedio.config import Spec
from fedio.seeds import Purpose, rng

SMALL = {"samples": 30, "test_samples": 10, "median_side_px": 48}


def contents(home: Path) -> dict[str, bytes]:
    return {str(file.relative_to(home)): file.read_bytes() for file in home.rglob("*.jpg")}


def test_photos_are_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    here = photos.load(tmp_path / "here", **SMALL)
    code = (
        "import sys; from pathlib import Path; from clients.datasets import DATASETS; "
        f"print(DATASETS['photos'](Path(sys.argv[1]), **{SMALL!r}).digest)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "there")]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == here.digest
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert len(contents(tmp_path / "here")) == 40


def test_photos_are_jpeg_files_of_many_sizes(tmp_path: Path) -> None:
    split = photos.load(tmp_path, samples=60, test_samples=10, median_side_px=100, sigma=0.5)
    sides = set()
    for file in (tmp_path / "datasets").rglob("train/*/*.jpg"):
        with Image.open(file) as image:
            assert (image.format, image.width) == ("JPEG", image.height)
            sides.add(image.width)
    assert 48 <= min(sides) < 80
    assert 130 < max(sides) <= 256
    files = sorted((tmp_path / "datasets").rglob("train/*/*.jpg"), key=lambda file: file.stem)
    sizes = [file.stat().st_size for file in files]
    np.testing.assert_array_equal(split.train.origin.size_bytes, sizes)
    assert [int(file.parent.name) for file in files] == split.train.labels.tolist()
    np.testing.assert_array_equal(np.bincount(split.train.labels), [6] * 10)
    assert max(sizes) > 3 * min(sizes)


def test_photos_depend_on_the_seed_and_are_kept_apart(tmp_path: Path) -> None:
    digests = {photos.load(tmp_path, **SMALL, seed=seed).digest for seed in (0, 1, 0)}
    assert len(digests) == 2
    assert len(list((tmp_path / "datasets").glob("photos-*/"))) == 2
    assert photos.load(tmp_path, 16, **SMALL).test.images(np.arange(10)).shape == (10, 3, 16, 16)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_damaged_photos_are_drawn_again(tmp_path: Path, damage: str) -> None:
    digest = photos.load(tmp_path, **SMALL).digest
    before = contents(tmp_path)
    file = next((tmp_path / "datasets").rglob("*.jpg"))
    file.unlink()
    if damage == "changed":
        file.write_bytes(before[str(file.relative_to(tmp_path))][:-1] + b"!")
    assert photos.load(tmp_path, **SMALL).digest == digest
    assert contents(tmp_path) == before


def accuracy(split: Split, epochs: int) -> float:
    """Train the cnn as an experiment's defaults would, and return its accuracy on the test part."""

    def tensors(part: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.from_numpy(part.images(np.arange(len(part)))).float() / 255 - 0.5
        return images, torch.from_numpy(np.array(part.labels))

    images, labels = tensors(split.train)
    model = build(Spec(name="cnn"), split.train.shape, split.train.classes, rng(0, Purpose.WEIGHTS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    shuffler = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=shuffler)
        for batch in (order[i : i + 20] for i in range(0, len(order), 20)):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    images, labels = tensors(split.test)
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def test_a_few_photos_of_three_classes_can_be_learnt(tmp_path: Path) -> None:
    split = photos.load(tmp_path, samples=150, test_samples=60, classes=3, median_side_px=64)
    assert accuracy(split, epochs=4) > 0.7


@pytest.mark.slow
def test_the_cnn_learns_the_photos(tmp_path: Path) -> None:
    assert accuracy(photos.load(tmp_path), epochs=8) > 0.9
