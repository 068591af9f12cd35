"""Traces in files: our own format, described in `docs/traces.md`, and plain CSV for reading."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from storage.array_zip import read_arrays, write_arrays
from storage.errors import TraceError
from storage.trace import Stream, Trace
from storage.trace_csv import read_csv

FORMAT = "fedio trace"
VERSION = 2
VERSIONS = (1, VERSION)

# The arrays of a file and their types, in its order.
_HEADER = {"header": "u1"}
_KINDS = dict.fromkeys(
    (
        "clients",
        "budget_bytes",
        "stream_samples",
        "stream_requests",
        "participation_requests",
        "batch_requests",
        "rounds",
        "hits",
        "depth",
        "size_bytes",
        "requests",
        "served",
    ),
    "u",
)
_KINDS["losses"] = "f4"
_KINDS_1 = {name: kind for name, kind in _KINDS.items() if name != "depth"}
_TEXTS = ("name", "policy", "depends")
_LARGEST = np.iinfo(np.int64).max

# What a damaged zip file makes Python's zipfile raise, and what does not add up.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError,
)  # fmt: skip


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace, replacing the file in one step; equal traces give equal bytes.

    Raises:
        TraceError: the file cannot be written; it is as it was.
    """
    try:
        write_arrays(path, _encode(trace))
    except OSError as error:
        raise TraceError(f"cannot write the trace {path}: {error.strerror}") from error


def read_trace(path: Path) -> Trace:
    """Read a trace that `write_trace` wrote, or one in a file named `.csv`.

    Raises:
        TraceError: there is no such file, or it is no trace in every detail.
    """
    try:
        return read_csv(path) if path.suffix == ".csv" else _read(path)
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except _DAMAGE as error:
        reason = str(error) or "it ends early"
        raise TraceError(f"{path} is no trace that can be read: {reason}") from error


def _encode(trace: Trace) -> dict[str, np.ndarray]:
    """Return the arrays of the format: those of all streams, one after another."""
    streams = trace.streams
    header = {"format": FORMAT, "version": VERSION}
    header |= {key: getattr(trace, key) for key in _TEXTS}
    substituted = any(len(stream.served) for stream in streams)
    whole = {
        "clients": [np.array([stream.client]) for stream in streams],
        "budget_bytes": [np.array([stream.budget_bytes]) for stream in streams],
        "stream_samples": [np.array([stream.samples]) for stream in streams],
        "stream_requests": [np.array([len(stream.requests)]) for stream in streams],
        "participation_requests": [stream.ends - stream.starts for stream in streams],
        "batch_requests": [stream.batch_ends - stream.batch_starts for stream in streams],
        "rounds": [stream.rounds for stream in streams],
        "hits": [stream.hits for stream in streams],
        "depth": [stream.depth for stream in streams],
        "size_bytes": [stream.size_bytes for stream in streams],
        "requests": [stream.requests for stream in streams],
        "served": [stream.trained for stream in streams if substituted],
    }
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    arrays |= {name: _smallest(parts) for name, parts in whole.items()}
    losses = [stream.losses for stream in streams]
    return arrays | {"losses": np.concatenate([*losses, []]).astype(np.float32)}


def _smallest(parts: list[np.ndarray]) -> np.ndarray:
    """Return whole numbers from 0 on as one array of the smallest unsigned type."""
    values = np.concatenate([*parts, np.empty(0, np.int64)], dtype=np.int64)
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def _read(path: Path) -> Trace:
    """Return the trace in a file of our format; of another version only the header is read.

    Raises:
        ValueError: it is none.
    """
    version, texts = _header(read_arrays(path, _HEADER)["header"].tobytes())
    arrays = read_arrays(path, _KINDS if version > 1 else _KINDS_1)
    if version == 1:  # nothing was read ahead
        arrays["depth"] = np.ones(len(arrays["rounds"]), np.uint8)
    for name, array in arrays.items():
        if name != "losses" and array.max(initial=0) > _LARGEST:
            raise ValueError(f"{name} holds numbers that are too large")
    _check_lengths(arrays)
    whole = {name: arrays[name].astype(np.int64) for name in _KINDS if name != "losses"}
    streams = _streams(whole, arrays["losses"].astype(np.float32))
    return Trace(streams=tuple(streams), **texts)


def _header(encoded: bytes) -> tuple[int, dict[str, str]]:
    """Return the version of the format and the texts of a trace.

    Raises:
        ValueError: it is the header of something else.
    """
    header = json.loads(encoded)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"its header does not say {FORMAT!r}")
    if (version := header.get("version")) not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise ValueError(f"it has version {version!r}; this reads {known}")
    texts = {key: text for key in _TEXTS if isinstance(text := header.get(key), str)}
    if len(texts) < len(_TEXTS):
        raise ValueError(f"its header does not hold the texts {', '.join(_TEXTS)}")
    return version, texts


def _check_lengths(arrays: dict[str, np.ndarray]) -> None:
    """Check that counts add up to what there is.

    Raises:
        ValueError: they do not.
    """
    length = {name: len(array) for name, array in arrays.items()}
    sums = {"stream_samples": "size_bytes", "stream_requests": "requests"}
    sums |= {"participation_requests": "requests", "batch_requests": "requests"}
    for counts, of in sums.items():
        # No count may be so large that the sum overflows.
        too_large = arrays[counts].max(initial=0) > length[of]
        if too_large or arrays[counts].sum() != length[of]:
            raise ValueError(f"{counts} do not add up to the {length[of]} {of}")
    one_each = {"budget_bytes": "clients", "stream_samples": "clients"}
    one_each |= {"stream_requests": "clients"}
    one_each |= {"rounds": "participation_requests", "depth": "participation_requests"}
    optional = {"served": "requests", "losses": "requests", "hits": "participation_requests"}
    for name, of in (one_each | optional).items():
        if length[name] != length[of] and (length[name] or name in one_each):
            raise ValueError(f"{length[name]} {name} do not go with {length[of]} {of}")


def _streams(arrays: dict[str, np.ndarray], losses: np.ndarray) -> Iterator[Stream]:
    """Cut the arrays into streams, each of which checks itself."""
    batches, participations = (
        np.cumsum(arrays[name]) - arrays[name]
        for name in ("batch_requests", "participation_requests")
    )
    request = sample = 0
    for i, client in enumerate(arrays["clients"].tolist()):
        samples = slice(sample, sample := sample + int(arrays["stream_samples"][i]))
        requests = slice(request, request := request + int(arrays["stream_requests"][i]))
        own_batches, own = (
            slice(*np.searchsorted(starts, [requests.start, requests.stop]))
            for starts in (batches, participations)
        )
        asked, served = arrays["requests"][requests], arrays["served"][requests]
        yield Stream(
            client=client,
            size_bytes=arrays["size_bytes"][samples],
            requests=asked,
            batch_starts=batches[own_batches] - requests.start,
            starts=participations[own] - requests.start,
            rounds=arrays["rounds"][own],
            losses=losses[requests],
            served=served[: 0 if np.array_equal(served, asked) else None],
            hits=arrays["hits"][own],
            depth=arrays["depth"][own],
            budget_bytes=int(arrays["budget_bytes"][i]),
        )
