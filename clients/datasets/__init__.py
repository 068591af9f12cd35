"""Data sets by name; each returns its training and test part from the folder it is given."""

from __future__ import annotations

from collections.abc import Callable

from clients.datasets import cifar10, fashion_mnist, image_folder, photos
from clients.datasets.dataset import Dataset, Decoder, Images, Pixels, Split

DATASETS: dict[str, Callable[..., Split]] = {
    "cifar10": cifar10.load,
    "fashion-mnist": fashion_mnist.load,
    "image-folder": image_folder.load,
    "photos": photos.load,
}

__all__ = ["DATASETS", "Dataset", "Decoder", "Images", "Pixels", "Split"]
