"""Emulation under faults: injected ones, processes killed from outside, storage that fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from experiments.cli import main
from experiments.engines import emulate, inline
from experiments.probe.photo_files import write_photos
from experiments.telemetry import read
from fedio.loading import load
from fedio.runs import CACHES_FOLDER, Run, RunFolder, read_run
from tests.experiments.emulations import (
    client_apps,
    emulating,
    family_of,
    rounds_written,
    super_nodes,
    wait_for,
)

pytestmark = pytest.mark.slow

EXPERIMENT = """
name = "faults"

[data]
clients = {clients}
folder = "{folder}"
dataset = {dataset}

[training]
local_steps = 4
batch_size = 4
lr = 0.05
accelerator = "cpu"

[model]
name = "mlp"

[fleet.profiles]
phone-high = 1

[cache]
share = 0.8

[rounds]
rounds = {rounds}
cohort = {clients}
empty_rounds = 2

[arms.one]
selector = "uniform"
policy = "static"
"""
PHOTOS = '{ name = "photos", args = { samples = 60, test_samples = 20 } }'


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """Where temporary files of emulations go; in the end none is there."""
    assert tmp_path.is_dir()
    path = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))
    yield path
    # torchvision leaves a folder of torch's compiler where it is imported.
    assert not [file for file in path.iterdir() if not file.name.startswith("torchinductor")]
    shutil.rmtree(path)


def experiment_file(tmp_path: Path, clients: int, rounds: int, dataset: str = PHOTOS) -> Path:
    path = tmp_path / "faults.toml"
    values = {"clients": clients, "rounds": rounds, "dataset": dataset}
    path.write_text(EXPERIMENT.format(folder=tmp_path / "data", **values))
    return path


def rows_of(run: Run, server_round: int) -> list[dict[str, Any]]:
    """Return the participations in a round, by client."""
    rows = [row for row in run.clients if row["round"] == server_round]
    return sorted(rows, key=lambda row: int(row["client"]))


def outcomes(run: Run, server_round: int) -> list[str]:
    return [row["outcome"] for row in rows_of(run, server_round)]


def test_what_is_injected_happens_and_is_counted(tmp_path: Path, temporary: Path) -> None:
    file, out = experiment_file(tmp_path, clients=4, rounds=4), tmp_path / "run"
    faults = {
        "kill": "{round=2, clients=[0]}",
        "stop": "{round=3, clients=[1], seconds=25}",
        "slow_storage": "{round=2, clients=[2], factor=100}",
        "full_disk": "{round=1, clients=[3]}",
        "corrupt_cache": "{round=3, clients=[2]}",
    }
    given = [str(file), "--clients", "4", "--out", str(out), "--set", "rounds.deadline_s=20"]
    given += [part for kind, when in faults.items() for part in ("--set", f"faults.{kind}={when}")]
    with emulating(temporary, *given) as process:
        assert process.wait(600) == 0
    run = read_run(out)
    injected = [(r, c, f) for r in range(1, 5) for c, f in _faults(run, r) if f]
    assert injected == [
        (1, 3, ["full_disk"]),
        (2, 0, ["kill"]),
        (2, 2, ["slow_storage"]),
        (3, 1, ["stop"]),
        (3, 2, ["corrupt_cache"]),
    ]
    first, second, third, fourth = (rows_of(run, server_round) for server_round in range(1, 5))
    assert outcomes(run, 1) == ["counted"] * 4
    assert first[3]["refused"] == first[3]["misses"] == 16
    assert first[3]["written_samples"] == 0 < first[0]["written_samples"]
    assert outcomes(run, 2) == ["failed", "counted", "counted", "counted"]
    assert second[0]["problem"].endswith("device 0 ended while it trained")
    # By the profiles, and then in real time: a busy machine adds to any of them, and takes nothing.
    assert second[2]["virtual_origin_s"] > 10 * second[3]["virtual_origin_s"]
    assert second[2]["origin_s"] > 0.9 * second[2]["virtual_origin_s"]
    assert outcomes(run, 3) == ["counted", "late", "counted", "counted"]
    assert third[1]["duration_s"] > 25
    # A device that was killed has its cache as it was saved last; one that was damaged has none,
    # and hits at most what it reads for the second time: three accesses more than it has samples.
    again = third[2]["requests"] - third[2]["unique_samples"]
    assert third[0]["hits"] > again == 3 >= third[2]["hits"]
    assert third[2]["resident_samples"] == third[2]["written_samples"] > 0
    # Who stood still is at work until then, and so not in the round that began meanwhile.
    assert [row["client"] for row in fourth] == [0, 2, 3]
    assert outcomes(run, 4) == ["counted"] * 3
    assert fourth[1]["hits"] > 0
    ended = [row for row in read(out) if row["what"] == "ended"]
    assert [(row["kind"], row["client"], row["code"]) for row in ended] == [("device", 0, -9)]
    figures = tmp_path / "figures.json"
    assert main(["report", str(out), "--out", str(tmp_path / "rep"), "--json", str(figures)]) == 0
    told = json.loads(figures.read_text())["faults"]
    assert {kind: row["injected"] for kind, row in told.items()} == dict.fromkeys(faults, 1)


def _faults(run: Run, server_round: int) -> list[tuple[int, list[str]]]:
    return [(row["client"], row["faults"]) for row in rows_of(run, server_round)]


def test_a_run_goes_on_when_its_processes_are_killed_or_stopped_from_outside(
    tmp_path: Path, temporary: Path
) -> None:
    """A SuperNode, a ClientApp and a device at once: each costs its client the round at most."""
    file, out = experiment_file(tmp_path, clients=4, rounds=5), tmp_path / "run"
    # Long enough to be hit in the middle, and a deadline that does not wait for the stopped one.
    given = [str(file), "--clients", "4", "--out", str(out), "--set", "training.local_steps=40"]
    given += ["--set", "rounds.deadline_s=30"]
    with emulating(temporary, *given) as process:
        wait_for(lambda: rounds_written(out) == 2, process)
        apps = wait_for(lambda: len(client_apps(process)) == 4 and client_apps(process), process)
        devices = devices_of(process)
        for one in (apps[1], super_nodes(process)[0]):
            one.send_signal(signal.SIGKILL)
        devices[2].send_signal(signal.SIGSTOP)
        wait_for(lambda: rounds_written(out) == 3, process)
        devices[2].send_signal(signal.SIGCONT)
        assert process.wait(600) == 0
    run = read_run(out)
    assert outcomes(run, 1) == ["counted"] * 4
    # Flower sends the message of a ClientApp that is gone again: its device has answered already.
    assert outcomes(run, 2) == ["failed", "counted", "late", "counted"]
    assert rows_of(run, 2)[1]["flower_s"] > 10
    counted = {client for row in run.rounds[3:] for client in row["counted"]}
    assert counted == {0, 1, 2, 3}
    # Who came back had its cache, and trained what it would have.
    hits = {row["client"]: row["hits"] for row in run.clients if row["round"] > 2}
    assert all(hits[client] > 0 for client in range(4))


def test_a_run_whose_superlink_is_killed_says_so_in_a_line_and_can_be_resumed(
    tmp_path: Path, temporary: Path
) -> None:
    file, out = experiment_file(tmp_path, clients=3, rounds=4), tmp_path / "run"
    words = tmp_path / "words"
    given = [str(file), "--clients", "3", "--pace", "none", "--out", str(out)]
    with emulating(temporary, *given, words=words) as process:
        wait_for(lambda: rounds_written(out) == 3, process)
        (link,) = [p for p, c in family_of(process).items() if "/flower-superlink " in c]
        family = list(family_of(process))
        link.send_signal(signal.SIGKILL)
        assert process.wait(300) == 1
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    errors = [line for line in words.read_text().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "SuperLink" in errors[0]
    assert "--resume" in words.read_text()
    with emulating(temporary, *given, "--resume") as process:
        assert process.wait(600) == 0
    virtual = load(file).for_arm()
    inline.run(virtual, RunFolder.create(tmp_path / "inline", virtual))
    resumed, whole = read_run(out), read_run(tmp_path / "inline")
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]
    counts = ("round", "client", "requests", "hits", "misses", "resident_samples")
    assert [[row[key] for key in counts] for row in resumed.clients] == [
        [row[key] for key in counts] for row in whole.clients
    ]


def test_without_its_samples_a_run_ends_with_one_clear_line(
    tmp_path: Path, temporary: Path
) -> None:
    write_photos(tmp_path / "photos", 6_000_000, np.random.default_rng(0), lambda _: None)
    photos = f'{{ name = "image-folder", args = {{ path = "{tmp_path / "photos"}" }} }}'
    file, out = experiment_file(tmp_path, clients=2, rounds=6, dataset=photos), tmp_path / "run"
    words = tmp_path / "words"
    given = [str(file), "--clients", "2", "--pace", "none", "--out", str(out)]
    with emulating(
        temporary, *given, "--set", "arms.one.policy=lru", "--set", "cache.share=0", words=words
    ) as process:
        wait_for(lambda: rounds_written(out) == 2, process)
        shutil.rmtree(tmp_path / "photos" / "train")
        assert process.wait(600) == 1
    (said,) = [line for line in words.read_text().splitlines() if line.startswith("error: ")]
    assert "2 rounds in a row brought no usable reply" in said
    assert "cannot read" in said


def test_caches_on_a_disk_that_is_full_do_not_end_a_run(tmp_path: Path, temporary: Path) -> None:
    write_photos(tmp_path / "photos", 30_000_000, np.random.default_rng(0), lambda _: None)
    photos = f'{{ name = "image-folder", args = {{ path = "{tmp_path / "photos"}" }} }}'
    file, out = experiment_file(tmp_path, clients=2, rounds=3, dataset=photos), tmp_path / "run"
    given = [str(file), "--clients", "2", "--pace", "none", "--out", str(out)]
    RunFolder.create(out, emulate.timed(load(file, ["emulation.pace=none"]).for_arm()))
    caches = out / CACHES_FOLDER
    caches.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(caches)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:  # noqa: S603
        pytest.skip("this system does not let this user mount a tmpfs")
    try:
        with emulating(temporary, *given) as process:
            assert process.wait(600) == 0
    finally:
        subprocess.run(["umount", str(caches)], check=True)  # noqa: S603, S607
    run = read_run(out)
    assert all(row["outcome"] == "counted" for row in run.clients)
    assert sum(row["refused"] for row in run.clients) > 0
    assert sum(row["trained_samples"] for row in run.clients) == 2 * 3 * 16


def devices_of(process: subprocess.Popen[bytes]) -> dict[int, psutil.Process]:
    """Return the devices by client, from the telemetry of the run."""
    (out,) = [Path(a) for a in psutil.Process(process.pid).cmdline() if a.endswith("/run")]
    started = [row for row in read(out) if row["what"] == "started" and row["kind"] == "device"]
    return {row["client"]: psutil.Process(row["pid"]) for row in started}
