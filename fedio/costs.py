"""The cost model: what a participation takes, in seconds, phase by phase.

The same function serves the clock, which feeds it a meter's true counts, and predictions, which
feed it expected ones. Nothing else computes seconds; the storage formula itself is in
`storage.tier`, the overlap of reading and training in `fedio.overlap`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedio.contention import Contended, contended
from fedio.overlap import finish_alike_s, finish_s
from fedio.profiles import MOST_SLOWDOWN, Speeds

_LONGEST_S = 1e100
"""Whoever claims to take longer is not worth working out."""


@dataclass(frozen=True, slots=True)
class Work:
    """What n participations do, as counts.

    Those of each step are [n, steps], 0 where a participation has fewer steps than others; or [n],
    those of one step, where all steps are alike. What is equal for all participations may be [].

    Attributes:
        steps: how many steps there are.
        samples: samples trained.
        hits, hit_bytes: reads from the cache.
        misses, origin_bytes: reads from the origin.
        decodes, decoded_bytes: images decoded, and their encoded bytes.
        writes, written_bytes: samples written into the cache; None leaves them out.
        download_bytes, upload_bytes: the model on its way in and out, [n].
        depth, readers: how reading runs ahead, [n]; see `Speeds`.
    """

    steps: int
    samples: np.ndarray
    hits: np.ndarray
    hit_bytes: np.ndarray
    misses: np.ndarray
    origin_bytes: np.ndarray
    decodes: np.ndarray
    decoded_bytes: np.ndarray
    writes: np.ndarray | None
    written_bytes: np.ndarray | None
    download_bytes: np.ndarray
    upload_bytes: np.ndarray
    depth: np.ndarray
    readers: np.ndarray


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of participations by phase, [n] each.

    The device is busy with origin, cache, decoding and writing while it trains, if reading runs
    ahead; `stall_s` is what training waits for all of them together.
    """

    download_s: np.ndarray
    origin_s: np.ndarray
    cache_s: np.ndarray
    decode_s: np.ndarray
    write_s: np.ndarray
    stall_s: np.ndarray
    compute_s: np.ndarray
    upload_s: np.ndarray

    @property
    def total_s(self) -> np.ndarray:
        """Seconds from the start of the download to the end of the upload."""
        total: np.ndarray = self.download_s + self.stall_s + self.compute_s + self.upload_s
        return total

    @property
    def io_s(self) -> np.ndarray:
        """Seconds that storage and decoding are busy."""
        total: np.ndarray = self.origin_s + self.cache_s + self.decode_s + self.write_s
        return total


def phases(work: Work, speeds: Speeds) -> Phases:
    """Return what `work` takes on devices of these speeds."""
    busy = _busy(work, speeds)
    local = _local(work, busy, speeds.slowdown)
    write_s = np.zeros_like(busy.cache_s) if busy.write_s is None else busy.write_s
    # Sums in another order differ in the last bit, and training without an end has no stall.
    stall_s = np.maximum(local.finished_s - local.compute_s, 0.0)
    stall_s[local.finished_s == local.compute_s] = 0.0
    return Phases(
        download_s=work.download_bytes / speeds.download_bytes_per_s,
        origin_s=_total(busy.origin_s, work.steps),
        cache_s=_total(busy.cache_s, work.steps),
        decode_s=local.decode_s,
        write_s=_total(write_s, work.steps),
        stall_s=stall_s,
        compute_s=local.compute_s,
        upload_s=work.upload_bytes / speeds.upload_bytes_per_s,
    )


def total_s(work: Work, speeds: Speeds) -> np.ndarray:
    """Return the total of `phases(work, speeds)` in less time, [n]; the last bits may differ."""
    local = _local(work, _busy(work, speeds), speeds.slowdown)
    total: np.ndarray = np.maximum(local.finished_s, local.compute_s)
    total += work.download_bytes / speeds.download_bytes_per_s
    total += work.upload_bytes / speeds.upload_bytes_per_s
    return total


@dataclass(frozen=True, slots=True)
class _Busy:
    """Seconds that the parts of a device are busy in each step, shaped as the counts of `Work`."""

    origin_s: np.ndarray
    cache_s: np.ndarray
    write_s: np.ndarray | None
    decode_s: np.ndarray
    compute_s: np.ndarray

    @property
    def storage_s(self) -> np.ndarray:
        """Seconds of both tiers, which are one queue."""
        read_s: np.ndarray = self.origin_s + self.cache_s
        return read_s if self.write_s is None else read_s + self.write_s


def _busy(work: Work, speeds: Speeds) -> _Busy:
    """Return what each step takes."""
    each = speeds.by_step if work.misses.ndim == 2 else speeds
    write_s = None
    if work.writes is not None and work.written_bytes is not None:
        write_s = each.cache.write_s(work.writes, work.written_bytes)
    return _Busy(
        origin_s=each.origin.read_s(work.misses, work.origin_bytes),
        cache_s=each.cache.read_s(work.hits, work.hit_bytes),
        write_s=write_s,
        decode_s=each.decode_s(work.decodes, work.decoded_bytes),
        compute_s=work.samples * each.compute_s + (work.samples > 0) * each.step_s,
    )


def _local(work: Work, busy: _Busy, slowdown: np.ndarray) -> Contended:
    """Return what the device takes, from the first read to the end of the last step."""
    depth, readers, steps = work.depth, work.readers, work.steps
    parts_s = busy.storage_s, busy.decode_s, busy.compute_s
    if work.misses.ndim == 2:
        finished_s = finish_s(*parts_s, depth, readers)
    else:
        finished_s = finish_alike_s(steps, *parts_s, depth, readers)
    plain = Contended(finished_s, _total(busy.decode_s, steps), _total(busy.compute_s, steps))
    slowed = (slowdown > 1) & (depth >= 2) & (finished_s < _LONGEST_S)
    if not slowed.any():
        return plain
    count = int(np.count_nonzero(slowed))
    storage_s, decode_s, compute_s = (
        np.broadcast_to(part_s[slowed].reshape(count, -1), (count, steps)) for part_s in parts_s
    )
    found = contended(
        storage_s,
        decode_s,
        compute_s,
        np.minimum(depth[slowed], steps).astype(np.int64),
        np.minimum(slowdown[slowed], MOST_SLOWDOWN),
    )
    for total, part in zip(plain, found, strict=True):
        total[slowed] = part
    return plain


def _total(seconds: np.ndarray, steps: int) -> np.ndarray:
    """Return seconds of all steps together, [n], of those of each or of one like all others."""
    total: np.ndarray = seconds.sum(axis=1) if seconds.ndim == 2 else seconds * steps
    return total


@dataclass(frozen=True, slots=True)
class Samples:
    """What the samples of n clients are like on average, [n] each.

    Attributes:
        size_bytes: at the origin.
        cached_bytes: in the cache.
        decoded_share: how many of those from the origin need decoding.
        cached_decoded_share: how many of those from the cache do.
    """

    size_bytes: np.ndarray
    cached_bytes: np.ndarray
    decoded_share: np.ndarray
    cached_decoded_share: np.ndarray


def expected_work(
    steps: int,
    batch_size: int,
    hit_share: np.ndarray,
    samples: Samples,
    model_bytes: float,
    speeds: Speeds,
) -> Work:
    """Return the work of a participation before it happens: S x B accesses, a share of them hits.

    All steps are taken to be alike, and writes into the cache are left out: how many there are
    depends on the policy and is not known beforehand.

    Args:
        steps: S.
        batch_size: B.
        hit_share: of each client, [n].
        samples: what its samples are like.
        model_bytes: of the model.
        speeds: of the devices, for how far reading runs ahead.
    """
    hits = batch_size * hit_share
    misses = batch_size - hits
    decodes = misses * samples.decoded_share + hits * samples.cached_decoded_share
    model = np.asarray(model_bytes)
    return Work(
        steps=steps,
        samples=np.asarray(batch_size),
        hits=hits,
        hit_bytes=hits * samples.cached_bytes,
        misses=misses,
        origin_bytes=misses * samples.size_bytes,
        decodes=decodes,
        decoded_bytes=decodes * samples.size_bytes,
        writes=None,
        written_bytes=None,
        download_bytes=model,
        upload_bytes=model,
        depth=speeds.depth,
        readers=speeds.readers,
    )


def without_storage_s(
    steps: int, batch_size: int, model_bytes: float, speeds: Speeds, clients: np.ndarray
) -> np.ndarray:
    """Return what a participation of `clients` takes where storage takes no time, [k].

    Args:
        steps: S.
        batch_size: B.
        model_bytes: of the model.
        speeds: of all devices.
        clients: rows of it, int64 [k].
    """
    seconds: np.ndarray = batch_size * speeds.compute_s[clients] + speeds.step_s[clients]
    seconds *= steps
    seconds += model_bytes / speeds.download_bytes_per_s[clients]
    seconds += model_bytes / speeds.upload_bytes_per_s[clients]
    return seconds


def io_to_compute(steps: int, batch_size: int, samples: Samples, speeds: Speeds) -> float:
    """Return an experiment's I/O : compute: fleet sums of cold (origin + decode) over compute.

    Clients that say of themselves what cannot be are left out.
    """
    nobody_hits = np.zeros(len(samples.size_bytes))
    in_turns = replace(speeds, depth=np.ones_like(speeds.depth))
    cold = phases(expected_work(steps, batch_size, nobody_hits, samples, 0.0, in_turns), in_turns)
    known = np.isfinite(cold.io_s) & np.isfinite(cold.compute_s)
    return float(np.sum(cold.io_s, where=known) / np.sum(cold.compute_s, where=known))


def staging_s(
    origin: tuple[npt.ArrayLike, npt.ArrayLike],
    decoded: tuple[npt.ArrayLike, npt.ArrayLike],
    written: tuple[npt.ArrayLike, npt.ArrayLike],
    speeds: Speeds,
) -> np.ndarray:
    """Return seconds to stage: samples are read, decoded if need be, and written in turns.

    Args:
        origin: how many were read, and their bytes.
        decoded: how many were decoded, and their encoded bytes.
        written: how many were written, and their bytes.
        speeds: of the devices; shapes broadcast.
    """
    total: np.ndarray = (
        speeds.origin.read_s(*origin) + speeds.decode_s(*decoded) + speeds.cache.write_s(*written)
    )
    return total
