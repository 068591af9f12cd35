"""The probe: lines through what was measured, real files and caches, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from experiments import probe as probes
from experiments.cli import main
from experiments.interrupts import ended_like_interrupts
from experiments.probe import Fit, Points, cached, files, fio, fit, inference, run, training, turns
from experiments.probe.amounts import LONG_FILES, amounts, budget_of
from experiments.probe.profile import profile_of
from experiments.probe.wanted import Wanted
from fedio.config import Experiment
from fedio.errors import InputError, RunError
from fedio.loading import load
from fedio.profiles import Profile, fleet_of, load_profile
from storage import SampleCache
from storage.errors import OriginError

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "probe.md"
FEDIO = Path(sys.executable).with_name("fedio")
SIZES = (4096, 40_000)
SMALL = ["--size", "4096", "--size", "40000", "--budget", "4e6", "--shape", "3x8x8"]

FIO = """#!/bin/sh
echo "$@" >> {record}
[ {code} = 0 ] || {{ echo "fio: engine psync not loadable" >&2; exit {code}; }}
echo 'fio: a note before the figures'
echo '{output}'
"""


def fio_output(median_ns: int) -> str:
    percentile = {"10.000000": median_ns // 2, "50.000000": median_ns, "90.000000": 2 * median_ns}
    read = {"total_ios": 1234, "iops": 617.0, "clat_ns": {"mean": 1.0, "percentile": percentile}}
    return json.dumps({"fio version": "fio-3.33", "jobs": [{"error": 0, "read": read}]})


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder to be probed, which has to be empty afterwards."""
    folder = tmp_path / "slow"
    folder.mkdir()
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long and is measured in a test of its own."""
    monkeypatch.setattr(run, "measure_inference", lambda _: [0.02, 0.01, 0.03])
    monkeypatch.setattr(training, "BATCH_SIZES", (2, 4))
    monkeypatch.setattr(run, "installed", lambda: None)


@pytest.fixture
def stub_fio(tmp_path: Path) -> Callable[..., tuple[str, Path]]:
    """Make a fio that says so, and writes down what it was asked."""

    def make(output: str = "", code: int = 0) -> tuple[str, Path]:
        folder = tmp_path / "bin"
        folder.mkdir()
        record, program = tmp_path / "asked", folder / "fio"
        program.write_text(FIO.format(record=record, output=output, code=code))
        program.chmod(0o755)
        return str(program), record

    return make


def of_line(latency_s: float, unit_s: float, sizes: list[int]) -> Points:
    """Measurements on a line, each size with one that stalled and one that was lucky."""
    each = [(size, latency_s + size * unit_s) for size in sizes]
    stalled = [(size, 50 * seconds) for size, seconds in each]
    lucky = [(size, 0.5 * seconds) for size, seconds in each]
    return Points.of([*stalled, *each, *each, *lucky, *each])


@given(
    latency_s=st.floats(0, 1),
    bytes_per_s=st.floats(1e4, 1e11),
    sizes=st.lists(st.integers(1, 1 << 24), min_size=2, max_size=8, unique=True),
)
def test_the_line_that_made_the_points_is_found(
    latency_s: float, bytes_per_s: float, sizes: list[int]
) -> None:
    found = fit(of_line(latency_s, 1 / bytes_per_s, sizes))
    times = latency_s + np.array(sizes) / bytes_per_s
    assert found.latency_s + np.array(sizes) * found.unit_s == pytest.approx(times, rel=1e-7)
    assert found.residual < 1e-7
    apart = max(sizes) > 1.5 * min(sizes) and np.ptp(times) > 1e-3 * times.max()
    if apart:  # else the data say little about one or the other
        assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-5)
        assert found.latency_s == pytest.approx(latency_s, rel=1e-5, abs=1e-6 * times.max())


@given(
    st.dictionaries(
        st.integers(1, 10**7), st.floats(1e-6, 10, allow_nan=False), min_size=2, max_size=8
    )
)
def test_no_line_with_a_latency_and_a_bandwidth_comes_closer(medians: dict[int, float]) -> None:
    found = fit(Points.of(medians.items()))
    assert found.latency_s >= 0
    assert 0 < found.bytes_per_s <= 1.000001e12
    sizes, seconds = np.array(list(medians)), np.array(list(medians.values()))
    columns = np.stack([1 / seconds, sizes / sizes.max() / seconds], axis=1)
    bounds = ([0, 1e-12 * sizes.max()], [np.inf, np.inf])
    best = lsq_linear(columns, np.ones(len(sizes)), bounds, method="bvls")
    residual = np.sqrt(2 * best.cost / len(sizes))
    assert found.residual <= residual * (1 + 1e-6) + 1e-9
    errors = (found.latency_s + sizes * found.unit_s) / seconds - 1
    assert found.residual == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-6, abs=1e-9)


def test_small_operations_count_as_much_as_large_ones() -> None:
    # The last point is off the line by a tenth; in seconds that is more than all others together.
    found = fit(Points.of([(1, 1e-4), (1000, 2e-4), (10**6, 0.11)]))
    assert found.latency_s == pytest.approx(1e-4, rel=0.02)


def test_measurements_of_the_same_can_be_put_together() -> None:
    found = Points.together([Points.of([(2, 0.2), (1, 0.1)]), Points.of([(2, 0.3)])])
    assert [(size, seconds.tolist()) for size, seconds in found.by_size()] == [
        (1, [0.1]),
        (2, [0.2, 0.3]),
    ]


@pytest.mark.parametrize("pairs", [[], [(5, 1.0), (5, 2.0)], [(5, 1.0), (6, 0.0)]])
def test_what_is_no_line_is_refused(pairs: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="two sizes"):
        fit(Points.of(pairs))


def test_every_file_is_written_whole_and_read_once_in_mixed_order(
    place: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {1: 40, 5000: 40}
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file.fileno()).st_size))
    writes = probes.measure_writes(place, counts, rng)
    assert Counter(path.stat().st_size for path in place.iterdir()) == counts
    assert Counter(synced) == counts
    assert len({path.read_bytes() for path in place.glob("5000-*")}) == 40

    read: list[Path] = []
    right = files.read_direct

    def read_direct(path: Path, view: memoryview) -> None:
        read.append(path)
        right(path, view)
        assert path.read_bytes() == view

    monkeypatch.setattr(files, "read_direct", read_direct)
    reads = probes.measure_reads(place, counts, rng)
    assert sorted(read) == sorted(place.iterdir())
    sizes = [path.stat().st_size for path in read]
    assert min(sizes[:20].count(size) for size in counts) > 2
    for points in (writes, reads):
        assert {size: len(seconds) for size, seconds in points.by_size()} == counts
        assert points.seconds.min() > 0
    assert reads.sizes.tolist() == sizes


def test_a_file_that_is_not_there_is_an_error(place: Path, rng: np.random.Generator) -> None:
    with pytest.raises(OriginError, match="100-0"):
        probes.measure_reads(place, {100: 1}, rng)


def test_the_cache_is_full_and_evicts_all_the_while(
    place: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[int] = []
    save = SampleCache.save

    def spy(cache: SampleCache, tag: int) -> None:
        assert (place / "cache" / "data.mdb").exists()
        evicted.append(cache.stats.evicted_samples)
        save(cache, tag)

    monkeypatch.setattr(SampleCache, "save", spy)
    batches = {3000: 20, 50_000: 4}
    found = probes.measure_cache(place / "cache", batches, rng)
    assert len(evicted) == cached.ROUNDS
    assert np.diff(evicted[cached.WEARING - 1 :]).min() >= sum(batches.values()) / 2
    for points in (found.reads, found.writes):
        assert {s: len(x) for s, x in points.by_size()} == dict.fromkeys(batches, cached.MEASURED)
    assert len(found.saves_s) == cached.MEASURED


@pytest.mark.usefixtures("quick")
def test_decoding_and_training_are_measured_at_several_sizes(rng: np.random.Generator) -> None:
    decoding = probes.measure_decoding((1, 8, 8), rng)
    assert len(decoding.by_size()) == 5
    assert 500 < decoding.sizes.min() < decoding.sizes.max() / 3
    assert len(probes.measure_decoding((3, 8, 8), rng, sides_px=(32, 300)).by_size()) == 2
    trainer = probes.trainer_of("mlp", (1, 8, 8), "cpu", rng)
    assert [size for size, _ in probes.measure_training(trainer, (1, 8, 8), rng).by_size()] == [
        2,
        4,
    ]


@pytest.mark.parametrize(("enough_s", "count"), [(0.0, turns.LEAST_TURNS), (1e9, turns.MOST_TURNS)])
def test_turns_are_taken_in_random_order(
    enough_s: float, count: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "ENOUGH_S", enough_s)
    done: list[float] = []
    sizes = (1.0, 2.0, 3.0)
    works = {size: partial(done.append, size) for size in sizes}
    points = turns.in_turns(works, 10, rng)
    assert done[:3] == list(sizes)  # warming up
    assert points.sizes.tolist() == done[3:]
    order = np.array(done[3:]).reshape(count, 3)
    assert (np.sort(order, axis=1) == sizes).all()
    assert len(np.unique(order[:, 0])) == 3


def test_inference_is_measured_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_WARMING", 1)
    monkeypatch.setattr(inference, "_MEASURED", 3)
    seconds = probes.measure_inference("cpu")
    assert len(seconds) == 3
    assert min(seconds) > 0


@given(
    sizes=st.lists(st.integers(1, 1 << 22), min_size=2, max_size=6, unique=True),
    budget_bytes=st.integers(1, 10**10),
)
def test_the_budget_is_kept_and_every_size_has_enough(sizes: list[int], budget_bytes: int) -> None:
    try:
        found = amounts(sizes, budget_bytes)
    except InputError:
        assert budget_bytes < 50 * sum(sizes)
        return
    written = sum(size * count for size, count in found.files.items())
    written += cached.ROUNDS * sum(size * count for size, count in found.batches.items())
    assert written + LONG_FILES * found.long_bytes <= budget_bytes
    assert set(found.files) == set(found.batches) == set(sizes)
    assert min(found.files.values()) >= 8
    assert min(found.batches.values()) >= 1
    assert found.long_bytes >= 1


def test_a_nearly_full_disk_is_not_filled(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {place: 300_000_000, tmp_path: 10**12}
    usage = type("Usage", (), {})

    def disk_usage(path: Path) -> Any:
        found = usage()
        found.free = free[path]
        return found

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    assert budget_of(None, (place, tmp_path)) == 150_000_000
    assert budget_of(None, (tmp_path, tmp_path)) == 1_000_000_000
    assert budget_of(299_000_000, (tmp_path, place)) == 299_000_000
    with pytest.raises(InputError, match="300 MB free"):
        budget_of(301_000_000, (tmp_path, place))


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError("no"), RunError("no")])
def test_a_scratch_folder_goes_whatever_happens(
    place: Path, failure: BaseException | type[BaseException]
) -> None:
    def work() -> None:
        with probes.scratch(place) as folder:
            (folder / "below").mkdir()
            (folder / "below" / "file").write_text("x")
            raise failure

    with pytest.raises(type(failure) if isinstance(failure, Exception) else KeyboardInterrupt):
        work()
    assert not list(place.iterdir())


def test_an_interrupt_while_cleaning_up_waits(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree

    def interrupted(folder: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        remove(folder)

    monkeypatch.setattr("experiments.probe.scratch_folder.rmtree", interrupted)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), ended_like_interrupts(), probes.scratch(place) as folder:
        (folder / "file").write_text("x")
    assert not list(place.iterdir())
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_that_end_a_process_are_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ended_like_interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_like_interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("quick")
def test_a_probe_gives_a_profile_that_experiments_take(
    place: Path,
    tmp_path: Path,
    tiny_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, figures = tmp_path / "mine.toml", tmp_path / "figures.json"
    given = ["--model", "mlp", "--download", "2e6", "--out", str(out), "--json", str(figures)]
    assert main(["probe", str(place), *SMALL, *given]) == 0
    assert not list(place.iterdir())
    said = capsys.readouterr()
    assert str(out) in said.out
    assert "writing" in said.err

    profile = load_profile(str(out))
    assert profile.inference_ms == 20
    assert (profile.download_bytes_per_s, profile.upload_bytes_per_s) == (2e6, 5e6)
    assert set(profile.training) == {"mlp"}
    assert profile.decode is not None
    assert "network speeds assumed, not measured" in profile.description
    assert "3x8x8" in profile.description

    found = json.loads(figures.read_text())
    assert found["schema"] == 1
    assert found["path"] == str(place)
    assert Profile.model_validate(found["profile"]) == profile
    check_rows(found)
    check_fits(found, profile)

    experiment = load(
        tiny_file, [f'fleet.profiles={{"{out}" = 1}}', 'timing.model="own"', "rounds.rounds=1"]
    ).for_arm()
    names, speeds = fleet_of(experiment)
    assert set(names) == {str(out)}
    assert np.isfinite([getattr(speeds, name) for name in speeds.__dataclass_fields__]).all()
    with pytest.raises(InputError, match="has not measured model 'cnn'"):
        fleet_of(Experiment.model_validate({**experiment.model_dump(), "model": {"name": "cnn"}}))


def check_rows(found: dict[str, Any]) -> None:
    """The rows of a probe of SIZES and mlp."""
    rows = found["rows"]
    by_bytes = {
        (row["name"], row["size_bytes"]) for row in rows if row["name"][:5] in {"origi", "cache"}
    }
    tiers = ("origin.read", "origin.write", "cache.read", "cache.write")
    assert by_bytes > {(name, size) for name in tiers for size in SIZES}
    assert {row["batch"] for row in rows if row["name"] == "training.mlp"} == {2, 4}
    names = {row["name"] for row in rows}
    assert names > {"origin.sequential", "cache.save", "decode", "inference"}
    for row in rows:
        low, high = row["spread"]
        assert 0 < low <= row["seconds"] <= high
        assert row["count"] >= 3
        assert row["unit"].startswith("s/")


def check_fits(found: dict[str, Any], profile: Profile) -> None:
    """Every figure of the profile is that of its fit."""
    fits = found["fits"]
    for tier, figures in (("origin", profile.origin), ("cache", profile.cache)):
        read, write = fits[f"{tier}.read"], fits[f"{tier}.write"]
        assert figures.read_latency_s == read["latency_s"]
        assert figures.read_bytes_per_s == 1 / read["unit_s"]
        assert figures.write_latency_s == write["latency_s"]
        assert figures.write_bytes_per_s == 1 / write["unit_s"]
    assert profile.training["mlp"].sample_s == fits["training.mlp"]["unit_s"]
    assert profile.training["mlp"].step_s == fits["training.mlp"]["latency_s"]
    assert profile.decode is not None
    assert profile.decode.sample_s == fits["decode"]["latency_s"]
    assert min(line["residual"] for line in fits.values()) >= 0


def test_a_run_is_timed_by_a_measured_profile(tiny_file: Path, tmp_path: Path) -> None:
    profile = profile_of(
        Wanted(tmp_path, tmp_path, models=("mlp",)), lines("mlp"), 0.05, 1.0, direct=True
    )
    out, figures = tmp_path / "mine.toml", tmp_path / "figures.json"
    out.write_text(probes.to_toml(profile))
    overrides = [f'fleet.profiles={{"{out}" = 1}}', "timing.model=own", "rounds.rounds=1"]
    setting = [part for override in overrides for part in ("--set", override)]
    command = ["run", str(tiny_file), *setting, "--out", str(tmp_path / "run")]
    assert main([*command, "--json", str(figures)]) == 0
    assert json.loads(figures.read_text())["virtual_s"] > 0


def lines(*models: str) -> dict[str, Fit]:
    line = Fit(latency_s=0.001, unit_s=1e-6, residual=0.0)
    names = ["origin.read", "origin.write", "cache.read", "cache.write", "decode"]
    return dict.fromkeys([*names, *(f"training.{model}" for model in models)], line)


@pytest.mark.usefixtures("quick")
def test_a_profile_without_a_name_for_it_is_printed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", str(place), *SMALL, "--model", "mlp"]) == 0
    printed = capsys.readouterr().out
    assert "fio is not installed" in printed
    toml = printed[printed.index("description = ") :]
    (place / "printed.toml").write_text(toml)
    assert "mlp" in load_profile(str(place / "printed.toml")).training


def test_names_of_models_may_be_odd(tmp_path: Path) -> None:
    odd = 'my.nets:build "it"'
    wanted = Wanted(tmp_path, tmp_path, models=("mlp", odd), shape=(1, 28, 28))
    profile = profile_of(wanted, lines("mlp", odd), 0.05, 1.0, direct=False)
    file = tmp_path / "odd.toml"
    file.write_text(probes.to_toml(profile))
    assert load_profile(str(file)) == profile
    assert set(profile.training) == {"mlp", odd}
    assert "maybe from the page cache" in profile.description
    assert "prefetch" not in probes.to_toml(profile)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["probe"], "required: PATH"),
        (["probe", "nowhere"], "cannot write to nowhere: No such file or directory"),
        (["probe", "file"], "cannot write to file: Not a directory"),
        (["probe", "/proc"], "cannot write to /proc"),
        (["probe", ".", "--cache", "nowhere"], "cannot write to nowhere"),
        (["probe", ".", "--budget", "4e6"], "raise --budget"),
        (["probe", ".", "--budget", "1e15"], "free"),
        (["probe", ".", "--budget", "lots"], "needs whole bytes from 1 on"),
        (["probe", ".", "--budget", "inf"], "needs whole bytes from 1 on"),
        (["probe", ".", "--size", "0"], "needs whole bytes from 1 on"),
        (["probe", ".", "--size", "1.5"], "needs whole bytes from 1 on"),
        (["probe", ".", "--size", "4096", "--size", "4096"], "name two --size"),
        (["probe", ".", "--size", "1", "--size", "1e14"], "need"),
        (["probe", ".", "--model", "mpl"], "unknown model 'mpl': did you mean 'mlp'?"),
        (["probe", ".", "--model", "no:such"], "cannot load model"),
        (["probe", ".", "--shape", "32x32"], "needs CxHxW"),
        (["probe", ".", "--shape", "2x8x8"], "needs CxHxW with 1 or 3 channels"),
        (["probe", ".", "--shape", "3x8x9999"], "needs 4 to 1024 pixels"),
        (["probe", ".", "--accelerator", "tpu"], "needs auto, cpu or cuda:i"),
        (["probe", ".", "--accelerator", "cuda:99"], "no cuda:99 here"),
        (["probe", ".", "--download", "0"], "above 0"),
        (["probe", ".", "--upload", "nan"], "above 0"),
        (["probe", ".", "--out", "mine"], "is named *.toml"),
        (["probe", ".", "--out", "no/mine.toml"], "cannot write no/mine.toml"),
        (["probe", ".", "--json", "no/mine.json"], "cannot write no/mine.json"),
        (["probe", ".", "--out", "a.toml", "--json", "./a.toml"], "name another file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    said: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    (place / "file").write_text("mine")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in place.iterdir()] == ["file"]


def test_a_cache_on_a_network_is_refused_before_the_work(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("storage.filesystem.file_system", lambda _: "nfs4")
    assert main(["probe", str(place), *SMALL, "--model", "mlp"]) == 2
    error = capsys.readouterr().err
    assert "is on nfs4" in error
    assert "--cache" in error
    assert error.count("\n") == 1
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), (1, "the disk failed: No space left")),
        (KeyboardInterrupt(), (130, "interrupted")),
    ],
)
@pytest.mark.parametrize("where", ["os.fsync", "storage.lmdb_store.LmdbStore.save"])
@pytest.mark.usefixtures("quick")
def test_what_fails_leaves_nothing_behind(
    failure: BaseException,
    expected: tuple[int, str],
    where: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = []

    def fail(*given: object) -> None:
        calls.append(given)
        if len(calls) > 3:
            raise failure

    monkeypatch.setattr(where, fail)
    out = place.parent / "mine.toml"
    assert main(["probe", str(place), *SMALL, "--model", "mlp", "--out", str(out)]) == expected[0]
    assert expected[1] in capsys.readouterr().err
    assert not list(place.iterdir())
    assert not out.exists()


def test_fio_is_asked_for_what_is_measured_here(
    place: Path, stub_fio: Callable[..., tuple[str, Path]]
) -> None:
    program, record = stub_fio(fio_output(80_000))
    for name in ("9000-0", "9000-1"):
        (place / name).write_bytes(bytes(9000))
    rows = fio.measure_fio(program, place, ["9000-0", "9000-1"], [1, 4096, 5000, 9001])
    assert [row.size_bytes for row in rows] == [4096, 8192]
    assert rows[0].seconds == pytest.approx(80e-6)
    assert rows[0].spread == pytest.approx((40e-6, 160e-6))
    assert rows[0].count == 1234
    assert {row.name for row in rows} == {"fio.read"}
    asked = record.read_text().splitlines()
    assert [line.split("--bs=")[1].split()[0] for line in asked] == ["4096", "8192"]
    for option in ("direct=1", "rw=randread", "ioengine=psync", "readonly", "output-format=json"):
        assert f"--{option}" in asked[0]
    assert "--filename=9000-0:9000-1" in asked[0]


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("", 1, "fio: fio: engine psync not loadable"),
        ("nothing of the sort", 0, "not understood"),
        ('{"jobs": []}', 0, "not understood"),
        ('{"jobs": [{"read": {"clat_ns": {"mean": 1}}}]}', 0, "not understood"),
    ],
)
def test_a_fio_that_fails_says_why(
    output: str, code: int, said: str, place: Path, stub_fio: Callable[..., tuple[str, Path]]
) -> None:
    program, _ = stub_fio(output, code)
    (place / "long").write_bytes(bytes(9000))
    with pytest.raises(RunError, match=said):
        fio.measure_fio(program, place, ["long"], [4096])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", [0, 1])
def test_fio_is_found_on_the_path_and_shown_beside_ours(
    code: int,
    place: Path,
    stub_fio: Callable[..., tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, _ = stub_fio(fio_output(80_000), code)
    monkeypatch.setattr(run, "installed", fio.installed)
    monkeypatch.setenv("PATH", str(place))
    assert fio.installed() is None
    monkeypatch.setenv("PATH", str(Path(program).parent))
    assert main(["probe", str(place), *SMALL, "--model", "mlp"]) == 0
    shown = capsys.readouterr().out
    assert ("fio.read" in shown) == (code == 0)
    assert ("not loadable; its figures are not shown" in shown) == (code == 1)
    assert "origin.sequential" in shown


def test_the_example_in_the_documentation_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    exec(compile(example, str(DOCUMENTATION), "exec"), {})  # noqa: S102 - as a reader would
    latency_s, bytes_per_s, residual = map(float, capsys.readouterr().out.split())
    assert latency_s >= 0
    assert bytes_per_s > 0
    assert residual >= 0
    assert not list(place.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_probe_cleans_up(place: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(  # noqa: S603 - this checkout's own program
        [FEDIO, "probe", str(place)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    with process:
        assert "writing" in process.stderr.readline()
        assert list(place.iterdir())
        process.send_signal(number)
        assert "interrupted" in process.stderr.read()
    assert process.returncode == 130
    assert not list(place.iterdir())
