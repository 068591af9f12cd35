from __future__ import annotations

import numpy as np
import pytest

from storage import Tier

SD_CARD = Tier(
    read_latency_s=0.002, read_bytes_per_s=40e6, write_latency_s=0.005, write_bytes_per_s=20e6
)


def test_a_read_is_latency_and_bytes_over_bandwidth() -> None:
    assert SD_CARD.read_s(1, 4_000_000) == pytest.approx(0.002 + 0.1)
    assert SD_CARD.write_s(1, 4_000_000) == pytest.approx(0.005 + 0.2)


def test_a_set_of_reads_costs_the_sum_of_its_members() -> None:
    sizes = np.array([100.0, 0.0, 5e6])
    apart = sum(SD_CARD.read_s(1, size) for size in sizes.tolist())
    assert SD_CARD.read_s(3, float(sizes.sum())) == pytest.approx(apart)


def test_no_operation_costs_nothing() -> None:
    assert SD_CARD.read_s(0, 0) == 0
    assert SD_CARD.write_s(0, 0) == 0


def test_fields_may_hold_one_entry_per_device() -> None:
    fleet = Tier(np.array([0.0, 0.1]), np.array([1e6, 2e6]), 0.0, 1e6)
    assert fleet.read_s(2.0, 4e6).tolist() == pytest.approx([4.0, 2.2])
    assert fleet.read_s(np.array([1.0, 2.0]), np.array([1e6, 2e6])).tolist() == pytest.approx(
        [1.0, 1.2]
    )
