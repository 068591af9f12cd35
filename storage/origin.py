"""Origins: the slow tier that holds all samples of a data set or of one client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from storage.direct import read_direct
from storage.errors import OriginError


class Origin(ABC):
    """All samples 0..n-1 with their real payloads."""

    @property
    @abstractmethod
    def size_bytes(self) -> np.ndarray:
        """The length of each payload, int64[n]."""

    @abstractmethod
    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        """Copy payloads back to back into a buffer.

        Args:
            samples: int64[k].
            buffer: uint8[m], contiguous.
            at: where the first payload goes.

        Returns:
            Where each payload begins, int64[k].

        Raises:
            ValueError: no such sample, or the buffer is too small; nothing was copied.
            OriginError: a sample cannot be read.
        """

    def __len__(self) -> int:
        return len(self.size_bytes)

    def subset(self, indices: np.ndarray) -> Origin:
        """The samples at `indices` (int64[k]) as an origin of their own, numbered 0..k-1."""
        return SubsetOrigin(self, indices)

    def _check(self, samples: np.ndarray) -> None:
        if len(samples) and not 0 <= samples.min() <= samples.max() < len(self):
            raise ValueError(f"samples must be in 0..{len(self) - 1}")

    def _starts(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        self._check(samples)
        ends = at + np.cumsum(self.size_bytes[samples])
        if len(ends) and ends[-1] > len(buffer):
            raise ValueError(f"the buffer has {len(buffer)} bytes, {ends[-1]} are needed")
        starts: np.ndarray = ends - self.size_bytes[samples]
        return starts


class ArrayOrigin(Origin):
    """The rows of one array, which may be a memory map."""

    def __init__(self, array: np.ndarray) -> None:
        if array.dtype != np.uint8 or array.ndim < 1 or not array.flags.c_contiguous:
            raise ValueError("an origin needs a contiguous uint8 array [n, ...]")
        self._rows = array.reshape(len(array), int(np.prod(array.shape[1:])))
        self._size_bytes = np.full(len(array), self._rows.shape[1], np.int64)

    @property
    def size_bytes(self) -> np.ndarray:
        """The length of each payload, int64[n]: all alike."""
        return self._size_bytes

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        """Copy rows back to back into a buffer; see `Origin.read`."""
        starts = self._starts(samples, buffer, at)
        shape = (len(samples), self._rows.shape[1])
        rows = buffer[at : at + shape[0] * shape[1]].reshape(shape)
        # The numbers are checked: "clip" spares the copy that "raise" makes of `out`.
        np.take(self._rows, samples, axis=0, out=rows, mode="clip")
        return starts


class FileOrigin(Origin):
    """Real files, one a sample; sizes are taken when the origin is made.

    Args:
        paths: of the files.
        direct: read past the page cache, so that each read is one of the disk.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]], direct: bool = False) -> None:
        self._read_file = read_direct if direct else _read_file
        self._paths = [Path(path) for path in paths]
        try:
            sizes = [path.stat().st_size for path in self._paths]
        except OSError as error:
            raise OriginError(f"cannot read {error.filename}: {error.strerror}") from error
        self._size_bytes = np.array(sizes, np.int64)

    @property
    def size_bytes(self) -> np.ndarray:
        """The length of each file, int64[n]."""
        return self._size_bytes

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        """Copy files back to back into a buffer; see `Origin.read`."""
        starts = self._starts(samples, buffer, at)
        view = buffer.data
        for sample, start in zip(samples.tolist(), starts.tolist(), strict=True):
            end = start + int(self._size_bytes[sample])
            self._read_file(self._paths[sample], view[start:end])
        return starts


class SubsetOrigin(Origin):
    """Some samples of another origin, renumbered."""

    def __init__(self, origin: Origin, indices: np.ndarray) -> None:
        self._origin = origin
        self._indices = np.asarray(indices, np.int64)
        self._size_bytes = origin.size_bytes[self._indices]

    @property
    def size_bytes(self) -> np.ndarray:
        """The length of each payload, int64[n]."""
        return self._size_bytes

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        """Copy payloads back to back into a buffer; see `Origin.read`."""
        self._check(samples)
        return self._origin.read(self._indices[samples], buffer, at)


def _read_file(path: Path, view: memoryview) -> None:
    """Fill `view` with a file of exactly that length."""
    try:
        with path.open("rb", buffering=0) as file:
            got = 0
            while got < len(view) and (count := file.readinto(view[got:])):
                got += count
            longer = bool(file.read(1))
    except OSError as error:
        raise OriginError(f"cannot read {path}: {error.strerror}") from error
    if got < len(view) or longer:
        raise OriginError(f"{path} has changed its size since the data set was opened")
