"""Loading: payloads from the origin into memory, and images from payloads, whatever fails.

What cannot be read is tried again, and then each sample alone; what cannot be decoded is read once
more. What then fails is marked `UNREADABLE`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clients.client_data import ClientData
from clients.datasets.dataset import Pixels
from fedio.errors import InputError
from storage.errors import OriginError

ATTEMPTS = 2
"""How often anything is tried."""

UNREADABLE = -1


@dataclass(slots=True)
class Payloads:
    """Where the payloads of a batch lie in memory.

    Attributes:
        samples: int64[k].
        starts: int64[k], UNREADABLE where there is none.
        lengths: int64[k].
        are_images: which are decoded already, bool[k].
        is_whole: whether every one of them is there, so that nobody need look.
    """

    samples: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    are_images: np.ndarray
    is_whole: bool = True


class Loader:
    """Loads samples of one client.

    Attributes:
        trouble: what failed last.
        damaged: samples whose payload, as it may be cached now, was no image; even if another
            attempt got one.
    """

    def __init__(self, data: ClientData) -> None:
        self._data = data
        self._pixels = Pixels(data.dataset.shape)
        self.trouble = ""
        self.damaged: list[int] = []

    def from_origin(self, samples: np.ndarray, scratch: np.ndarray, at: int) -> np.ndarray:
        """Copy payloads to `at`; returns where each begins, UNREADABLE where there is none."""
        starts = self._read(samples, scratch, at)
        if starts is not None:
            return starts
        starts = np.full(len(samples), UNREADABLE)
        for i in range(len(samples)):
            alone = self._read(samples[i : i + 1], scratch, at)
            if alone is not None:
                starts[i] = alone.item()
                at += self._data.origin.size_bytes.item(samples[i])
        return starts

    def convert(self, payloads: Payloads, rows: np.ndarray, scratch: np.ndarray, at: int) -> None:
        """Decode rows into the scratch from `at` on: that is what is cached of them."""
        size_bytes = self._data.image_bytes
        for row in rows[payloads.starts[rows] != UNREADABLE].tolist():
            image = scratch[at : at + size_bytes].reshape(1, *self._data.dataset.shape)
            if self._decode_row(payloads, row, image, scratch):
                payloads.starts[row], payloads.lengths[row] = at, size_bytes
                payloads.are_images[row] = True
                at += size_bytes

    def decode(self, payloads: Payloads, images: np.ndarray, scratch: np.ndarray) -> None:
        """Decode payloads into `images`, those that are images already copied."""
        dataset = self._data.dataset
        if not dataset.decoder.encoded and payloads.is_whole:
            dataset.decode(scratch, payloads.starts, payloads.lengths, images)
            return
        for row, start in enumerate(payloads.starts.tolist()):
            if start == UNREADABLE:
                continue
            if self._decode_row(payloads, row, images[row : row + 1], scratch) != 1:
                self.damaged.append(payloads.samples.item(row))

    def _read(self, samples: np.ndarray, scratch: np.ndarray, at: int) -> np.ndarray | None:
        """Copy payloads to `at`; returns where each begins, None when they cannot be read."""
        for _ in range(ATTEMPTS):
            try:
                return self._data.origin.read(samples, scratch, at)
            except OriginError as error:
                self.trouble = str(error)
        return None

    def _decode_row(
        self, payloads: Payloads, row: int, image: np.ndarray, scratch: np.ndarray
    ) -> int:
        """Decode one payload into `image`, [1, C, H, W]; one that fails is read once more.

        Returns which attempt succeeded, 0 when none did.
        """
        data, span = self._data, slice(row, row + 1)
        decode = self._pixels.decode if payloads.are_images[row] else data.dataset.decode
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if attempt > 1:
                    start = payloads.starts.item(row)
                    data.origin.read(payloads.samples[span], scratch, start)
                decode(scratch, payloads.starts[span], payloads.lengths[span], image)
            except (InputError, OriginError) as error:
                self.trouble = str(error)
            else:
                return attempt
        payloads.starts[row], payloads.is_whole = UNREADABLE, False
        return 0


def load_for_cache(
    samples: np.ndarray, data: ClientData, loader: Loader, scratch: np.ndarray
) -> Payloads:
    """Read samples from the origin in the form in which they are cached."""
    lengths = data.origin.size_bytes[samples]
    starts = loader.from_origin(samples, scratch, 0)
    payloads = Payloads(samples, starts, lengths.copy(), np.zeros(len(samples), dtype=bool))
    payloads.is_whole = starts.min(initial=0) != UNREADABLE
    converted = np.flatnonzero(data.is_converted[samples])
    loader.convert(payloads, converted, scratch, int(lengths.sum()))
    return payloads
