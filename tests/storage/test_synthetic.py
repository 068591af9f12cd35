"""Synthetic traces have the pattern that their name says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.synthetic import SYNTHETIC, epochs, gaps, repetition, zipf
from storage.trace import Trace
from tests.storage.traces import assert_same

COUNTS = st.integers(1, 12)
PATTERNS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "epochs": st.fixed_dictionaries({"samples": COUNTS, "epochs": COUNTS}),
    "zipf": st.fixed_dictionaries(
        {"samples": COUNTS, "requests": COUNTS, "exponent": st.floats(0, 3)}
    ),
    "repetition": st.fixed_dictionaries(
        {"samples": st.just(12), "requests": COUNTS, "working_set": COUNTS, "repeats": COUNTS}
    ),
    "gaps": st.fixed_dictionaries(
        {
            "clients": COUNTS,
            "samples": COUNTS,
            "rounds": COUNTS,
            "accesses": COUNTS,
            "share": st.floats(0.01, 1),
        }
    ),
}


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_each_has_good_defaults_and_depends_on_the_generator_alone(name: str) -> None:
    trace = SYNTHETIC[name](rng())
    assert_same(trace, SYNTHETIC[name](rng()))
    assert (
        trace.streams[0].requests.tolist() != SYNTHETIC[name](rng(8)).streams[0].requests.tolist()
    )
    assert sum(len(stream.requests) for stream in trace.streams) >= 10_000
    assert trace.name
    assert (trace.policy, trace.depends) == ("", "")
    assert all(stream.size_bytes.tolist() == [1] * stream.samples for stream in trace.streams)


@pytest.mark.parametrize("name", SYNTHETIC)
@given(data=st.data(), batch=COUNTS)
def test_batches_divide_participations(name: str, data: st.DataObject, batch: int) -> None:
    numbers = data.draw(PATTERNS[name])
    trace = SYNTHETIC[name](rng(), **numbers, batch=batch)
    plain = SYNTHETIC[name](rng(), **numbers)
    for stream, alone in zip(trace.streams, plain.streams, strict=True):
        assert stream.requests.tolist() == alone.requests.tolist()
        lengths = (stream.batch_ends - stream.batch_starts).tolist()
        wanted = [
            min(batch, end - at)
            for start, end in zip(stream.starts, stream.ends, strict=True)
            for at in range(start, end, batch)
        ]
        assert lengths == wanted
        assert alone.batch_starts.tolist() == list(range(len(alone.requests)))


@given(samples=COUNTS, count=COUNTS)
def test_an_epoch_has_every_sample_once(samples: int, count: int) -> None:
    (stream,) = epochs(rng(), samples=samples, epochs=count).streams
    assert (stream.ends - stream.starts).tolist() == [samples] * count
    assert stream.rounds.tolist() == list(range(1, count + 1))
    for start, end in zip(stream.starts, stream.ends, strict=True):
        assert sorted(stream.requests[start:end]) == list(range(samples))


def test_epochs_are_shuffled_each_on_its_own() -> None:
    (stream,) = epochs(rng(), samples=30, epochs=20).streams
    assert len({tuple(order) for order in stream.requests.reshape(20, 30)}) == 20


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.5])
def test_zipfs_samples_are_asked_for_by_their_rank(exponent: float) -> None:
    samples, requests = 50, 200_000
    (stream,) = zipf(rng(), samples=samples, requests=requests, exponent=exponent).streams
    counts = np.sort(np.bincount(stream.requests, minlength=samples))[::-1]
    share = np.arange(1.0, samples + 1) ** -exponent
    wanted = requests * share / share.sum()
    assert abs(counts - wanted).max() < 4 * np.sqrt(wanted.max())
    assert stream.starts.tolist() == [0]
    repeated = np.mean(stream.requests[1:] == stream.requests[:-1])
    assert repeated == pytest.approx((share**2).sum() / share.sum() ** 2, rel=0.1)


def test_zipfs_most_popular_sample_is_drawn() -> None:
    first = set()
    for seed in range(20):
        (stream,) = zipf(rng(seed), samples=10, requests=1000, exponent=2.0).streams
        first.add(int(np.bincount(stream.requests).argmax()))
    assert len(first) > 4


@given(working_set=COUNTS, repeats=COUNTS, requests=COUNTS)
def test_repetition_repeats_a_few(working_set: int, repeats: int, requests: int) -> None:
    (stream,) = repetition(
        rng(), samples=12, requests=requests * 10, working_set=working_set, repeats=repeats
    ).streams
    assert len(stream.requests) == requests * 10
    lengths = stream.ends - stream.starts
    assert (lengths[:-1] == working_set * repeats).all()
    for start in stream.starts[:-1]:
        times = np.bincount(stream.requests[start : start + lengths[0]], minlength=12)
        assert sorted(times) == [0] * (12 - working_set) + [repeats] * working_set


def test_repetitions_are_shuffled_and_of_others_each_time() -> None:
    (stream,) = repetition(rng(), samples=100, requests=400, working_set=10, repeats=4).streams
    blocks = stream.requests.reshape(10, 40)
    assert len({frozenset(block) for block in blocks.tolist()}) == 10
    assert any(len(set(block[:10])) < 10 for block in blocks.tolist())


@given(data=st.data())
def test_gaps_have_a_share_of_the_clients_in_each_round(data: st.DataObject) -> None:
    numbers = data.draw(PATTERNS["gaps"])
    trace = gaps(rng(), **numbers)
    samples, accesses = numbers["samples"], numbers["accesses"]
    chosen = max(1, round(numbers["share"] * numbers["clients"]))
    rounds = np.concatenate([stream.rounds for stream in trace.streams])
    assert np.bincount(rounds).tolist() == [0] + [chosen] * numbers["rounds"]
    clients = [stream.client for stream in trace.streams]
    assert clients == sorted(set(clients))
    assert set(clients) <= set(range(numbers["clients"]))
    for stream in trace.streams:
        assert stream.samples == samples
        assert len(set(stream.rounds.tolist())) == len(stream.rounds)
        assert (stream.ends - stream.starts).tolist() == [accesses] * len(stream.rounds)
        for start in stream.starts:  # each participation starts afresh with whole epochs
            order = stream.requests[start : start + accesses]
            for first in range(0, accesses, samples):
                epoch = order[first : first + samples]
                assert len(set(epoch)) == len(epoch)


def test_whoever_takes_part_is_drawn_in_each_round() -> None:
    trace = gaps(rng(), clients=40, rounds=50, share=0.25)
    assert len(trace.streams) == 40
    assert any((np.diff(stream.rounds) > 1).any() for stream in trace.streams)


def sizes_of(trace: Trace) -> np.ndarray:
    return np.concatenate([stream.size_bytes for stream in trace.streams])


@pytest.mark.parametrize("name", SYNTHETIC)
def test_sizes_are_equal_given_or_log_normal(name: str) -> None:
    make = SYNTHETIC[name]
    samples = make(rng()).streams[0].samples
    assert (sizes_of(make(rng(), size_bytes=700)) == 700).all()
    given_sizes = np.arange(1, samples + 1)
    for stream in make(rng(), size_bytes=given_sizes).streams:
        assert stream.size_bytes.tolist() == given_sizes.tolist()
    logs = np.log(sizes_of(make(rng(), size_bytes=10**6, sigma=0.5)))
    assert np.median(logs) == pytest.approx(np.log(1e6), abs=0.1)
    assert logs.std() == pytest.approx(0.5, rel=0.1)
    assert sizes_of(make(rng(), size_bytes=2, sigma=3.0)).min() == 1
    widest = sizes_of(make(rng(), size_bytes=2**32 - 1, sigma=10.0))
    assert 1 <= widest.min() < widest.max() == 2**32 - 1
    requests = make(rng(), size_bytes=700).streams[0].requests
    assert requests.tolist() == make(rng()).streams[0].requests.tolist()


@pytest.mark.parametrize(
    ("name", "numbers", "said"),
    [
        ("zipf", {"samples": 0}, "samples is a whole number from 1 on, got 0"),
        ("zipf", {"requests": 0}, "requests is a whole number from 1 on"),
        ("epochs", {"epochs": -1}, "epochs is a whole number from 1 on, got -1"),
        ("epochs", {"batch": 0}, "batch is a whole number from 1 on"),
        ("epochs", {"size_bytes": 0}, "from 1 to 2"),
        ("epochs", {"size_bytes": np.ones(3, int)}, "broadcast"),
        ("epochs", {"size_bytes": 2**32}, "from 1 to 2"),
        ("epochs", {"size_bytes": 1.5}, "whole numbers"),
        ("epochs", {"sigma": 1e9}, "sigma is 0 to 10"),
        ("epochs", {"sigma": float("nan")}, "sigma is 0 to 10"),
        ("epochs", {"batch": 2.5}, "batch is a whole number from 1 on"),
        ("zipf", {"samples": 1.5}, "samples is a whole number from 1 on"),
        ("zipf", {"exponent": -1e3}, "exponent is 0 to 100"),
        ("zipf", {"exponent": float("inf")}, "exponent is 0 to 100"),
        ("repetition", {"working_set": 2000}, "a working set of 2000 of 1000 samples"),
        ("repetition", {"repeats": 0}, "repeats is a whole number from 1 on"),
        ("gaps", {"share": 0.0}, "share is above 0 to 1, got 0"),
        ("gaps", {"share": 1.5}, "share is above 0 to 1"),
        ("gaps", {"accesses": 0}, "accesses is a whole number from 1 on"),
    ],
)
def test_what_cannot_be_is_refused(name: str, numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SYNTHETIC[name](rng(), **numbers)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_number_that_it_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="unknown argument speed"):
        SYNTHETIC[name](rng(), speed=3)
