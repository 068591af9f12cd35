"""The reference: torch's DataLoader with one worker, the same origin and the same trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from clients.central import Central
from clients.client_data import ClientData
from clients.device import Host


class _Photos(Dataset[tuple[torch.Tensor, int]]):
    """A client's samples as one would write it: read, decode, return."""

    def __init__(self, data: ClientData) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data.labels)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, int]:
        data = self._data
        length = data.origin.size_bytes[[sample]]
        payload = np.empty(int(length[0]), np.uint8)
        image = np.empty((1, *data.dataset.shape), np.uint8)
        start = data.origin.read(np.array([sample]), payload, 0)
        data.dataset.decode(payload, start, length, image)
        return torch.from_numpy(image[0]), int(data.labels[sample])


class LoaderSide:
    """Trains participations from a DataLoader whose worker lives from one to the next."""

    def __init__(self, data: ClientData, host: Host, order: np.ndarray, batch: int) -> None:
        steps = [order[at : at + batch].tolist() for at in range(0, len(order), batch)]
        self._trainer = host.trainer
        self._arrays = Central(host.experiment).initial_arrays
        self._loader = DataLoader(
            _Photos(data), batch_sampler=steps, num_workers=1, persistent_workers=True
        )

    def train(self) -> None:
        """One participation."""
        self._trainer.train(self._arrays, self._batches(), 0.05)

    def _batches(self) -> Iterator[tuple[np.ndarray, np.ndarray, None]]:
        for images, labels in self._loader:
            yield images.numpy(), labels.numpy(), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._loader  # ends its worker
