"""The checkpoint of a run: named arrays and a few notes, in one file that is replaced in one step.

The file is one of safetensors, with the notes as JSON in its metadata: nothing in it is executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedio.errors import InputError, RunError
from fedio.output import dumps, replacing

NOTES, CHECKSUM = "fedio", "xxh3"


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What a run needs to go on after a round."""

    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]

    @property
    def checksum(self) -> str:
        """Of all arrays and notes, in whatever order."""
        digest = xxhash.xxh3_128(json.dumps(self.notes, sort_keys=True).encode())
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint in the place of the one before, whole or not at all.

    Raises:
        RunError: it cannot be written; the one before stays.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}
    # A zero-dimensional array comes back from there with one dimension.
    shaped = {name: array.reshape(checkpoint.arrays[name].shape) for name, array in arrays.items()}
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as temporary:
            about = {NOTES: dumps(checkpoint.notes), CHECKSUM: checkpoint.checksum}
            save_file(shaped, temporary, about)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write the checkpoint {path}: {error}") from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        InputError: it is not one, or damaged.
    """
    try:
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found = Checkpoint(arrays, json.loads(about[NOTES]))
        if found.checksum != about[CHECKSUM]:
            raise ValueError("it is not what was written")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(
            f"the checkpoint {path} is damaged ({error}); run again without --resume"
        ) from error
    return found


def part(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Return the arrays called `name.KEY`, by KEY."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)
    }


def named(parts: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of all parts, as `NAME.KEY`, no NAME with a dot; the inverse of `part`."""
    return {
        f"{name}.{key}": array for name, arrays in parts.items() for key, array in arrays.items()
    }
