"""The policy benchmark: what it does is checked at a tiny scale; its times are nobody's test."""

from __future__ import annotations

from unittest.mock import patch

from experiments.bench import BENCHES, measure, policy
from storage.policies import POLICIES


def test_every_policy_is_measured_on_both_traces() -> None:
    tiny = (policy.Setting(capacity=30, requests=300, exponent=1.0, samples=60),)
    with patch.object(measure, "REPETITIONS", 1):
        rows = list(policy.rows(tiny))
    assert BENCHES["policy"] is policy.rows
    assert [row.name for row in rows] == 2 * [f"policy.{name}" for name in POLICIES]
    assert {row.reference for row in rows} == {"cachetools-lru"}
    assert {row.setting["trace"] for row in rows} == {"zipf", "epochs"}
    assert all(row.ratio > 0 and row.setting["batch"] == 32 for row in rows)


def test_both_sides_of_lru_do_the_same_work() -> None:
    tiny = (policy.Setting(capacity=100, requests=5000, exponent=1.1, samples=260),)
    with patch.object(measure, "REPETITIONS", 1):
        rows = list(policy.rows(tiny))
    for row in rows:
        if row.name == "policy.lru":
            # Within a batch ours reads before it takes in, so they are not quite the same.
            assert abs(row.setting["hit_ratio"] - row.setting["reference_hit_ratio"]) < 0.05


def test_the_traces_hit_as_named() -> None:
    for setting in policy.FULL[:2]:
        for name, stream in setting.traces().items():
            hits = policy._cachetools(stream.requests.tolist(), setting.capacity)
            assert abs(hits - {"zipf": 0.7, "epochs": 0.1}[name]) < 0.03
