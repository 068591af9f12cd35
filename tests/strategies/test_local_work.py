"""Local work: a cohort that finishes together, whatever its clients claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.local_work import MOST, _filled, together
from strategies.selector import View
from strategies.selectors.claims import predicted_phases

ViewOf = Callable[..., View]
SECONDS = st.floats(0, 1e6) | st.sampled_from([0.0, 1.0, 2.0, np.inf])
COHORTS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8)


def filled(cohort: list[tuple[float, float]], mean_steps: int) -> list[int]:
    fixed_s, step_s = np.array(cohort).T
    return _filled(fixed_s, step_s, mean_steps)


def test_a_cohort_of_three_by_hand() -> None:
    # By 7 s steps of 1, 2 and 4 s are 7, 3 and 1; the 12th comes at 8 s, where steps are short.
    assert filled([(0, 1), (0, 2), (0, 4)], 4) == [8, 3, 1]
    # With 6 s of transfer the first has done 4 by 10 s, the others 5 and 2; then it is its turn.
    assert filled([(6, 1), (0, 2), (0, 4)], 4) == [5, 5, 2]


def test_nobody_gets_less_than_a_step_or_more_than_four_times_the_mean() -> None:
    assert filled([(0, 1e-9), (0, 1.0), (0, 1.0)], 5) == [13, 1, 1]
    assert filled([(0, 1e-9)] + [(0, 1.0)] * 5, 3) == [12, 2, 1, 1, 1, 1]
    assert filled([(np.inf, 1.0), (1.0, 1.0)], 3) == [1, 5]


def test_alike_clients_take_alike_steps() -> None:
    for one in [(3.0, 2.0), (3.0, 0.0), (0.0, 0.0), (np.inf, np.inf)]:
        assert filled([one] * 5, 7) == [7] * 5
    assert filled([(1.0, 1.0)], 9) == [9]


@settings(max_examples=300)
@given(COHORTS, st.integers(1, 20))
def test_who_is_slower_never_gets_more_and_the_work_is_what_it_was(
    cohort: list[tuple[float, float]], mean_steps: int
) -> None:
    steps = filled(cohort, mean_steps)
    assert sum(steps) == len(cohort) * mean_steps
    assert all(1 <= own <= MOST * mean_steps for own in steps)
    for (fixed, step), own in zip(cohort, steps, strict=True):
        for (other_fixed, other_step), others in zip(cohort, steps, strict=True):
            if (
                fixed <= other_fixed
                and step <= other_step
                and (fixed, step)
                != (
                    other_fixed,
                    other_step,
                )
            ):
                assert own >= others


@given(COHORTS, st.integers(1, 20))
def test_the_last_could_not_finish_earlier(
    cohort: list[tuple[float, float]], mean_steps: int
) -> None:
    steps = filled(cohort, mean_steps)

    def finish(position: int, more: int = 0) -> float:
        fixed, step = cohort[position]
        return fixed + (steps[position] + more) * step

    # Whoever took more than the one step had it before all that others could still take.
    moved = [finish(i) for i, own in enumerate(steps) if own > 1]
    free = [finish(i, 1) for i, own in enumerate(steps) if own < MOST * mean_steps]
    assert max(moved, default=0.0) <= min(free, default=np.inf)


def test_storage_and_transfer_are_in_the_prediction(view_of: ViewOf) -> None:
    # Cold or warm, slow or fast to compute, far or near: all predicted to end within one step.
    view = view_of(
        4,
        4,
        resident_samples=[0, 200, 0, 0],
        compute_s=[0.1, 0.1, 0.2, 0.1],
        upload_bytes_per_s=[0.5e6, 0.5e6, 0.5e6, 1e5],
        depth=2.0,
    )
    clients = np.array([3, 0, 2, 1])
    steps = together(view, clients)
    assert steps.sum() == 4 * 8
    assert steps.dtype == np.int64
    by_client = dict(zip(clients.tolist(), steps.tolist(), strict=True))
    assert by_client[1] == max(by_client.values()) > by_client[0] > by_client[2]
    assert by_client[3] < by_client[0]
    ends_s, step_s = np.zeros(4), np.zeros(4)
    for i, own in enumerate(steps.tolist()):
        took = predicted_phases(replace(view, local_steps=own), clients[[i]])
        ends_s[i] = took.total_s[0]
        step_s[i] = (took.stall_s[0] + took.compute_s[0]) / own
    assert np.ptp(ends_s) <= step_s.max() * 1.1


def test_of_whom_nothing_is_known_the_mean_is_asked(view_of: ViewOf) -> None:
    claimed = [np.nan, 0.01, 0.04, -1e9, 0.01]
    view = view_of(5, 5, compute_s=claimed, mean_size_bytes=[1e5, 1e5, 1e5, 1e5, np.nan])
    steps = together(view, np.arange(5))
    assert steps[[0, 3, 4]].tolist() == [8, 8, 8]
    assert steps[1] > 8 > steps[2]
    assert steps.sum() == 5 * 8
    assert together(view, np.zeros(0, dtype=np.int64)).tolist() == []


@pytest.mark.parametrize("claim", [0.0, 1e-300, 1e300, np.inf, np.nan, -np.inf])
def test_any_claim_is_borne(view_of: ViewOf, claim: float) -> None:
    for column in ("compute_s", "download_bytes_per_s", "origin_read_bytes_per_s", "depth"):
        view = view_of(3, 3, **{column: [claim, 1.0, 2.0]})
        steps = together(view, np.arange(3))
        assert ((steps >= 1) & (steps <= MOST * 8)).all()
        assert steps.sum() == 3 * 8
