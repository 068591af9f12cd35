"""TiFL: its tiers, its credits and its chances, by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from strategies.selector import Cohort, State, View
from strategies.selectors import TiFL
from strategies.selectors.tifl import latency_tiers, mean_losses

ViewOf = Callable[..., View]
NAN, INF = np.nan, np.inf


def select(
    view: View, seed: int = 0, selector: TiFL | None = None, **changes: object
) -> tuple[Cohort, State]:
    """Select from a state that is the initial one but for what is given."""
    selector = TiFL() if selector is None else selector
    state = selector.initial_state(len(view.fleet))
    state |= {name: np.asarray(value) for name, value in changes.items()}
    return selector.select(view, state, np.random.default_rng(seed))


def only(tier: int) -> dict[str, object]:
    """A state in which one tier alone has a credit."""
    return {"credits": np.arange(5) == tier}


@pytest.fixture
def fleet_of_25(view_of: ViewOf) -> Callable[..., View]:
    """Tier 0 is clients 0 to 4, and so on; it is round 9, and no interval begins."""

    def make(count: int, **columns: object) -> View:
        columns = {"server_round": 9, "last_round": 5, "duration_s": np.arange(25.0)} | columns
        return view_of(25, count, **columns)

    return make


# --- tiers ------------------------------------------------------------------------------------


def test_tiers_hold_equally_many_by_duration(view_of: ViewOf) -> None:
    view = view_of(10, 1, duration_s=[9.0, 0.0, 8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0])
    latency_s, tier_of = latency_tiers(view, 5)
    assert tier_of.tolist() == [4, 0, 4, 0, 3, 1, 3, 1, 2, 2]
    assert latency_s.tolist() == view.fleet.duration_s.tolist()
    assert latency_tiers(view, 1)[1].tolist() == [0] * 10
    # Of seven, one or two are in each.
    _, tier_of = latency_tiers(view_of(7, 1, duration_s=np.arange(7.0)), 5)
    assert tier_of.tolist() == [0, 0, 1, 2, 2, 3, 4]


def test_the_equally_fast_share_a_tier(view_of: ViewOf) -> None:
    view = view_of(10, 1, duration_s=[1.0] * 6 + [2.0] * 4)
    assert latency_tiers(view, 5)[1].tolist() == [0] * 6 + [3] * 4


def test_who_was_not_seen_is_placed_by_prediction_storage_included(view_of: ViewOf) -> None:
    # 3 s of transfer, and 160 times 0.01 s of compute, 0.002 of decoding, 0.01 + 1e5 / speed.
    speeds = [1e6, 1e5, 1e6, 1e6]
    duration_s = [NAN, NAN, 100.0, 3.0]
    view = view_of(4, 1, duration_s=duration_s, origin_read_bytes_per_s=speeds)
    latency_s, tier_of = latency_tiers(view, 4)
    np.testing.assert_allclose(latency_s, [22.52, 166.52, 100.0, 3.0])
    assert tier_of.tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize("duration_s", [NAN, -1.0, INF])
def test_the_unknown_are_in_the_slowest_tier(view_of: ViewOf, duration_s: float) -> None:
    durations, compute_s = [duration_s, 1.0, 2.0, 3.0, 4.0], [NAN, 1, 1, 1, 1]
    view = view_of(5, 1, duration_s=durations, compute_s=compute_s)
    latency_s, tier_of = latency_tiers(view, 5)
    assert latency_s[0] == INF
    assert tier_of.tolist() == [4, 0, 1, 2, 3]


def test_who_is_neither_known_nor_feasible_shifts_no_border(view_of: ViewOf) -> None:
    view = view_of(9, 1, samples=[200] * 5 + [-1] * 4, duration_s=[*range(1, 6), 0, 0, 0, 0])
    assert latency_tiers(view, 5)[1][:5].tolist() == [0, 1, 2, 3, 4]


# --- a round ----------------------------------------------------------------------------------


def test_a_round_has_clients_of_one_tier_and_each_tier_its_turn(
    fleet_of_25: Callable[..., View],
) -> None:
    view, seen = fleet_of_25(3), np.zeros(5)
    for seed in range(600):
        cohort, state = select(view, seed)
        tiers = np.unique(cohort.clients // 5)
        assert len(tiers) == 1
        assert tiers == state["drawn"]
        assert cohort.reasons.why == ["tier"] * 3
        assert cohort.reasons.rest == {"not drawn": 2, "lower score": 20}
        seen[tiers] += 1
    np.testing.assert_allclose(seen / 600, 0.2, atol=0.06)


def test_the_details_tell_tier_and_seconds(fleet_of_25: Callable[..., View]) -> None:
    cohort, _ = select(fleet_of_25(5), **only(3))
    assert cohort.reasons.details["latency_tier"].tolist() == [3.0] * 5
    assert cohort.reasons.details["assumed_s"].tolist() == [15.0, 16.0, 17.0, 18.0, 19.0]


def test_a_cohort_is_filled_from_the_nearest_tiers_the_faster_first(
    fleet_of_25: Callable[..., View],
) -> None:
    for seed in range(20):
        cohort, _ = select(fleet_of_25(13), seed, **only(2))
        clients = cohort.clients
        assert clients[:10].tolist() == list(range(5, 15))
        assert set(clients[10:].tolist()) < set(range(15, 20))
        assert cohort.reasons.why == ["nearest"] * 5 + ["tier"] * 5 + ["nearest"] * 3
    assert select(fleet_of_25(12), **only(0))[0].clients[:10].tolist() == list(range(10))


def test_a_tier_without_feasible_clients_is_not_drawn(fleet_of_25: Callable[..., View]) -> None:
    view = fleet_of_25(2, feasible=np.arange(25) // 5 != 1)
    for seed in range(30):
        cohort, state = select(view, seed, credits=[0, 3, 1, 0, 0])
        assert set((cohort.clients // 5).tolist()) == {2}
        assert state["credits"].tolist() == [0, 3, 0, 0, 0]
    # Nobody with a credit is there: all have credits again.
    _, state = select(view, credits=[0, 3, 0, 0, 0])
    assert sorted(state["credits"].tolist()) == [3, 4, 4, 4, 4]
    assert state["credits"][1] == 4


# --- credits and chances ----------------------------------------------------------------------


def test_no_tier_is_drawn_more_often_than_its_credits_allow(view_of: ViewOf) -> None:
    selector = TiFL(interval_rounds=10, credit_rounds=4)
    chances = np.array([0.96, 0.01, 0.01, 0.01, 0.01])
    state = selector.initial_state(25) | {"chances": chances}
    rng, drawn = np.random.default_rng(3), []
    for server_round in range(1, 41):
        view = view_of(25, 3, server_round=server_round, duration_s=np.arange(25.0))
        _, state = selector.select(view, state, rng)
        drawn.append(int(state["drawn"]))
    for start in range(0, 40, 10):
        times = np.bincount(drawn[start : start + 10], minlength=5)
        assert times.max() == times[0] == 4


LOSS = np.repeat([1.0, 5.0, 2.0, 4.0, 3.0], 5)


@pytest.mark.parametrize(
    ("server_round", "before", "change"),
    [
        (21, 1.9, True),  # the tier drawn last, 2, has a loss of 2 now: worse
        (21, 2.0, True),  # the same
        (21, 2.1, False),  # better
        (21, NAN, False),  # nothing to compare with
        (22, 1.9, False),  # no interval begins
    ],
)
def test_the_chances_change_where_the_last_tier_got_no_better(
    fleet_of_25: Callable[..., View], server_round: int, before: float, change: bool
) -> None:
    view = fleet_of_25(3, server_round=server_round, loss=LOSS)
    losses, credit = np.full(5, before), [1, 2, 0, 2, 1]
    _, state = select(view, losses=losses, drawn=2, credits=credit)
    expected = np.array([1, 5, 2, 4, 3]) / 15 if change else np.full(5, 0.2)
    np.testing.assert_allclose(state["chances"], expected)
    looked = server_round == 21
    assert state["credits"].sum() == (20 if looked else 6) - 1
    np.testing.assert_array_equal(state["losses"], [1, 5, 2, 4, 3] if looked else losses)


def test_a_tier_of_unknown_loss_counts_as_the_worst_and_equal_ones_are_drawn(
    fleet_of_25: Callable[..., View],
) -> None:
    loss = np.repeat([2.0, NAN, 2.0, 2.0, 1.0], 5)
    view, seen = fleet_of_25(3, server_round=11, loss=loss), set()
    for seed in range(20):
        _, state = select(view, seed, losses=np.ones(5), drawn=2)
        rounded = (state["chances"] * 15).round(9).tolist()
        assert (rounded[1], rounded[4]) == (5, 1)
        seen.add(tuple(rounded[i] for i in (0, 2, 3)))
    assert len(seen) > 1


def test_the_chances_decide(fleet_of_25: Callable[..., View]) -> None:
    chances, seen = np.array([5, 4, 3, 2, 1]) / 15, np.zeros(5)
    for seed in range(900):
        _, state = select(fleet_of_25(3), seed, chances=chances)
        seen[int(state["drawn"])] += 1
    np.testing.assert_allclose(seen / 900, chances, atol=0.05)


def test_losses_that_are_none_do_not_count(view_of: ViewOf) -> None:
    view = view_of(8, 1, loss=[1.0, 3.0, NAN, INF, -1.0, 1e30, 5.0, NAN])
    means = mean_losses(view, np.array([0, 0, 0, 0, 0, 0, 1, 2]), 4)
    np.testing.assert_array_equal(means, [2.0, 5.0, NAN, NAN])


@pytest.mark.parametrize("name", ["tiers", "interval_rounds", "credit_rounds"])
def test_impossible_arguments_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        TiFL(**{name: 0})
