"""A cache's index and policy state as bytes."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass

import numpy as np

from storage.errors import CorruptCache

_MAGIC = b"fedio cache index 4\n"
_POLICY = "policy."
_NOTE = "note."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What has to be remembered, beside the payloads, to go on as if the cache had stayed open.

    Attributes:
        tag: the caller's number for this state.
        previous: that of the state before it; None when it is the first.
        samples: how many samples there are in all.
        policy: the name of the policy class.
        residents: int64[k], ascending.
        sizes: declared bytes, uint32[k].
        lengths: payload bytes, uint32[k].
        checksums: of the payloads, uint64[k].
        staged: bool[k].
        columns: the policy's state.
        notes: what the caller keeps with this state.
    """

    tag: int
    previous: int | None
    samples: int
    policy: str
    residents: np.ndarray
    sizes: np.ndarray
    lengths: np.ndarray
    checksums: np.ndarray
    staged: np.ndarray
    columns: dict[str, np.ndarray]
    notes: dict[str, np.ndarray]

    def encode(self) -> bytes:
        """Magic line, checksum, names and shapes of all arrays as JSON, and their bytes."""
        arrays = {
            "residents": self.residents,
            "sizes": self.sizes,
            "lengths": self.lengths,
            "checksums": self.checksums,
            "staged": self.staged,
        }
        arrays |= {_POLICY + name: column for name, column in self.columns.items()}
        arrays |= {_NOTE + name: note for name, note in self.notes.items()}
        packed = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        head = {
            "tag": self.tag,
            "previous": self.previous,
            "samples": self.samples,
            "policy": self.policy,
            "arrays": [[name, a.dtype.str, a.shape] for name, a in packed.items()],
        }
        encoded = json.dumps(head).encode()
        parts = [len(encoded).to_bytes(4, "big"), encoded, *(a.tobytes() for a in packed.values())]
        data = b"".join(parts)
        return _MAGIC + zlib.crc32(data).to_bytes(4, "big") + data

    @classmethod
    def decode(cls, encoded: bytes | memoryview) -> Snapshot:
        """The inverse of `encode`; its arrays are views of the bytes, except the notes.

        Raises:
            CorruptCache: these are not the bytes that `encode` made.
        """
        begin = len(_MAGIC) + 4
        data = memoryview(encoded)[begin:]
        checksum = zlib.crc32(data).to_bytes(4, "big")
        if bytes(encoded[:begin]) != _MAGIC + checksum:
            raise CorruptCache("the saved index is damaged")
        at = 4 + int.from_bytes(data[:4], "big")
        head = json.loads(bytes(data[4:at]))
        arrays: dict[str, np.ndarray] = {}
        for name, dtype, shape in head["arrays"]:
            count = math.prod(shape)
            arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
            at += arrays[name].nbytes
        return cls(
            tag=head["tag"],
            previous=head["previous"],
            samples=head["samples"],
            policy=head["policy"],
            residents=arrays["residents"],
            sizes=arrays["sizes"],
            lengths=arrays["lengths"],
            checksums=arrays["checksums"],
            staged=arrays["staged"],
            columns=_named(arrays, _POLICY),
            notes={name: note.copy() for name, note in _named(arrays, _NOTE).items()},
        )


def _named(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): array for k, array in arrays.items() if k.startswith(prefix)}
