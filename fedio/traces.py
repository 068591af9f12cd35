"""The trace of a run: its devices write a part for each participation, and here they become one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedio.errors import RunError
from storage.errors import TraceError
from storage.trace import Stream, Trace
from storage.trace_file import read_trace, write_trace

_NOT_RECORDED = "cannot record a trace: "


def not_recorded(why: object) -> RunError:
    """Return the error of a device that cannot write its part, as `check_recorded` knows it."""
    return RunError(f"{_NOT_RECORDED}{why}")


def check_recorded(problem: str | None) -> None:
    """Check that a participation did not fail for want of its part.

    Args:
        problem: what went wrong with it, such as its device's traceback.

    Raises:
        RunError: it did.
    """
    _, said, why = (problem or "").rpartition(_NOT_RECORDED)
    if said:
        raise not_recorded(why.partition("\n")[0])


def part_file(folder: Path, client: int, server_round: int) -> Path:
    """Return where a participation's part goes; one that is trained again replaces it."""
    return folder / f"{client}-{server_round}.npz"


def collect(folder: Path, participations: set[tuple[int, int]], file: Path) -> None:
    """Put all parts of a run into one trace, by client and round.

    Args:
        folder: holds the parts, each a trace of one participation.
        participations: (client, round) of those that have to be among them.
        file: where the trace goes.

    Raises:
        RunError: some are missing, a part cannot be read, or the trace cannot be written.
    """
    missing = [pair for pair in sorted(participations) if not part_file(folder, *pair).exists()]
    if missing:
        raise RunError(
            "the trace lacks the part of client {} in round {}".format(*missing[0])
            + f", which its device should have written to {folder}"
        )
    try:
        parts = [read_trace(path) for path in sorted(folder.glob("*.npz"))]
        streams = [stream for part in parts for stream in part.streams]
        streams.sort(key=lambda stream: (stream.client, stream.rounds[0]))
        by_client = itertools.groupby(streams, key=lambda stream: stream.client)
        joined = tuple(_joined(list(group)) for _, group in by_client)
        about = parts[0] if parts else Trace("nobody took part", ())
        write_trace(file, Trace(about.name, joined, about.policy, about.depends))
    except TraceError as error:
        raise RunError(str(error)) from error


def _joined(parts: Sequence[Stream]) -> Stream:
    """Return the participations of one client as one stream."""
    lengths = np.array([len(part.requests) for part in parts])
    offsets = np.cumsum(lengths) - lengths
    is_substituted = any(len(part.served) for part in parts)
    served = [part.trained if is_substituted else part.served for part in parts]
    return replace(
        parts[0],
        requests=np.concatenate([part.requests for part in parts]),
        batch_starts=np.concatenate(
            [part.batch_starts + at for part, at in zip(parts, offsets, strict=True)]
        ),
        starts=offsets,
        rounds=np.concatenate([part.rounds for part in parts]),
        losses=np.concatenate([part.losses for part in parts]),
        served=np.concatenate(served),
        hits=np.concatenate([part.hits for part in parts]),
        depth=np.concatenate([part.depth for part in parts]),
    )
