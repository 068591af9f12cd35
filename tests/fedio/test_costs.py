"""The cost model against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedio.costs import Work, expected_work, io_to_compute, phases
from fedio.profiles import Speeds


def device(clients: int = 1) -> Speeds:
    def each(value: float) -> np.ndarray:
        return np.full(clients, value)

    return Speeds(
        compute_s=each(0.5),
        download_bytes_per_s=each(100.0),
        upload_bytes_per_s=each(50.0),
        memory_bytes=each(1e9),
        origin_read_latency_s=each(0.1),
        origin_read_bytes_per_s=each(10.0),
        cache_read_latency_s=each(0.01),
        cache_read_bytes_per_s=each(1000.0),
        cache_write_latency_s=each(0.02),
        cache_write_bytes_per_s=each(500.0),
    )


def test_every_phase_by_hand() -> None:
    work = Work(
        trained_samples=np.array([10.0]),
        hits=np.array([4.0]),
        hit_bytes=np.array([400.0]),
        misses=np.array([6.0]),
        origin_bytes=np.array([60.0]),
        writes=np.array([5.0]),
        written_bytes=np.array([50.0]),
        decode_s=np.array([1.5]),
        download_bytes=np.array([200.0]),
        upload_bytes=np.array([200.0]),
    )
    took = phases(work, device())
    assert took.download_s[0] == 2.0  # 200 / 100
    assert took.origin_s[0] == pytest.approx(6.6)  # 6 * 0.1 + 60 / 10
    assert took.cache_s[0] == pytest.approx(0.44)  # 4 * 0.01 + 400 / 1000
    assert took.decode_s[0] == 1.5
    assert took.compute_s[0] == 5.0  # 10 * 0.5
    assert took.write_s[0] == pytest.approx(0.2)  # 5 * 0.02 + 50 / 500
    assert took.upload_s[0] == 4.0  # 200 / 50
    assert took.total_s[0] == pytest.approx(19.74)
    assert took.io_s[0] == pytest.approx(8.74)


def test_cold_and_warm_differ_by_the_missed_bytes_and_latencies() -> None:
    size, decode = np.array([20.0]), np.array([0.3])
    accesses = np.array([8.0])
    cold = phases(expected_work(accesses, np.array([0.0]), size, decode, 100.0), device())
    warm = phases(expected_work(accesses, np.array([0.5]), size, decode, 100.0), device())
    saved = 4 * (0.1 + 20 / 10) - 4 * (0.01 + 20 / 1000)
    assert cold.total_s[0] - warm.total_s[0] == pytest.approx(saved)
    assert cold.decode_s[0] == warm.decode_s[0] == pytest.approx(2.4)


def test_io_to_compute_is_a_ratio_of_fleet_sums() -> None:
    size, decode = np.array([10.0, 30.0]), np.array([0.4, 0.4])
    ratio = io_to_compute(np.array([10.0, 10.0]), size, decode, device(2))
    # origin 10 * (0.1 + 1) and 10 * (0.1 + 3), decode 10 * 0.4 each; compute 10 * 0.5 each
    assert ratio == pytest.approx((11 + 31 + 8) / 10)
