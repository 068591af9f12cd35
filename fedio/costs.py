"""The cost model: what a participation takes, in seconds, phase by phase.

The same function serves the clock, which feeds it a meter's true counts, and predictions, which
feed it expected ones. Nothing else computes seconds; the storage formula itself is in
`storage.tier`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fedio.profiles import Speeds


@dataclass(frozen=True, slots=True)
class Work:
    """What participations do, as counts: arrays with one entry per participation.

    Attributes:
        trained_samples: samples trained, S x B.
        hits, hit_bytes: reads from the cache.
        misses, origin_bytes: reads from the origin.
        writes, written_bytes: samples written into the cache.
        decode_s: seconds of decoding, on the device.
        download_bytes, upload_bytes: the model on its way in and out.
    """

    trained_samples: np.ndarray
    hits: np.ndarray
    hit_bytes: np.ndarray
    misses: np.ndarray
    origin_bytes: np.ndarray
    writes: np.ndarray
    written_bytes: np.ndarray
    decode_s: np.ndarray
    download_bytes: np.ndarray
    upload_bytes: np.ndarray


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of participations by phase, which follow one another: no overlap is credited."""

    download_s: np.ndarray
    origin_s: np.ndarray
    cache_s: np.ndarray
    decode_s: np.ndarray
    compute_s: np.ndarray
    write_s: np.ndarray
    upload_s: np.ndarray

    @property
    def total_s(self) -> np.ndarray:
        """Seconds from the start of the download to the end of the upload."""
        total: np.ndarray = np.sum([getattr(self, f.name) for f in fields(self)], axis=0)
        return total

    @property
    def io_s(self) -> np.ndarray:
        """Seconds of storage and decoding."""
        total: np.ndarray = self.origin_s + self.cache_s + self.decode_s + self.write_s
        return total


def phases(work: Work, speeds: Speeds) -> Phases:
    """Return what `work` takes on devices of these speeds; shapes broadcast."""
    return Phases(
        download_s=work.download_bytes / speeds.download_bytes_per_s,
        origin_s=speeds.origin.read_s(work.misses, work.origin_bytes),
        cache_s=speeds.cache.read_s(work.hits, work.hit_bytes),
        decode_s=np.asarray(work.decode_s, dtype=np.float64),
        compute_s=work.trained_samples * speeds.compute_s,
        write_s=speeds.cache.write_s(work.writes, work.written_bytes),
        upload_s=work.upload_bytes / speeds.upload_bytes_per_s,
    )


def expected_work(
    accesses: np.ndarray,
    hit_share: np.ndarray,
    mean_size_bytes: np.ndarray,
    mean_decode_s: np.ndarray,
    model_bytes: float,
) -> Work:
    """Return the work of a participation before it happens: q accesses, a share of them hits.

    Cached samples are encoded as at the origin, so hits are decoded too. Writes into the cache are
    left out: how many there are depends on the policy and is not known beforehand.
    """
    hits = accesses * hit_share
    misses = accesses - hits
    return Work(
        trained_samples=accesses,
        hits=hits,
        hit_bytes=hits * mean_size_bytes,
        misses=misses,
        origin_bytes=misses * mean_size_bytes,
        writes=np.zeros_like(hits),
        written_bytes=np.zeros_like(hits),
        decode_s=accesses * mean_decode_s,
        download_bytes=np.full_like(hits, model_bytes),
        upload_bytes=np.full_like(hits, model_bytes),
    )


def io_to_compute(
    accesses: np.ndarray, mean_size_bytes: np.ndarray, mean_decode_s: np.ndarray, speeds: Speeds
) -> float:
    """Return an experiment's I/O : compute: fleet sums of cold (origin + decode) over compute."""
    cold = phases(
        expected_work(accesses, np.zeros_like(accesses), mean_size_bytes, mean_decode_s, 0.0),
        speeds,
    )
    return float(np.sum(cold.io_s) / np.sum(cold.compute_s))
