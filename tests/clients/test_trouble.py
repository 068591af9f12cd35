"""A device in trouble: it trains all the same or says why not, and then is as good as new."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from clients import datapath
from clients.central import Central
from clients.client_cache import trained_tag
from clients.device import Host, Participation
from clients.fetching import DataPathError
from fedio.config import Experiment
from fedio.runs import TRACE_FOLDER, hash_arrays
from storage import Origin, StallError
from storage.lmdb_handle import DATA_FILE
from storage.trace_file import read_trace
from tests.clients.faults import Faulty
from tests.clients.participations import threads_of_ours

Small = Callable[..., Experiment]
ROOT = Path(__file__).parents[2]
INFINITE = float("inf")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not threads_of_ours()


class Twins:
    """Two devices alike; the origin of one fails as it is told to."""

    def __init__(self, experiment: Experiment, home: Path, *, threads: bool) -> None:
        self.experiment, self.threads = experiment, threads
        self.origins: list[Faulty] = []
        self.hosts = [
            Host(experiment, home / name, slow=self._slow, threads=threads) for name in ("a", "b")
        ]
        self.trouble, self.calm = (host.device(0) for host in self.hosts)
        self.origin, self.arrays = self.origins[0], Central(experiment).initial_arrays

    def _slow(self, partition: int, origin: Origin, sizes: np.ndarray) -> Origin:
        del partition, sizes
        self.origins.append(Faulty(origin))
        return self.origins[-1]

    def order(self, server_round: int) -> list[int]:
        with self.calm._cache.newest() as cache:
            order: list[int] = self.calm._order(cache, None, server_round, 8)[1].tolist()
            return order

    def train(self, server_round: int) -> tuple[Participation, Participation]:
        pair = [d.train(self.arrays, server_round, 8) for d in (self.trouble, self.calm)]
        return pair[0], pair[1]

    def check_same(self, server_round: int) -> None:
        one, other = self.train(server_round)
        assert said(one) == said(other)
        for pool in self.hosts[0].buffers._pools.values():
            assert pool.free == pool.count

    def close(self) -> None:
        for host in self.hosts:
            host.close()


def said(done: Participation) -> tuple[Any, ...]:
    hashed = hash_arrays({name: array.numpy() for name, array in done.arrays.items()})
    return hashed, done.train_loss, done.meter, done.claims


@pytest.fixture(params=[("lmdb", False), ("lmdb", True), ("memory", True)])
def twins(small: Small, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Twins]:
    """In turns and in threads, on disk and in memory; each has been trained once."""
    store, threads = request.param
    experiment = small(
        data={"clients": 1},
        rounds={"cohort": 1},
        cache={"share": 0.5, "store": store},
        arms={"a": {"policy": "importance"}},
    )
    made = Twins(experiment, tmp_path, threads=threads)
    made.check_same(1)
    yield made
    made.close()


def test_what_fails_once_leaves_no_trace(twins: Twins) -> None:
    for number, sample in enumerate(twins.order(2)[::7]):
        twins.origin.failures[sample] = 1 + number % 2
    twins.check_same(2)
    twins.origin.failures.clear()
    twins.check_same(3)


def test_some_samples_less_are_trained_and_counted(twins: Twins) -> None:
    with twins.trouble._cache.newest() as cache:
        bad = [sample for sample in twins.order(2) if sample not in cache][:3]
    twins.origin.failures = dict.fromkeys(bad, INFINITE)
    done, whole = twins.train(2)
    lost = sum(twins.order(2).count(sample) for sample in set(bad))
    assert done.meter.skipped == lost > 0
    assert done.meter.trained_samples == 64 - lost
    assert sum(done.meter.step_samples) == done.meter.trained_samples
    assert said(done) != said(whole)
    assert np.isfinite(done.train_loss)
    done.meter.check()
    # The round is trained again, as by a server that was restored, and nothing fails this time.
    twins.origin.failures.clear()
    twins.check_same(2)


@pytest.mark.parametrize("way", ["too many", "vanishes at once", "vanishes later", "hangs"])
def test_a_participation_that_fails_changes_nothing(
    twins: Twins, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = len(twins.origin.asked)
    expected: type[Exception] = DataPathError
    if way == "too many":
        twins.origin.failures = dict.fromkeys(range(72), INFINITE)
    elif way == "hangs":
        if not twins.threads:
            return
        monkeypatch.setattr(datapath, "STALL_LIMIT_S", 1.0)
        twins.origin.hangs_at, expected = reads + 2, StallError
    else:
        twins.origin.gone_after = reads + 2 * (way == "vanishes later")
    with pytest.raises(expected):
        twins.trouble.train(twins.arrays, 2, 8)
    monkeypatch.setattr(datapath, "STALL_LIMIT_S", 60.0)
    if way == "hangs":
        # It hangs still, and the device trains beside it.
        twins.check_same(2)
        (hanging,) = threads_of_ours()
        twins.origin.released.set()
        hanging.join(60)
        twins.check_same(2)
    twins.origin.failures.clear()
    twins.origin.gone_after = INFINITE
    twins.check_same(2)
    twins.check_same(3)


def test_a_trace_says_what_was_skipped(small: Small, tmp_path: Path) -> None:
    experiment = small(
        data={"clients": 1},
        rounds={"cohort": 1},
        engine={"record_trace": True},
        arms={"a": {"policy": "lru"}},
    )
    for name in ("a", "b"):
        (tmp_path / name / TRACE_FOLDER).mkdir(parents=True)
    twins = Twins(experiment, tmp_path, threads=True)
    order = twins.order(1)
    twins.origin.failures = {order[20]: INFINITE}
    done, _ = twins.train(1)
    traces = [read_trace(tmp_path / name / TRACE_FOLDER / "0-1.npz") for name in ("a", "b")]
    (ours,), (theirs,) = (trace.streams for trace in traces)
    assert ours.requests.tolist() == theirs.requests.tolist() == order
    assert np.flatnonzero(np.isnan(ours.losses)).tolist() == [20]
    assert np.flatnonzero(np.isnan(theirs.losses)).tolist() == []
    # Steps 0 and 1 are trained alike, and so is what is left of step 2.
    np.testing.assert_array_equal(ours.losses[:20], theirs.losses[:20])
    np.testing.assert_allclose(ours.losses[21:24], theirs.losses[21:24], rtol=1e-6)
    assert np.nanmean(ours.losses.astype(np.float64)) == pytest.approx(done.train_loss)
    twins.close()


def test_damage_in_the_cache_is_a_miss(small: Small, tmp_path: Path) -> None:
    """A bit of a cached payload flips while nobody looks."""
    experiment = small(data={"clients": 1}, rounds={"cohort": 1}, cache={"share": 4.0})
    twins = Twins(experiment, tmp_path, threads=True)
    for server_round in (1, 2, 3):
        twins.check_same(server_round)
    with twins.trouble._cache.newest() as cache:
        sample = next(sample for sample in twins.order(4) if sample in cache)
        payload = cache.get(sample) or b""
    twins.hosts[0].close()
    file = tmp_path / "a" / "caches" / "0" / DATA_FILE
    content = bytearray(file.read_bytes())
    parts = [payload[at : at + 60] for at in range(1000, len(payload) - 60, 500)]
    at = next(content.find(part) for part in parts if content.count(part) == 1)
    content[at] ^= 4
    file.write_bytes(content)
    done, whole = twins.train(4)
    assert done.meter.corrupt == 1
    assert done.meter.misses == whole.meter.misses + 1
    assert done.meter.origin_bytes == whole.meter.origin_bytes + len(payload)
    assert said(done)[:2] == said(whole)[:2]
    twins.check_same(5)
    twins.close()


FULL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.clients.test_trouble import train_on_a_full_disk
train_on_a_full_disk(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def photos_of(data_folder: Path, policy: str) -> Experiment:
    """About 3 MB of photos, and a cache that may hold them all."""
    drawing = {"samples": 80, "test_samples": 10, "median_side_px": 360, "sigma": 0.2}
    return Experiment.model_validate(
        {
            "name": "full",
            "data": {
                "clients": 1,
                "folder": str(data_folder),
                "dataset": {"name": "photos", "args": drawing | {"max_side_px": 512}},
            },
            "training": {"local_steps": 8, "batch_size": 8, "accelerator": "cpu"},
            "rounds": {"cohort": 1},
            "cache": {"budget_bytes": 16 << 20},
            "arms": {"a": {"policy": policy}},
        }
    )


def train_on_a_full_disk(data_folder: Path, home: Path) -> None:
    """In its own process: files cannot grow past 1 MiB, though the budget says that they may."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    for policy in ("static", "lru"):
        experiment = photos_of(data_folder, policy)
        host, arrays = Host(experiment, home / policy), Central(experiment).initial_arrays
        for server_round in (1, 2):
            done = host.device(0).train(arrays, server_round, 8)
            done.meter.check()
            assert done.meter.trained_samples == 64
            assert (done.meter.refused > 0) == (policy == "static")
        assert done.meter.hits > 0 or policy == "lru"
        with host.device(0)._cache.before(trained_tag(3)) as cache:
            assert len(cache) > 0
            assert cache.residents.tolist() == cache.store.present().tolist()
        host.close()
        print(policy, hash_of(done.arrays))  # noqa: T201 - to the process that started this one


def hash_of(arrays: ArrayRecord) -> str:
    return hash_arrays({name: array.numpy() for name, array in arrays.items()})


def test_a_disk_that_is_full_is_no_reason_not_to_train(data_folder: Path, tmp_path: Path) -> None:
    experiment = photos_of(data_folder, "static")
    host, arrays = Host(experiment, tmp_path / "calm"), Central(experiment).initial_arrays
    for server_round in (1, 2):
        done = host.device(0).train(arrays, server_round, 8)
        assert done.meter.refused == 0
    host.close()
    ran = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", FULL_DISK, str(ROOT), str(data_folder), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    shutil.rmtree(tmp_path / "calm")
    expected = [f"{policy} {hash_of(done.arrays)}" for policy in ("static", "lru")]
    assert ran.stdout.splitlines() == expected, ran.stderr
