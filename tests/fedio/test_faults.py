"""Faults on purpose: who is struck, the same for all who ask."""

from __future__ import annotations

from typing import Any

import pytest

from fedio.config import Experiment, Faults
from fedio.errors import InputError
from fedio.faults import UNHARMED, Struck, check_faults, struck

CLIENTS, ROUNDS = 50, 40


def experiment(seed: int = 0, **faults: Any) -> Experiment:
    return Experiment.model_validate(
        {"name": "faulty", "seed": seed, "data": {"clients": CLIENTS}, "faults": faults}
    )


def all_struck(chosen: Experiment) -> dict[tuple[int, int], Struck]:
    return {
        (client, server_round): struck(chosen, client, server_round)
        for client in range(CLIENTS)
        for server_round in range(1, ROUNDS + 1)
    }


def test_a_round_strikes_those_who_are_named_or_all() -> None:
    chosen = experiment(kill={"round": 3, "clients": [1, 4]}, full_disk={"round": 5})
    for (client, server_round), hit in all_struck(chosen).items():
        assert hit.kill == (server_round == 3 and client in {1, 4})
        assert hit.full_disk == (server_round == 5)
        assert hit == Struck(kill=hit.kill, full_disk=hit.full_disk)


@pytest.mark.parametrize("kind", Faults.model_fields)
def test_a_rate_strikes_that_share_each_time_anew(kind: str) -> None:
    hits = all_struck(experiment(**{kind: {"rate": 0.2}}))
    assert {tuple(hit.names) for hit in hits.values()} == {(), (kind,)}
    share = sum(hit != UNHARMED for hit in hits.values()) / len(hits)
    assert share == pytest.approx(0.2, abs=0.03)  # three standard deviations
    by_client = [sum(hits[c, r] != UNHARMED for r in range(1, ROUNDS + 1)) for c in range(CLIENTS)]
    assert min(by_client) > 0
    assert max(by_client) < ROUNDS / 2


def test_a_rate_of_one_strikes_always_and_only_who_is_named() -> None:
    hits = all_struck(experiment(stop={"rate": 1, "seconds": 7, "clients": [9]}))
    assert all(hit.stop_s == 7 * (client == 9) for (client, _), hit in hits.items())


@pytest.mark.parametrize("kind", Faults.model_fields)
def test_kinds_and_later_faults_do_not_change_each_others_luck(kind: str) -> None:
    fault, others = {"rate": 0.3}, [{"rate": 0.5}] * 2
    alone = all_struck(experiment(**{kind: fault}))
    everything = dict.fromkeys(Faults.model_fields, others) | {kind: [fault]}
    beside = all_struck(experiment(**everything))
    for at, hit in alone.items():
        assert (kind in beside[at].names) == (kind in hit.names)
    more = all_struck(experiment(**{kind: [fault, *others]}))
    assert all(kind in more[at].names for at, hit in alone.items() if hit.names)
    # And two kinds strike one without the other.
    both = all_struck(experiment(**dict.fromkeys({kind, "full_disk", "kill"}, fault)))
    assert len({tuple(hit.names) for hit in both.values()}) == 2 ** len({kind, "full_disk", "kill"})


def test_seeds_differ_and_nothing_is_drawn_twice() -> None:
    faults = {"kill": {"rate": 0.5}}
    first = all_struck(experiment(**faults))
    assert all_struck(experiment(**faults)) == first
    assert struck(experiment(**faults), 7, 9) == first[7, 9]
    assert all_struck(experiment(seed=1, **faults)) != first


def test_of_several_of_a_kind_the_worst_strikes() -> None:
    chosen = experiment(
        stop=[{"round": 1, "seconds": 5}, {"round": 1, "seconds": 20}, {"round": 2, "seconds": 99}],
        slow_storage=[{"round": 1, "factor": 30}, {"rate": 1, "factor": 4}],
    )
    assert struck(chosen, 0, 1) == Struck(stop_s=20, storage_slowdown=30)
    assert struck(chosen, 0, 2) == Struck(stop_s=99, storage_slowdown=4)
    assert struck(chosen, 0, 3) == Struck(storage_slowdown=4)


def test_names_are_those_of_the_experiment() -> None:
    everything = {kind: {"round": 2} for kind in Faults.model_fields}
    assert struck(experiment(**everything), 0, 2).names == list(Faults.model_fields)
    assert struck(experiment(**everything), 0, 1).names == []
    assert struck(experiment(), 0, 1) is UNHARMED


def test_what_cannot_be_is_said_in_one_line() -> None:
    check_faults(experiment(kill={"round": 1, "clients": [0, CLIENTS - 1]}))
    with pytest.raises(InputError, match=r"faults\.stop: there is no client 50.*0\.\.49"):
        check_faults(experiment(stop=[{"rate": 0.1}, {"rate": 0.1, "clients": [3, 50]}]))

    slow = experiment(slow_storage={"rate": 0.1}).model_dump()
    slow["emulation"]["pace"] = "none"
    check_faults(Experiment.model_validate(slow))  # by the virtual clock it is computed
    slow["engine"]["clock"] = "wall"
    with pytest.raises(InputError, match=r"emulation\.pace = 'profile'"):
        check_faults(Experiment.model_validate(slow))
    slow["emulation"]["pace"] = "profile"
    check_faults(Experiment.model_validate(slow))
