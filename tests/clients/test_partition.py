from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from clients.partition import dealt_by_speed, draw_sizes, partition
from fedio.config import Data, LogNormal
from fedio.errors import InputError

LABELS = np.random.default_rng(5).permutation(np.arange(2000) % 10)
SIZES = {"median": 30, "sigma": 0.6, "min": 8, "max": 60}
KINDS = ["iid", "dirichlet", "pathological"]


def data(clients: int = 20, **partition: Any) -> Data:
    return Data.model_validate({"clients": clients, "partition": partition})


def divided(chosen: Data, seed: int = 0, labels: np.ndarray = LABELS) -> list[np.ndarray]:
    return partition(labels, chosen, np.random.default_rng(seed))


def skew(parts: list[np.ndarray]) -> float:
    """Mean total-variation distance of the parts' labels to the balanced distribution."""
    shares = [np.bincount(LABELS[part], minlength=10) / len(part) for part in parts]
    return float(np.mean([abs(share - 0.1).sum() / 2 for share in shares]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [None, SIZES])
def test_no_sample_is_used_twice_and_no_client_goes_empty(
    kind: str, sizes: dict[str, float] | None
) -> None:
    parts = divided(data(kind=kind, samples=sizes))
    assert len(parts) == 20
    every = np.concatenate(parts)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert every.max() < len(LABELS)
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert (np.diff(part) > 0).all()
    if sizes is None:
        assert len(every) == len(LABELS)


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_drawn_sizes_are_exact(kind: str) -> None:
    parts = divided(data(kind=kind, samples=SIZES), seed=3)
    wanted = draw_sizes(LogNormal(**SIZES), 20, np.random.default_rng(3))
    assert [len(part) for part in parts] == wanted.tolist()
    assert len(set(wanted.tolist())) > 5


def test_iid_parts_are_equal_and_mixed() -> None:
    parts = divided(data(kind="iid"))
    assert {len(part) for part in parts} == {100}
    assert skew(parts) < 0.2


@pytest.mark.parametrize("sizes", [None, SIZES])
def test_a_smaller_alpha_skews_more(sizes: dict[str, float] | None) -> None:
    low, high = (skew(divided(data(kind="dirichlet", alpha=a, samples=sizes))) for a in (0.1, 100))
    assert low > 0.5
    assert high < 0.25


@pytest.mark.parametrize("sizes", [None, SIZES])
def test_pathological_clients_have_few_classes(sizes: dict[str, float] | None) -> None:
    parts = divided(data(kind="pathological", classes_per_client=3, samples=sizes))
    assert {len(np.unique(LABELS[part])) for part in parts} == {3}
    if sizes is not None:
        assert max(len(part) for part in parts) <= SIZES["max"]


def test_many_clients_at_a_small_alpha_all_get_something() -> None:
    parts = divided(data(clients=400, kind="dirichlet", alpha=0.02))
    assert min(len(part) for part in parts) == 1
    assert sum(len(part) for part in parts) == len(LABELS)


def test_as_many_clients_as_samples() -> None:
    parts = divided(data(clients=50, kind="dirichlet", alpha=0.1), labels=LABELS[:50])
    assert sorted(np.concatenate(parts).tolist()) == list(range(50))


def test_clients_that_run_out_of_classes_are_drawn_again() -> None:
    every = {"median": 100, "min": 100, "max": 100}
    parts = divided(data(kind="dirichlet", alpha=0.01, samples=every))
    assert {len(part) for part in parts} == {100}
    assert skew(parts) > 0.6


def test_classes_without_samples_do_not_matter() -> None:
    labels = np.where(LABELS < 5, 2, 7)
    parts = divided(data(kind="dirichlet", samples=SIZES), labels=labels)
    assert len(parts) == 20


def dealt(share: float, by_speed: np.ndarray, seed: int = 0) -> tuple[np.ndarray, int]:
    """Each client's mean class, the fastest first, and how many have another part than before."""
    parts = divided(data(kind="dirichlet", samples=SIZES))
    after = dealt_by_speed(parts, LABELS, share, by_speed, np.random.default_rng(seed))
    assert sorted(part[0] for part in after) == sorted(part[0] for part in parts)
    moved = sum(one is not other for one, other in zip(parts, after, strict=True))
    return np.array([LABELS[after[client]].mean() for client in by_speed]), moved


def test_the_slower_a_device_the_later_the_classes_of_its_labels() -> None:
    by_speed = np.random.default_rng(1).permutation(20)
    means, moved = dealt(1.0, by_speed)
    assert (np.diff(means) > 0).all()
    assert moved > 10
    assert dealt(0.0, by_speed)[1] == dealt(0.02, by_speed)[1] == 0


def test_a_share_of_the_clients_is_drawn_for_that() -> None:
    by_speed = np.random.default_rng(1).permutation(20)
    plain, _ = dealt(0.0, by_speed)
    (some, moved), (other, _) = dealt(0.48, by_speed), dealt(0.48, by_speed, seed=1)
    assert 2 < moved <= 10
    assert (np.diff(some[some != plain]) > 0).all()
    assert some.tolist() != other.tolist()


def digest(seed: int) -> str:
    """A hash over all kinds of partitions."""
    hasher = hashlib.sha256()
    for kind in KINDS:
        for sizes in (None, SIZES):
            for part in divided(data(kind=kind, samples=sizes), seed):
                hasher.update(part.tobytes() + b"|")
    return hasher.hexdigest()


def test_the_seed_determines_it_in_every_process() -> None:
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['digest'](7))"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, __file__],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "1"},
    )
    assert done.stdout.strip() == digest(7) != digest(8)
    assert done.stderr == ""


def test_global_random_state_stays() -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    digest(0)
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], before)  # noqa: NPY002


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (data(clients=3000), "lower data.clients"),
        (data(clients=200, kind="iid", samples=SIZES), "add up to"),
        (data(clients=200, kind="dirichlet", samples=SIZES), "add up to"),
        (data(kind="pathological", classes_per_client=11), "classes_per_client"),
        (data(clients=300, kind="pathological", classes_per_client=9), "classes_per_client"),
    ],
)
def test_what_cannot_be_divided_is_one_line(asked: Data, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        divided(asked)
    assert "\n" not in str(error.value)


def test_sizes_have_the_median_and_the_bounds() -> None:
    wanted = LogNormal(median=100, sigma=0.5, min=40, max=300)
    sizes = draw_sizes(wanted, 4000, np.random.default_rng(0))
    assert sizes.dtype == np.int64
    assert 96 < np.median(sizes) < 104
    assert (sizes.min(), sizes.max()) == (40, 300)
    fixed = draw_sizes(LogNormal(median=5, min=1, max=9), 3, np.random.default_rng(0))
    assert fixed.tolist() == [5, 5, 5]
    tiny = draw_sizes(LogNormal(median=0.1, min=0.1, max=9), 3, np.random.default_rng(0))
    assert tiny.tolist() == [1, 1, 1]
