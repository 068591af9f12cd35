"""The meter: steps counted in any order, by anybody, add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.meter import MeterReading, StepCounts
from fedio.protocol import Meter, ProtocolError, from_record, to_record
from storage import CacheStats

counts = st.integers(0, 10**12)
step_counts = st.builds(StepCounts, *[counts] * len(StepCounts._fields))


def stats_of(steps: list[StepCounts]) -> CacheStats:
    """What the cache must have counted, for the meter to be true."""
    sums = {name: sum(getattr(step, name) for step in steps) for name in StepCounts._fields}
    return CacheStats(
        requests=sums["reads"] + sums["misses"],
        hits=sums["reads"],
        misses=sums["misses"],
        hit_bytes=sums["hit_bytes"],
        written_samples=sums["written"],
        written_bytes=sums["written_bytes"],
    )


@given(steps=st.lists(step_counts, min_size=1, max_size=6), seed=st.integers(0, 9))
def test_steps_may_be_counted_in_any_order(steps: list[StepCounts], seed: int) -> None:
    meter = MeterReading(len(steps), depth=3, readers=2)
    for step in np.random.default_rng(seed).permutation(len(steps)).tolist():
        meter.step(step, steps[step])
    result = meter.result(stats_of(steps))
    result.check()
    for i, name in enumerate(StepCounts._fields):
        assert getattr(result, f"step_{name}") == [step[i] for step in steps]
    assert (result.steps, result.depth, result.readers) == (len(steps), 3, 2)
    assert from_record(Meter, to_record(result)) == result


def test_what_is_trained_says_how_many_samples_that_is_worth() -> None:
    meter = MeterReading(3)
    meter.trained(0, np.array([1, 2]), None)
    meter.trained(2, np.array([2, 5]), np.array([2.0, 0.0]))
    result = meter.result(CacheStats())
    assert result.unique_samples == 3
    # Sample 1 weighs 1, sample 2 three times as much, sample 5 nothing.
    assert result.effective_samples == pytest.approx(16 / 10)
    nothing = MeterReading(2).result(CacheStats())
    assert (nothing.unique_samples, nothing.effective_samples) == (0, 0.0)


def test_skipped_and_refused_samples_are_counted_by_themselves() -> None:
    meter = MeterReading(4)
    meter.skipped(1, 1)
    meter.skipped(1, 1)
    meter.skipped(3, 1)
    meter.refused(3, 8)
    assert meter.all_skipped == 3
    result = meter.result(CacheStats(requests=5, misses=5))
    assert (result.skipped, result.refused) == (3, 8)


def test_the_counts_of_cache_and_steps_are_held_against_each_other() -> None:
    step = StepCounts(2, 1, 100, 1, 300, 2, 400, 1, 300)
    meter = MeterReading(1)
    meter.step(0, step)
    meter.result(stats_of([step])).check()
    for name in ("hits", "misses", "hit_bytes", "written_samples", "written_bytes"):
        good = stats_of([step])
        wrong = replace(good, **{name: getattr(good, name) + 1})
        with pytest.raises(ProtocolError):
            meter.result(wrong).check()
