"""A cache's index and policy state as bytes."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass

import numpy as np

from storage.errors import CorruptCache

_MAGIC = b"fedio cache index 1\n"
_POLICY = "policy."
_NOTE = "note."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What has to be remembered, beside the payloads, to go on as if the cache had stayed open.

    Attributes:
        tag: the caller's number for this state.
        samples: how many samples there are in all.
        policy: the name of the policy class.
        residents: int64[k], ascending.
        sizes: declared bytes, int64[k].
        lengths: payload bytes, int64[k].
        staged: bool[k].
        columns: the policy's state.
        notes: what the caller keeps with this state.
    """

    tag: int
    samples: int
    policy: str
    residents: np.ndarray
    sizes: np.ndarray
    lengths: np.ndarray
    staged: np.ndarray
    columns: dict[str, np.ndarray]
    notes: dict[str, np.ndarray]

    def encode(self) -> bytes:
        """Magic line, checksum, and the arrays as an uncompressed .npz."""
        body = io.BytesIO()
        arrays = {_POLICY + name: column for name, column in self.columns.items()}
        arrays |= {_NOTE + name: note for name, note in self.notes.items()}
        arrays |= {
            "head": np.array([self.tag, self.samples], np.int64),
            "name": np.frombuffer(self.policy.encode(), np.uint8),
            "residents": self.residents,
            "sizes": self.sizes,
            "lengths": self.lengths,
            "staged": self.staged,
        }
        # Some versions of numpy declare a keyword there that the names of arrays cannot have.
        np.savez(body, **arrays)  # type: ignore[arg-type]
        data = body.getvalue()
        return _MAGIC + zlib.crc32(data).to_bytes(4, "big") + data

    @classmethod
    def decode(cls, encoded: bytes) -> Snapshot:
        """The inverse of `encode`.

        Raises:
            CorruptCache: these are not the bytes that `encode` made.
        """
        begin = len(_MAGIC) + 4
        data = encoded[begin:]
        checksum = zlib.crc32(data).to_bytes(4, "big")
        if encoded[:begin] != _MAGIC + checksum:
            raise CorruptCache("the saved index is damaged")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            tag, samples = arrays["head"].tolist()
            return cls(
                tag=tag,
                samples=samples,
                policy=arrays["name"].tobytes().decode(),
                residents=arrays["residents"],
                sizes=arrays["sizes"],
                lengths=arrays["lengths"],
                staged=arrays["staged"],
                columns=_named(arrays, _POLICY),
                notes=_named(arrays, _NOTE),
            )


def _named(arrays: np.lib.npyio.NpzFile, prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)
    }
