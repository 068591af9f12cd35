"""The cost model against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.costs import (
    Phases,
    Samples,
    Work,
    expected_work,
    io_to_compute,
    phases,
    staging_s,
    total_s,
)
from fedio.profiles import Speeds


def device(clients: int = 1, **changes: float) -> Speeds:
    values = {
        "compute_s": 0.5,
        "step_s": 0.25,
        "decode_sample_s": 0.1,
        "decode_bytes_per_s": 50.0,
        "readers": 1.0,
        "depth": 1.0,
        "buffer_bytes": 1e9,
        "slowdown": 1.0,
        "download_bytes_per_s": 100.0,
        "upload_bytes_per_s": 50.0,
        "memory_bytes": 1e9,
        "origin_read_latency_s": 0.1,
        "origin_read_bytes_per_s": 10.0,
        "cache_read_latency_s": 0.01,
        "cache_read_bytes_per_s": 1000.0,
        "cache_write_latency_s": 0.02,
        "cache_write_bytes_per_s": 500.0,
    }
    return Speeds(**{name: np.full(clients, value) for name, value in (values | changes).items()})


def two_steps(depth: float) -> Work:
    return Work(
        steps=2,
        samples=np.array([[6.0, 4.0]]),
        hits=np.array([[1.0, 3.0]]),
        hit_bytes=np.array([[100.0, 300.0]]),
        misses=np.array([[5.0, 1.0]]),
        origin_bytes=np.array([[50.0, 10.0]]),
        decodes=np.array([[5.0, 2.0]]),
        decoded_bytes=np.array([[25.0, 5.0]]),
        writes=np.array([[5.0, 0.0]]),
        written_bytes=np.array([[50.0, 0.0]]),
        download_bytes=np.array([200.0]),
        upload_bytes=np.array([200.0]),
        depth=np.array([depth]),
        readers=np.array([1.0]),
    )


def test_every_phase_by_hand() -> None:
    took = phases(two_steps(depth=1), device())
    assert took.download_s[0] == 2.0  # 200 / 100
    assert took.origin_s[0] == pytest.approx(5.5 + 1.1)  # 5 * 0.1 + 50 / 10, 1 * 0.1 + 10 / 10
    assert took.cache_s[0] == pytest.approx(0.11 + 0.33)  # 1 * 0.01 + 100 / 1000, and thrice that
    assert took.write_s[0] == pytest.approx(0.2)  # 5 * 0.02 + 50 / 500
    assert took.decode_s[0] == pytest.approx(1.0 + 0.3)  # 5 * 0.1 + 25 / 50, 2 * 0.1 + 5 / 50
    assert took.compute_s[0] == 5.5  # 10 * 0.5 + 2 * 0.25
    assert took.upload_s[0] == 4.0  # 200 / 50
    assert took.io_s[0] == pytest.approx(8.54)
    # With a depth of 1 training waits for all of it.
    assert took.stall_s[0] == pytest.approx(8.54)
    assert took.total_s[0] == pytest.approx(2 + 8.54 + 5.5 + 4)


def test_what_is_read_while_training_is_not_waited_for() -> None:
    # The first batch takes 5.5 + 0.11 + 0.2 + 1 = 6.81 s and trains for 3.25 s, in which the other
    # one, of 1.1 + 0.33 + 0.3 = 1.73 s, comes in.
    took = phases(two_steps(depth=2), device())
    assert took.stall_s[0] == pytest.approx(6.81)
    assert took.total_s[0] == pytest.approx(2 + 6.81 + 5.5 + 4)
    assert took.io_s[0] == pytest.approx(8.54)


def test_a_step_that_is_not_there_takes_nothing() -> None:
    def longer(counts: np.ndarray) -> np.ndarray:
        return np.pad(counts, ((0, 0), (0, 3)))

    work = two_steps(depth=2)
    padded = {f.name: getattr(work, f.name) for f in fields(Work) if f.name != "steps"}
    padded = {name: longer(a) if a.ndim == 2 else a for name, a in padded.items()}
    took, alone = phases(Work(steps=5, **padded), device()), phases(work, device())
    assert took.total_s[0] == pytest.approx(alone.total_s[0])
    assert took.compute_s[0] == alone.compute_s[0]


SAMPLES = Samples(*np.array([[20.0], [40.0], [1.0], [0.5]]))


def test_cold_and_warm_differ_by_the_missed_bytes_latencies_and_images() -> None:
    cold, warm = (
        phases(expected_work(4, 2, np.array([share]), SAMPLES, 100.0, device()), device())
        for share in (0.0, 0.5)
    )
    saved_io = 4 * (0.1 + 20 / 10) - 4 * (0.01 + 40 / 1000)
    # Cold all 8 are decoded; warm 4 from the origin and every other one of 4 from the cache.
    assert cold.decode_s[0] == pytest.approx(8 * (0.1 + 20 / 50))
    assert warm.decode_s[0] == pytest.approx(6 * (0.1 + 20 / 50))
    assert cold.compute_s[0] == warm.compute_s[0] == 8 * 0.5 + 4 * 0.25
    assert cold.total_s[0] - warm.total_s[0] == pytest.approx(saved_io + 2 * 0.5)


def test_a_prediction_runs_ahead_as_far_as_the_device_does() -> None:
    # A step: 2 reads of 2.1 s, 2 images of 0.5 s, 1.25 s of training.
    def total_s(**ahead: float) -> float:
        speeds = device(**ahead)
        work = expected_work(4, 2, np.zeros(1), SAMPLES, 0.0, speeds)
        return float(phases(work, speeds).total_s[0])

    assert total_s(depth=1.0) == pytest.approx(4 * (4.2 + 1 + 1.25))
    assert total_s(depth=4.0) == pytest.approx(4 * 5.2 + 1.25)
    assert total_s(depth=4.0, readers=2.0) == pytest.approx(4 * 4.2 + 1 + 1.25)


@given(
    st.integers(1, 12),
    st.floats(0, 1),
    st.integers(1, 6),
    st.integers(1, 4),
    st.floats(0.001, 3),
)
def test_one_step_stands_for_all_that_are_alike(
    steps: int, hit_share: float, depth: int, readers: int, compute_s: float
) -> None:
    speeds = device(depth=depth, readers=readers, compute_s=compute_s)
    work = expected_work(steps, 2, np.array([hit_share]), SAMPLES, 100.0, speeds)
    one, all_of_them = phases(work, speeds), phases(step_by_step(work), speeds)
    for phase in fields(Phases):
        np.testing.assert_allclose(
            getattr(one, phase.name), getattr(all_of_them, phase.name), rtol=1e-12, atol=1e-9
        )
    np.testing.assert_allclose(total_s(work, speeds), one.total_s, rtol=1e-12)


@given(st.integers(1, 6), st.integers(1, 5), st.floats(1, 3))
def test_one_step_stands_for_all_where_decoding_and_training_share_cores(
    steps: int, depth: int, slowdown: float
) -> None:
    fast = {"origin_read_latency_s": 0.0, "origin_read_bytes_per_s": 1e9}
    speeds = replace(device(2, depth=depth, **fast), slowdown=np.array([slowdown, 1.0]))
    two = Samples(*np.array([[20.0], [40.0], [1.0], [0.5]]).repeat(2, axis=1))
    work = expected_work(steps, 2, np.array([0.25, 0.5]), two, 100.0, speeds)
    one, all_of_them = phases(work, speeds), phases(step_by_step(work), speeds)
    for name in ("stall_s", "decode_s", "compute_s", "total_s"):
        np.testing.assert_allclose(getattr(one, name), getattr(all_of_them, name), rtol=1e-12)
    np.testing.assert_allclose(total_s(work, speeds), one.total_s, rtol=1e-12)
    if slowdown > 1.01 and depth > 1 and steps > 1:
        assert one.compute_s[0] > one.compute_s[1]  # while it trains, the next is decoded


def test_decoding_and_training_on_shared_cores_by_hand() -> None:
    # Read in no time, a step is decoded for 1 s and trained for 1.25 s. The second is decoded from
    # 1 to 3 s, while the first trains at half its pace, until 3.25 s; the second until 4.5 s.
    ahead = {"depth": 2.0, "slowdown": 2.0}
    speeds = device(origin_read_latency_s=0.0, origin_read_bytes_per_s=np.inf, **ahead)
    took = phases(expected_work(2, 2, np.zeros(1), SAMPLES, 100.0, speeds), speeds)
    assert took.decode_s[0] == pytest.approx(1 + 2)
    assert took.compute_s[0] == pytest.approx(2.25 + 1.25)
    assert took.total_s[0] == pytest.approx(1 + 4.5 + 2)


def step_by_step(work: Work) -> Work:
    """The same work with all of its steps written out, and writes of nothing."""
    counts = {f.name: getattr(work, f.name) for f in fields(Work)}
    clients = len(work.misses)
    nothing = np.zeros((clients, work.steps))
    alike = ("samples", "hits", "hit_bytes", "misses", "origin_bytes", "decodes", "decoded_bytes")
    written = {
        name: np.broadcast_to(counts[name], clients)[:, None].repeat(work.steps, axis=1)
        for name in alike
    }
    return replace(work, **written, writes=nothing, written_bytes=nothing)


def test_the_total_is_that_of_all_phases() -> None:
    work = two_steps(depth=2)
    assert total_s(work, device())[0] == pytest.approx(phases(work, device()).total_s[0])


def test_writes_that_are_left_out_take_nothing_whatever_a_device_claims() -> None:
    speeds = device(cache_write_latency_s=np.nan, cache_write_bytes_per_s=np.nan)
    took = phases(expected_work(4, 2, np.zeros(1), SAMPLES, 100.0, speeds), speeds)
    assert took.write_s.tolist() == [0.0]
    assert np.isfinite(took.total_s).all()


def test_training_without_an_end_has_no_end() -> None:
    speeds = device(2, compute_s=np.array([np.inf, 0.5]))  # type: ignore[arg-type]
    speeds = replace(speeds, origin_read_bytes_per_s=np.array([10.0, 0.0]))
    two = Samples(*(column.repeat(2) for column in np.array([[20.0], [40.0], [1.0], [0.5]])))
    with np.errstate(all="ignore"):
        took = phases(expected_work(4, 2, np.zeros(2), two, 100.0, speeds), speeds)
    assert took.total_s.tolist() == [np.inf, np.inf]


def test_io_to_compute_is_a_ratio_of_fleet_sums() -> None:
    samples = Samples(np.array([10.0, 30.0]), np.ones(2), np.array([1.0, 0.0]), np.ones(2))
    ratio = io_to_compute(5, 2, samples, device(2, depth=4.0))
    # origin 10 * (0.1 + 1) and 10 * (0.1 + 3), decode 10 * (0.1 + 10 / 50) of the first alone;
    # compute 10 * 0.5 + 5 * 0.25 each
    assert ratio == pytest.approx((11 + 31 + 3) / (2 * 6.25))


def test_staging_reads_decodes_and_writes_in_turns() -> None:
    took_s = staging_s((3, 60), (2, 40), (4, 100), device(depth=4.0, readers=2.0))
    # 3 * 0.1 + 60 / 10, 2 * 0.1 + 40 / 50, 4 * 0.02 + 100 / 500
    assert took_s == pytest.approx(6.3 + 1.0 + 0.28)
    assert staging_s((0, 0), (0, 0), (0, 0), device()).tolist() == [0.0]
