"""Traces for tests: any that there can be, and whether two are the same."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from storage.trace import Stream, Trace

LARGEST = 2**63 - 1


def assert_same(one: Trace, other: Trace) -> None:
    """Check that two traces agree in everything, NaNs and the types of numbers included."""
    assert (one.name, one.policy, one.depends) == (other.name, other.policy, other.depends)
    assert len(one.streams) == len(other.streams)
    for a, b in zip(one.streams, other.streams, strict=True):
        for name in (field.name for field in fields(Stream)):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), strict=True)


@st.composite
def starts(draw: st.DrawFn, length: int) -> np.ndarray:
    """Draw where the pieces of something begin."""
    if not length:
        return np.empty(0, np.int64)
    rest = draw(st.sets(st.integers(1, length - 1))) if length > 1 else set()
    return np.array(sorted({0} | rest), np.int64)


def numbers(length: int, least: int, most: int) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.int64, length, elements=st.integers(least, most))


@st.composite
def streams(draw: st.DrawFn, client: int, has_losses: bool, has_hits: bool) -> Stream:
    samples = draw(st.integers(1, 300))
    requests = draw(st.integers(0, 12))
    batch_starts = draw(starts(requests))
    firsts = batch_starts[draw(starts(len(batch_starts)))]
    asked = draw(numbers(requests, 0, samples - 1))
    served = draw(st.sampled_from([np.empty(0, np.int64), np.roll(asked, 1)]))
    lengths = np.append(firsts, requests)[1:] - firsts
    return Stream(
        client=client,
        size_bytes=draw(numbers(samples, 1, draw(st.sampled_from([1, 300, 70_000, 2**32 - 1])))),
        requests=asked,
        batch_starts=batch_starts,
        starts=firsts,
        rounds=np.sort(draw(numbers(len(firsts), 0, 70_000))),
        losses=draw(arrays.arrays(np.float32, requests if has_losses else 0)),
        served=np.empty(0, np.int64) if np.array_equal(served, asked) else served,
        hits=lengths // 2 if has_hits else np.empty(0, np.int64),
        depth=draw(numbers(len(firsts), 1, 1000)),
        budget_bytes=draw(st.integers(0, LARGEST)),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    has_losses, has_hits = draw(st.booleans()), draw(st.booleans())
    clients = draw(st.lists(st.integers(0, LARGEST), max_size=3, unique=True))
    return Trace(
        draw(st.text()),
        tuple(draw(streams(client, has_losses, has_hits)) for client in clients),
        draw(st.text()),
        draw(st.text()),
    )
