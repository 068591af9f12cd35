"""A replay decides as the cache does, whatever the policy, the batches and the sizes."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import POLICIES, Layout, Policy, open_cache
from storage.layout import usable_bytes
from storage.policy import ScorePolicy
from storage.replay import BySize, replay
from storage.trace import Stream
from storage.victim_queue import NOBODY


def stream_of(
    participations: list[list[list[int]]],
    size_bytes: list[int],
    losses: np.ndarray | None = None,
    depth: list[int] | None = None,
) -> Stream:
    """A stream of participations, each a list of batches."""
    batches = [batch for batches in participations for batch in batches]
    requests = np.array([sample for batch in batches for sample in batch], np.int64)
    ends = np.cumsum([len(batch) for batch in batches])
    lengths = [sum(len(batch) for batch in batches) for batches in participations]
    return Stream(
        client=0,
        size_bytes=np.array(size_bytes, np.int64),
        requests=requests,
        batch_starts=np.concatenate([[0], ends[:-1]]).astype(np.int64),
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
        rounds=np.arange(1, len(participations) + 1),
        losses=np.empty(0, np.float32) if losses is None else losses[: len(requests)],
        depth=np.array(depth or [], np.int64),
    )


def through_the_cache(stream: Stream, policy: Policy, budget_bytes: int) -> tuple[int, int, int]:
    """Hits, stand-ins and written bytes of a real cache that is asked for the same."""
    cache = open_cache(None, budget_bytes, policy)
    buffer = np.zeros(1 << 20, np.uint8)
    for start, end, depth in zip(stream.starts, stream.ends, stream.depth, strict=True):
        cache.policy.plan(stream.requests[start:end])
        told: list[tuple[np.ndarray, np.ndarray]] = []
        for first, last in zip(stream.batch_starts, stream.batch_ends, strict=True):
            if start <= first < end:
                if len(told) >= depth:
                    cache.feedback(*told[len(told) - depth])
                batch = stream.requests[first:last]
                read = cache.read(batch, buffer)
                missed = batch[~read.served]
                lengths = np.ones(len(missed), np.int64)
                cache.offer(missed, buffer, 0 * lengths, lengths, stream.size_bytes[missed])
                same = read.samples == batch
                losses = stream.losses[first:last].astype(np.float64)
                told.append((batch[same], losses[same]) if len(losses) else (batch[:0], losses))
        for samples, losses in told[-depth:]:
            cache.feedback(samples, losses)
    return cache.stats.hits, cache.stats.substituted, cache.stats.written_bytes


SAMPLES = 12
PLACES = 10 * np.arange(200, dtype=np.float32)
BATCHES = st.lists(
    st.lists(st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=5), min_size=1, max_size=8),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
def test_a_replay_equals_the_cache(name: str, data: st.DataObject) -> None:
    participations = data.draw(BATCHES)
    alike = data.draw(st.booleans())
    sizes = st.just(900) if alike else st.integers(1, 9000)
    size_bytes = data.draw(st.lists(sizes, min_size=SAMPLES, max_size=SAMPLES))
    losses = np.random.default_rng(0).exponential(size=200).astype(np.float32)
    depths = st.lists(st.integers(1, 10), min_size=4, max_size=4)
    stream = stream_of(
        participations,
        size_bytes,
        losses if data.draw(st.booleans()) else None,
        data.draw(depths)[: len(participations)],
    )
    budget_bytes = data.draw(st.sampled_from([0, 4000, 9000, 20_000, 60_000]))
    policies = POLICIES[name](SAMPLES), POLICIES[name](SAMPLES)
    layout = Layout.for_budget(budget_bytes)
    outcome = replay(stream, policies[0], layout, usable_bytes(budget_bytes))
    hits, substituted, written = through_the_cache(stream, policies[1], budget_bytes)
    assert (outcome.hits, outcome.substituted, outcome.written_bytes) == (
        hits,
        substituted,
        written,
    )
    assert outcome.hits_by_participation.sum() == hits


def test_bytes_are_counted() -> None:
    stream = stream_of([[[0], [1], [0], [2], [1]]], [10, 20, 40])
    outcome = replay(stream, POLICIES["lru"](3), BySize(), 50)
    assert (outcome.requests, outcome.hits) == (5, 1)
    assert (outcome.served_bytes, outcome.hit_bytes) == (100, 10)
    # 2 drives out 1 and 0 stays; 1 comes again and drives out 0.
    assert outcome.written_bytes == 10 + 20 + 40 + 20


def test_requests_one_by_one_equal_a_model() -> None:
    rng = np.random.default_rng(0)
    requests = rng.zipf(1.4, 3000) % 50
    stream = stream_of([[[int(sample)] for sample in requests]], [1] * 50)
    held: dict[int, None] = {}
    hits = 0
    for sample in requests.tolist():
        hits += sample in held
        held.pop(sample, None)
        held[sample] = None
        if len(held) > 10:
            del held[next(iter(held))]
    assert replay(stream, POLICIES["lru"](50), BySize(), 10).hits == hits


class Diary(POLICIES["lru"]):  # type: ignore[name-defined,misc]
    """Writes down what it is told, in order: samples by name of the call."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.told: list[tuple[str, list[int]]] = []

    def plan(self, order: np.ndarray) -> None:
        self.told.append(("plan", order.tolist()))

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        self.told.append(("access", samples.tolist()))
        super().access(samples, hit)

    def inserted(self, samples: np.ndarray) -> None:
        self.told.append(("inserted", samples.tolist()))
        super().inserted(samples)

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        # Losses here are ten times the place of the request.
        self.told.append(("feedback", (losses / 10).astype(int).tolist()))
        assert len(samples) == len(losses)


def test_losses_come_as_late_as_they_were_read_ahead_by_hand() -> None:
    # Places of requests: 0 1 | 2 | 3 | 4 | 5 in the first participation, 6 | 7 in the second.
    stream = stream_of([[[0, 1], [2], [3], [4], [0]], [[1], [2]]], [1] * 5, PLACES, [3, 1])
    policy = Diary(5)
    replay(stream, policy, BySize(), 5)
    assert [(call, value) for call, value in policy.told if call != "inserted"] == [
        ("plan", [0, 1, 2, 3, 4, 0]),
        ("access", [0, 1]),
        ("access", [2]),
        ("access", [3]),
        ("feedback", [0, 1]),
        ("access", [4]),
        ("feedback", [2]),
        ("access", [0]),
        ("feedback", [3]),
        ("feedback", [4]),
        ("feedback", [5]),
        ("plan", [1, 2]),
        ("access", [1]),
        ("feedback", [6]),
        ("access", [2]),
        ("feedback", [7]),
    ]


@given(
    participations=BATCHES,
    depths=st.lists(st.integers(1, 10), min_size=4, max_size=4),
    size_bytes=st.sampled_from([[1] * SAMPLES, [*range(1, SAMPLES + 1)]]),
)
def test_losses_of_batch_j_come_before_batch_j_plus_depth_is_read(
    participations: list[list[list[int]]], depths: list[int], size_bytes: list[int]
) -> None:
    """A model that knows all batches, and asks for each which ones have been told before it."""
    expected: list[tuple[str, list[int]]] = []
    place = 0
    for batches, depth in zip(participations, depths, strict=False):
        expected.append(("plan", [sample for batch in batches for sample in batch]))
        ends = place + np.cumsum([len(batch) for batch in batches])
        losses = [
            ("feedback", list(range(end - len(batch), end)))
            for batch, end in zip(batches, ends.tolist(), strict=True)
        ]
        place = int(ends[-1])
        for j, batch in enumerate(batches):
            expected += [losses[i] for i in range(len(batches)) if i + depth == j]
            expected.append(("access", batch))
        expected += [losses[i] for i in range(len(batches)) if i + depth >= len(batches)]
    policy = Diary(SAMPLES)
    stream = stream_of(participations, size_bytes, PLACES, depths[: len(participations)])
    replay(stream, policy, BySize(), 6)
    # A batch comes in before anything later is told.
    calls = [call for call, _ in policy.told]
    assert all(
        calls[at - 1] in {"access", "inserted"} for at, c in enumerate(calls) if c == "inserted"
    )
    assert [told for told in policy.told if told[0] != "inserted"] == expected


class OnlyEven(ScorePolicy):
    """Lets in samples of even numbers."""

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        pass

    def admit(self, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        even: np.ndarray = samples % 2 == 0
        return even


def test_admission_is_asked() -> None:
    stream = stream_of([[[0, 1], [0, 1], [2, 4], [2, 4]]], [1] * 5)
    outcome = replay(stream, OnlyEven(5), BySize(), 2)
    assert outcome.hits == 1 + 2
    assert outcome.written_bytes == 3


class Echo(POLICIES["lru"]):  # type: ignore[name-defined,misc]
    """Lets sample 0 stand in for all."""

    substitutes = True

    def stand_ins(self, samples: np.ndarray) -> np.ndarray:
        return np.full(len(samples), 0 if self._cached[0] else NOBODY)


def test_stand_ins_are_no_demand_hits_and_are_not_offered() -> None:
    stream = stream_of([[[0], [1], [2], [0]]], [1] * 3)
    outcome = replay(stream, Echo(3), BySize(), 2)
    assert (outcome.hits, outcome.substituted, outcome.written_bytes) == (1, 2, 1)


class EchoDiary(Diary):
    """Lets sample 0 stand in for all."""

    substitutes = True

    def stand_ins(self, samples: np.ndarray) -> np.ndarray:
        return np.zeros(len(samples), np.int64)


def test_a_batch_of_which_nothing_is_told_takes_its_time_too() -> None:
    stream = stream_of([[[0], [1], [0, 2], [0]]], [1] * 3, PLACES, [2])
    policy = EchoDiary(3)
    replay(stream, policy, BySize(), 2)
    assert [told for told in policy.told[1:] if told[0] != "inserted"] == [
        ("access", [0]),
        ("access", [1]),
        ("feedback", [0]),
        ("access", [0, 2]),  # the loss of what was trained for 1 is not known
        ("access", [0]),
        ("feedback", [2]),
        ("feedback", [4]),
    ]


class Careless(POLICIES["static"]):  # type: ignore[name-defined,misc]
    """Names a stand-in that is not there."""

    substitutes = True

    def stand_ins(self, samples: np.ndarray) -> np.ndarray:
        return np.full(len(samples), 2)


def test_a_stand_in_that_is_not_there_serves_nobody() -> None:
    stream = stream_of([[[0], [1], [0]]], [1] * 3)
    outcome = replay(stream, Careless(3), BySize(), 2)
    assert (outcome.hits, outcome.substituted) == (1, 0)


class Twice(POLICIES["lru"]):  # type: ignore[name-defined,misc]
    """Names the first victim twice, or somebody else."""

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        return [9] * len(incoming)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        first = next(super().victims(incoming), 0)
        yield from (first, first)


class Numbers(POLICIES["lru"]):  # type: ignore[name-defined,misc]
    """Answers with numbers where yes or no was asked."""

    def admit(self, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.arange(len(samples))


@pytest.mark.parametrize("sizes", [[100] * 10, [100] * 9 + [150]])
def test_a_policy_that_breaks_its_contract_is_told(sizes: list[int]) -> None:
    stream = stream_of([[[sample] for sample in range(10)]], sizes)
    with pytest.raises(ValueError, match="policy Twice named a victim"):
        replay(stream, Twice(10), BySize(), 200)
    with pytest.raises(ValueError, match="policy Numbers: admit gave int64"):
        replay(stream, Numbers(10), BySize(), 200)
    cache = open_cache(None, 9000, Twice(10))
    buffer, one = np.zeros(4000, np.uint8), np.zeros(1, np.int64)

    def fill() -> None:
        for sample in range(10):
            cache.offer(np.array([sample]), buffer, one, one + 2000)

    with pytest.raises(ValueError, match="policy Twice named a victim"):
        fill()
    assert cache.used_bytes <= cache.usable_bytes


def test_an_empty_stream_and_no_room() -> None:
    stream = stream_of([[[0], [0]]], [5])
    assert replay(stream, POLICIES["lru"](1), BySize(), 4).hits == 0
    empty = Stream(0, np.ones(3, np.int64), *(np.empty(0, np.int64) for _ in range(4)))
    assert replay(empty, POLICIES["lru"](3), BySize(), 4).requests == 0
