"""Oort beside its published artifact: equal where that works, and the stated thing where it fails.

`data/oort_artifact.json` was made by running `thirdparty/oort/oort.py` of SymbioticLab/FedScale,
commit 7ec441c2afa99510535adebe155d89fa8bb2c637, with its import of an optimiser left out: the
edition that METHODS describes. A script drew the states below, wrote each into a new training
selector (clients registered with min(n, 160); of the tried ones utility, stamp and count; then
exploration, threshold, pacer's history, the last exploited), called `select_participant` once and
kept the local figures of that call, to 13 digits. A state counts as one where the artifact works if
it returned as many distinct feasible clients as were wanted, and made no score positive that was
below 0. The first edition, SymbioticLab/Oort 05a3aa1677a10f8e621055b1626ef82e73d09759, gave equal
scores on all of these states; it rounds the slots for the tried down, not those for the untried.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies.selector import Cohort, State, View
from strategies.selectors.oort import Oort
from strategies.selectors.oort_scores import durations, normalisation, preferred_s

ViewOf = Callable[..., View]
Made = dict[str, Any]

RECORD = json.loads((Path(__file__).parent / "data" / "oort_artifact.json").read_text())
STATES = RECORD["states"]
FAILURES = {state["kind"]: state for state in RECORD["failures"]}
TOLERANCE = 1e-9  # relative


def view(view_of: ViewOf, made: Made, count: int) -> View:
    """Return the state as a view; the untried register their duration, others have been seen."""
    tried = np.array(made["times"]) > 0
    registered = np.where(tried, 1e9, made["duration_s"])
    return view_of(
        len(tried),
        count,
        server_round=made["round"],
        feasible=np.isin(np.arange(len(tried)), made["feasible"]),
        samples=made["samples"],
        last_round=made["last_round"],
        times_selected=made["times"],
        utility=np.array(made["utility"], dtype=np.float64),
        duration_s=np.where(tried, made["duration_s"], np.nan),
        compute_s=0.0,
        download_bytes_per_s=1e6 / registered,  # the model has 1e6 bytes
        upload_bytes_per_s=np.inf,
    )


def select(
    view_of: ViewOf, made: Made, count: int | None = None, seed: int = 0
) -> tuple[Cohort, State]:
    oort = Oort(made["parameters"], **made["overrides"])
    state = {
        "exploration": np.array(made["exploration"]),
        "round_threshold": np.array(made["round_threshold"]),
        "round": np.array(made["round"] - 1),
        "exploited": np.array(made["exploited"], dtype=np.int64),
        "exploited_utility": np.array(made["history"], dtype=np.float64),
    }
    wanted = view(view_of, made, made["count"] if count is None else count)
    return oort.select(wanted, state, np.random.default_rng(seed))


def everybody(view_of: ViewOf, made: Made, excluded: int = 0) -> dict[int, float]:
    """Return the score of every client that is not excluded: all are wanted, and so chosen."""
    cohort, _ = select(view_of, made, len(made["feasible"]) - excluded)
    figures = cohort.reasons.details["score"].tolist()
    return dict(zip(cohort.clients.tolist(), figures, strict=True))


# --- states where the artifact works ----------------------------------------------------------


def test_the_states_cover_what_the_artifact_does() -> None:
    assert {state["parameters"] for state in STATES} == {"repository", "fedscale"}
    counts, sizes = [s["count"] for s in STATES], [len(s["samples"]) for s in STATES]
    assert (min(counts), max(counts)) == (1, 50)
    assert (min(sizes), max(sizes)) == (20, 1000)
    assert (min(s["round"] for s in STATES), max(s["round"] for s in STATES)) == (2, 200)
    moved = {s["artifact"]["round_threshold"] - s["round_threshold"] for s in STATES}
    assert {-10.0, -5.0, -2.0, 0.0, 2.0, 5.0} <= moved  # by the delta, to the cap, to the floor
    assert sum(bool(s["artifact"]["excluded"]) for s in STATES) >= 6
    assert any(s["artifact"]["preferred_s"] == "inf" for s in STATES)
    assert any(0.0 in s["utility"] for s in STATES)


@pytest.mark.parametrize("made", STATES)
def test_scores_equal_those_of_the_artifact(view_of: ViewOf, made: Made) -> None:
    artifact = made["artifact"]
    excluded = set(artifact["excluded"]) & set(made["feasible"])
    ours = everybody(view_of, made, len(excluded))
    theirs = dict(zip(artifact["tried"], artifact["score"], strict=True))
    theirs |= dict(zip(artifact["untried"], artifact["prior"], strict=True))
    assert ours.keys() == theirs.keys() == set(made["feasible"]) - excluded
    assert ours == pytest.approx(theirs, rel=TOLERANCE, abs=0)


@pytest.mark.parametrize("made", STATES)
def test_as_many_are_explored_and_exploited_as_by_the_artifact(view_of: ViewOf, made: Made) -> None:
    artifact = made["artifact"]
    cohort, _ = select(view_of, made)
    why = Counter(cohort.reasons.why)
    assert (why["exploit"], why["explore"]) == (artifact["exploit"], artifact["explore"])
    drawn_from = len(cohort.clients) + cohort.reasons.rest.get("not drawn", 0)
    # Where none is wanted of a side, ours has nobody to draw from.
    exploitable = artifact["exploitable"] if artifact["exploit"] else 0
    assert drawn_from == exploitable + artifact["explorable"]


@pytest.mark.parametrize("made", STATES)
def test_the_next_state_equals_that_of_the_artifact(view_of: ViewOf, made: Made) -> None:
    artifact = made["artifact"]
    _, state = select(view_of, made)
    assert float(state["round_threshold"]) == artifact["round_threshold"]
    assert float(state["exploration"]) == pytest.approx(artifact["exploration"], rel=TOLERANCE)
    gained = float(state["exploited_utility"][-1])
    assert gained == pytest.approx(artifact["gained"], rel=TOLERANCE)


@pytest.mark.parametrize("made", STATES)
def test_figures_behind_the_scores_equal_those_of_the_artifact(view_of: ViewOf, made: Made) -> None:
    artifact, clip_bound = made["artifact"], Oort(made["parameters"]).parameters.clip_bound
    observed = durations(view(view_of, made, 1))
    assert preferred_s(observed, artifact["round_threshold"]) == pytest.approx(
        float(artifact["preferred_s"]), rel=TOLERANCE
    )
    priors = np.minimum(made["samples"], 160.0)
    utility = np.where(np.array(made["times"]) > 0, np.array(made["utility"], float), priors)
    pool = np.setdiff1d(made["feasible"], artifact["excluded"])
    expected = [artifact[name] for name in ("cap", "least", "range")]
    assert normalisation(utility[pool], clip_bound) == pytest.approx(expected, rel=TOLERANCE)


# --- states where the artifact fails ----------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "raised", "why"),
    [
        ("nobody has been explored", "IndexError", {"explore": 4}),
        ("as many scores as are exploited", "IndexError", {"exploit": 3, "explore": 3}),
        ("the cap of the exclusion is reached", "TypeError", {"exploit": 4}),
        ("a round stamp is 0", "ZeroDivisionError", {"exploit": 1, "explore": 3}),
        ("all utilities are 0", "IndexError", {"exploit": 4}),
        ("one utility is not a number", "ValueError", {"exploit": 1, "explore": 3}),
        ("no slot is left for the untried", "ValueError", {"exploit": 1}),
        ("one utility is 0 among equals", None, {"exploit": 3, "explore": 1}),
        ("all are explored while exploration goes on", None, {"exploit": 8}),
        ("the last explored are picked again", None, {"exploit": 8}),
        ("no untried client is feasible", None, {"exploit": 5}),
    ],
)
def test_the_right_number_of_feasible_clients_where_the_artifact_fails(
    view_of: ViewOf, kind: str, raised: str | None, why: dict[str, int]
) -> None:
    made = FAILURES[kind]
    assert made["artifact"].get("raised") == raised
    for seed in range(20):
        cohort, state = select(view_of, made, seed=seed)
        assert Counter(cohort.reasons.why) == why
        assert len(set(cohort.clients.tolist())) == made["count"]
        assert set(cohort.clients.tolist()) <= set(made["feasible"])
        assert set(state["exploited"].tolist()) <= set(made["feasible"])
    scores = list(everybody(view_of, made).values())
    assert np.isfinite(scores).all()
    assert min(scores) >= 0


def test_every_failure_is_looked_at() -> None:
    assert len(FAILURES) == 11  # of nine kinds; the tenth is below


@pytest.mark.parametrize(
    ("kind", "picks", "infeasible"),
    [
        ("all are explored while exploration goes on", 2, 0),  # of the 8 wanted
        ("the last explored are picked again", 6, 2),
        ("no untried client is feasible", 3, 2),  # of the 5 wanted
    ],
)
def test_the_artifact_picks_too_few_or_who_is_not_there(
    kind: str, picks: int, infeasible: int
) -> None:
    made = FAILURES[kind]
    picked = made["artifact"]["picked"]
    assert (len(picked), len(set(picked) - set(made["feasible"]))) == (picks, infeasible)


def test_the_most_used_are_excluded_up_to_a_whole_number(view_of: ViewOf) -> None:
    made = FAILURES["the cap of the exclusion is reached"]
    cohort, _ = select(view_of, made)
    assert cohort.reasons.rest["excluded"] == 3  # int(0.3 * 12), those used 9, 8 and 7 times
    assert everybody(view_of, made, excluded=3).keys() == set(range(12)) - {1, 3, 5}


def test_a_utility_that_is_not_a_number_harms_its_client_alone(view_of: ViewOf) -> None:
    made = FAILURES["one utility is not a number"]
    utility = [*made["utility"][:2], 0.0, *made["utility"][3:]]
    scores = everybody(view_of, made)
    assert scores == everybody(view_of, made | {"utility": utility})
    without = [client for client in made["feasible"] if client != 2]
    others = everybody(view_of, made | {"feasible": without})
    assert others == {client: scores[client] for client in without}


def test_no_utility_is_the_artifacts_best_score_and_our_least(view_of: ViewOf) -> None:
    made = FAILURES["one utility is 0 among equals"]
    theirs, ours = made["artifact"]["score"], everybody(view_of, made)
    assert theirs["2"] > 600 * sorted(theirs.values())[-2]  # |0.999 * 5 / 0.005| and more
    assert ours[2] == min(ours.values())
    tried = {int(client): score for client, score in theirs.items() if client != "2"}
    assert {client: ours[client] for client in tried} == pytest.approx(tried, rel=TOLERANCE)


def test_the_age_of_a_figure_ranks_clients_without_utility(view_of: ViewOf) -> None:
    made = FAILURES["all utilities are 0"] | {"round_threshold": 100.0}
    expected = [np.sqrt(0.1 * np.log(10) / stamp) for stamp in made["last_round"]]
    ours = everybody(view_of, made)
    assert [ours[client] for client in range(12)] == pytest.approx(expected)


def test_the_artifact_seeds_the_global_generator_and_ours_leaves_it(view_of: ViewOf) -> None:
    first, second = RECORD["global_draws_after_seeds_1_and_2"]
    assert first == second
    np.random.seed(1)  # noqa: NPY002 - the global state is what is looked at
    before = np.random.get_state()  # noqa: NPY002
    select(view_of, STATES[0])
    after = np.random.get_state()  # noqa: NPY002
    np.testing.assert_equal(after, before)
