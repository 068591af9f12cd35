from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.datasets import photos
from clients.prepare import Federation, describe, load_split, prepare
from fedio.config import Experiment, Spec
from fedio.errors import InputError
from fedio.profiles import fleet_of

ARGS = {"samples": 120, "test_samples": 20, "median_side_px": 48}
NOMINAL = {
    "size_bytes": {"median": 4e6, "sigma": 0.5, "min": 1e6, "max": 9e6},
    "prepared_bytes": 150_528,
}

PLAIN_HASH = "75f2b358418d24e6"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which the photos are drawn once for all tests."""
    folder = tmp_path_factory.mktemp("data")
    photos.load(folder, **ARGS)
    return folder


def experiment(home: Path, seed: int = 0, **data: Any) -> Experiment:
    values = {"folder": str(home), "dataset": {"name": "photos", "args": ARGS}, "clients": 8}
    rounds = {"cohort": 1}
    return Experiment.model_validate(
        {"name": "test", "seed": seed, "data": values | data, "rounds": rounds}
    )


def same(one: Federation, two: Federation) -> bool:
    clients = range(one.clients)
    return one.hash == two.hash and all(
        np.array_equal(a, b)
        for a, b in [
            *((one.samples_of(i), two.samples_of(i)) for i in clients),
            *((one.holdout_of(i), two.holdout_of(i)) for i in clients),
            (one.size_bytes, two.size_bytes),
            (one.decode_s, two.decode_s),
        ]
    )


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "pathological"])
def test_every_sample_is_trained_or_held_out_by_one_client(home: Path, kind: str) -> None:
    federation = prepare(experiment(home, partition={"kind": kind}))
    trained = [federation.samples_of(i) for i in range(8)]
    held_out = [federation.holdout_of(i) for i in range(8)]
    every = np.concatenate(trained + held_out)
    assert sorted(every.tolist()) == list(range(120))
    assert federation.sample_counts.tolist() == [len(samples) for samples in trained]
    for training, holdout in zip(trained, held_out, strict=True):
        assert len(holdout) == min(
            int(0.1 * (len(training) + len(holdout)) + 0.5), len(training) + len(holdout) - 1
        )
        assert training.dtype == holdout.dtype == np.int64


def test_a_client_with_one_sample_trains_on_it(home: Path) -> None:
    federation = prepare(experiment(home, clients=120, holdout=0.9))
    assert federation.sample_counts.tolist() == [1] * 120
    assert all(len(federation.holdout_of(i)) == 0 for i in range(120))


def test_nothing_is_held_out_where_nothing_is_asked_for(home: Path) -> None:
    federation = prepare(experiment(home, holdout=0))
    assert federation.sample_counts.sum() == 120
    assert federation.holdout_of(7).tolist() == []


@pytest.mark.parametrize("client", [-1, 8])
def test_there_is_no_default_client(home: Path, client: int) -> None:
    federation = prepare(experiment(home))
    with pytest.raises(IndexError, match=f"client {client} of 8"):
        federation.samples_of(client)


def test_real_sizes_are_those_of_the_files(home: Path) -> None:
    federation = prepare(experiment(home, decode_bytes_per_s=1000))
    files = sorted((home / "datasets").rglob("train/*/*.jpg"), key=lambda file: file.stem)
    assert federation.size_bytes.tolist() == [file.stat().st_size for file in files]
    assert federation.prepared_bytes.tolist() == [3 * 32 * 32] * 120
    np.testing.assert_allclose(federation.decode_s, federation.size_bytes / 1000)
    assert not federation.inflated


def test_nominal_sizes_are_drawn_per_sample(home: Path) -> None:
    federation = prepare(experiment(home, nominal=NOMINAL))
    assert federation.inflated
    assert federation.size_bytes.dtype == np.int64
    assert len(np.unique(federation.size_bytes)) > 100
    assert 1e6 <= federation.size_bytes.min() < federation.size_bytes.max() <= 9e6
    assert 3e6 < np.median(federation.size_bytes) < 5e6
    assert federation.prepared_bytes.tolist() == [150_528] * 120
    np.testing.assert_allclose(federation.decode_s, federation.size_bytes / 100e6)
    assert federation.train.origin.size_bytes.max() < 100_000


def test_raw_pixels_take_no_time_to_decode(home: Path, tmp_path: Path) -> None:
    plain = "tests_pixels:load"
    (tmp_path / "tests_pixels.py").write_text(
        "import numpy as np\n"
        "from clients.datasets import Dataset, Pixels, Split\n"
        "from storage.origin import ArrayOrigin\n"
        "def load(home, samples):\n"
        "    labels = np.arange(samples) % 2\n"
        "    origin = ArrayOrigin(np.zeros((samples, 1, 4, 4), np.uint8))\n"
        "    part = Dataset('pixels', 2, labels, origin, Pixels((1, 4, 4)))\n"
        "    return Split(part, part, f'zeros-{samples}')\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        spec = {"name": plain, "args": {"samples": 40}}
        real = prepare(experiment(home, dataset=spec))
        nominal = prepare(experiment(home, dataset=spec, nominal=NOMINAL))
        with pytest.raises(InputError, match="does not take"):
            prepare(experiment(home, dataset=plain))
    finally:
        sys.path.remove(str(tmp_path))
    assert real.size_bytes.tolist() == real.prepared_bytes.tolist() == [16] * 40
    assert real.decode_s.tolist() == [0.0] * 40
    assert nominal.decode_s.min() >= 0.01


def test_it_is_prepared_once_and_mapped_afterwards(home: Path) -> None:
    first = prepare(experiment(home, seed=11))
    folder = home / "prepared" / first.hash
    times = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    second = prepare(experiment(home, seed=11))
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == times
    assert same(first, second)
    assert isinstance(second.samples_of(0), np.memmap)
    assert {file.suffix for file in times} == {".npy", ".json"}


def test_the_hash_covers_what_determines_the_data(home: Path) -> None:
    changed: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"clients": 9},
        {"holdout": 0.2},
        {"partition": {"kind": "dirichlet"}},
        {"partition": {"kind": "dirichlet", "alpha": 0.5}},
        {"nominal": NOMINAL},
        {"decode_bytes_per_s": 5e6},
        {"dataset": {"name": "photos", "args": ARGS | {"seed": 3}}},
        {"dataset": {"name": "photos", "args": ARGS | {"size": 16}}},
    ]
    hashes = [prepare(experiment(home, **change)).hash for change in changed]
    assert len(set(hashes)) == len(hashes)
    other = experiment(home).model_copy(update={"name": "other"})
    assert prepare(other).hash == hashes[0]


def with_fleet(base: Experiment, share: float, **fleet: Any) -> Experiment:
    """Return the experiment with labels that follow slow devices, so far."""
    values = base.model_dump(exclude_none=True)
    values["data"]["partition"] |= {"kind": "dirichlet", "slow_labels": share}
    return Experiment.model_validate(values | {"fleet": fleet})


def means_of(prepared: Federation) -> list[float]:
    """Return the mean class of all that each client has, held out or not."""
    both = prepared.samples_of, prepared.holdout_of
    owned = (np.concatenate([of(i) for of in both]) for i in range(prepared.clients))
    return [float(prepared.train.labels[own].mean()) for own in owned]


def test_labels_follow_slow_devices_of_this_fleet_and_no_other(home: Path) -> None:
    base = experiment(home)
    fleets: list[dict[str, Any]] = [
        {"spread": 0.3},
        {"profiles": {"phone-low": 1.0, "phone-high": 1.0}},
        {},
    ]
    wanted = [with_fleet(base, 1.0, **fleet) for fleet in fleets]
    plain = prepare(with_fleet(base, 0.0))
    for one in [*wanted, *wanted]:  # the second time from what is kept
        means, compute_s = np.array(means_of(prepare(one))), fleet_of(one)[1].compute_s
        order = np.argsort(compute_s, kind="stable")
        assert (np.diff(means[order]) >= 0).all()
        assert sorted(means) == pytest.approx(sorted(means_of(plain)))
    assert len({prepare(one).hash for one in [*wanted, with_fleet(base, 0.5)]}) == 4


def test_without_that_the_fleet_does_not_matter_to_the_data(home: Path) -> None:
    base = experiment(home)
    plain = prepare(with_fleet(base, 0.0))
    assert same(prepare(with_fleet(base, 0.0, spread=0.3)), plain)
    # As it was before there was such a thing, and is kept.
    assert plain.hash == PLAIN_HASH


def test_what_the_fleet_has_but_its_speed_does_not_matter_to_the_labels(home: Path) -> None:
    ways = ({"spread": 0.3}, {"spread": 0.3, "storage": "fedcase-artifact"})
    one, other = (prepare(with_fleet(experiment(home), 1.0, **fleet)) for fleet in ways)
    assert same(one, other)


def test_the_folder_does_not_matter(home: Path, tmp_path: Path) -> None:
    assert same(prepare(experiment(home, seed=3)), prepare(experiment(tmp_path, seed=3)))


@pytest.mark.parametrize("damage", ["manifest", "missing", "changed", "half"])
def test_a_damaged_folder_is_prepared_again(home: Path, damage: str) -> None:
    first = prepare(experiment(home, seed=5))
    wanted = [first.samples_of(i).tolist() for i in range(8)]
    folder = home / "prepared" / first.hash
    if damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        file = folder / "training.npy"
        content = file.read_bytes()
        file.unlink()  # the first federation still maps it
        if damage != "missing":
            file.write_bytes(content[:-8] if damage == "half" else content[:-8] + b"\1" * 8)
            os.utime(file, ns=(0, 0))
    again = prepare(experiment(home, seed=5))
    assert [again.samples_of(i).tolist() for i in range(8)] == wanted


@pytest.mark.slow
def test_two_processes_at_once_prepare_the_same(home: Path, tmp_path: Path) -> None:
    values = experiment(tmp_path, partition={"kind": "dirichlet"}).model_dump_json()
    code = (
        "import sys; from fedio.config import Experiment; from clients.prepare import prepare; "
        "f = prepare(Experiment.model_validate_json(sys.argv[1])); "
        "print(f.hash, f.train.origin.size_bytes.sum(), [f.samples_of(i).sum() for i in range(8)])"
    )
    command = [sys.executable, "-c", code, values]
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    running = [
        subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    here = prepare(experiment(home, partition={"kind": "dirichlet"}))
    sums = [here.samples_of(i).sum() for i in range(8)]
    wanted = f"{here.hash} {here.train.origin.size_bytes.sum()} {sums}\n"
    assert outputs == [wanted, wanted]


def test_description_of_equal_clients(home: Path) -> None:
    federation = prepare(experiment(home, holdout=0, clients=1))
    told = describe(federation)
    assert json.loads(json.dumps(told)) == told
    assert (told["dataset"], told["classes"], told["shape"]) == ("photos", 10, [3, 32, 32])
    assert (told["train_samples"], told["test_samples"], told["clients"]) == (120, 20, 1)
    assert told["samples_per_client"]["min"] == told["samples_per_client"]["total"] == 120
    assert told["label_skew"] == {"classes_per_client": 10.0, "total_variation": 0.0}
    assert told["size_bytes"]["total"] == federation.train.origin.size_bytes.sum()
    assert told["nominal"] is False
    assert told["hash"] == federation.hash


def test_description_of_disjoint_clients(home: Path) -> None:
    one_class = {"kind": "pathological", "classes_per_client": 1}
    told = describe(prepare(experiment(home, clients=10, partition=one_class, nominal=NOMINAL)))
    assert told["label_skew"]["classes_per_client"] == 1
    assert told["label_skew"]["total_variation"] == pytest.approx(0.9)
    assert told["held_out_samples"] == 10
    assert told["samples_per_client"] == {
        "min": 11,
        "median": 11,
        "p90": 11,
        "max": 11,
        "total": 110,
    }
    assert told["prepared_bytes"]["max"] == 150_528
    assert told["nominal"] is True
    quantiles = [told["size_bytes"][key] for key in ("min", "median", "p90", "max", "total")]
    assert quantiles == sorted(quantiles)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (Spec(name="fotos"), "unknown data set 'fotos': did you mean 'photos'"),
        (Spec(name="photos", args={"sample": 3}), r"args\.sample: .*not permitted"),
        (Spec(name="photos", args={"samples": "many"}), r"args\.samples: .*integer.*'many'"),
        (Spec(name="photos", args={"classes": 1}), r"args\.classes: .*greater than"),
        (Spec(name="photos", args={"median_side_px": 20}), "min_side_px <= median_side_px"),
        (Spec(name="photos", args={"size": 0}), r"args\.size"),
        (Spec(name="image-folder"), "does not take"),
        (Spec(name="cifar10", args={"size": 3}), "does not take"),
    ],
)
def test_a_data_set_that_cannot_be_had_is_one_line(tmp_path: Path, spec: Spec, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        load_split(spec, tmp_path)
    assert "\n" not in str(error.value)


def test_a_data_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot write .*data\.folder"):
        prepare(experiment(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
