"""A data set: labelled samples at an origin, and how their payloads become images."""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from fedio.errors import InputError
from storage.origin import Origin

Shape = tuple[int, int, int]


class Decoder(ABC):
    """Turns payloads into images of one shape, always the same way."""

    encoded: bool
    """Whether payloads are compressed, so that decoding them takes time."""

    @abstractmethod
    def decode(
        self, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray, images: np.ndarray
    ) -> None:
        """Fill `images`, uint8 [k, C, H, W], from the payloads buffer[start : start + length]."""


@dataclass(frozen=True, slots=True)
class Pixels(Decoder):
    """Payloads are the raw pixels of images of `shape` (channels, height, width)."""

    shape: Shape
    encoded = False

    def decode(
        self, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray, images: np.ndarray
    ) -> None:
        """Gather the payloads in one step.

        Raises:
            ValueError: a payload has not exactly the bytes of an image.
        """
        size = math.prod(self.shape)
        if (lengths != size).any():
            raise ValueError(f"a payload of raw pixels has {size} bytes, not {set(lengths)}")
        if len(starts) == 0:
            return
        out = images.reshape(len(starts), size)
        rows, offsets = np.divmod(starts, size)
        if offsets.any():
            out[:] = np.lib.stride_tricks.sliding_window_view(buffer, size)[starts]
        else:  # back to back, as they lie when all are pixels: a plain table, gathered faster
            table = buffer[: len(buffer) // size * size].reshape(-1, size)
            # The rows exist: "clip" spares the copy that "raise" makes of `out`.
            np.take(table, rows, axis=0, out=out, mode="clip")


@dataclass(frozen=True, slots=True)
class Images(Decoder):
    """Payloads are image files; each is cropped to the aspect of `shape` and scaled to it."""

    shape: Shape
    encoded = True

    def decode(
        self, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray, images: np.ndarray
    ) -> None:
        """Decode one file after the other.

        Raises:
            InputError: a payload is not an image.
        """
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            try:
                images[i] = self._decode(buffer[start : start + length])
            except Exception as error:
                raise InputError(
                    f"payload {i} of {len(starts)} is no image, repair or remove its file: {error}"
                ) from error

    def _decode(self, payload: np.ndarray) -> np.ndarray:
        channels, height, width = self.shape
        mode = "L" if channels == 1 else "RGB"
        with Image.open(io.BytesIO(payload.tobytes())) as file:
            # JPEG decodes at the smallest of its scales that still covers the target.
            file.draft(mode, (width, height))
            image = ImageOps.fit(file.convert(mode), (width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Labelled samples; the payload of sample i at `origin` is the encoded sample without label.

    Attributes:
        name: what it is called in tables.
        classes: number of classes.
        labels: int64 [n], 0 .. classes - 1.
        origin: the payloads.
        decoder: turns them into images.
    """

    name: str
    classes: int
    labels: np.ndarray
    origin: Origin
    decoder: Pixels | Images

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.origin):
            raise ValueError(f"{len(self.labels)} labels for {len(self.origin)} samples")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        """Channels, height and width of a decoded sample."""
        return self.decoder.shape

    def decode(
        self, buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray, images: np.ndarray
    ) -> None:
        """Fill `images`, uint8 [k, C, H, W], from payloads that lie in `buffer` (uint8)."""
        self.decoder.decode(buffer, starts, lengths, images)

    def images(self, samples: np.ndarray) -> np.ndarray:
        """Read samples from the origin and decode them: uint8 [k, C, H, W]."""
        lengths = self.origin.size_bytes[samples]
        buffer = np.empty(int(lengths.sum()), np.uint8)
        images = np.empty((len(samples), *self.shape), np.uint8)
        self.decode(buffer, self.origin.read(samples, buffer, 0), lengths, images)
        return images


@dataclass(frozen=True, slots=True)
class Split:
    """The training and the test part of a data set.

    Attributes:
        train: samples that clients share out among themselves.
        test: samples of the central test.
        digest: hash of the content (payloads and labels) of both.
    """

    train: Dataset
    test: Dataset
    digest: str

    def __post_init__(self) -> None:
        if (self.train.shape, self.train.classes) != (self.test.shape, self.test.classes):
            raise ValueError("the training and the test part differ in shape or classes")
