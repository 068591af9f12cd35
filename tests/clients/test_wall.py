"""Time and memory of real participations: accounted for, and no more than at first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clients.central import Central
from clients.device import Host
from clients.prepare import prepare
from clients.wall import Busy
from fedio.config import Experiment

Small = Callable[..., Experiment]
ROOT = Path(__file__).parents[2]


def photos_of_100_kb(folder: Path, policy: str = "importance") -> Experiment:
    drawing = {
        "samples": 48,
        "test_samples": 10,
        "median_side_px": 640,
        "max_side_px": 800,
        "sigma": 0.1,
        "size": 16,
    }
    return Experiment.model_validate(
        {
            "name": "large",
            "data": {
                "clients": 1,
                "holdout": 0.0,
                "folder": str(folder),
                "dataset": {"name": "photos", "args": drawing},
            },
            "training": {"local_steps": 12, "batch_size": 8, "accelerator": "cpu"},
            "rounds": {"cohort": 1},
            "cache": {"share": 0.5},
            "arms": {"a": {"policy": policy}},
        }
    )


@pytest.mark.parametrize("threads", [False, True])
def test_reading_is_busy_where_bytes_move(small: Small, tmp_path: Path, *, threads: bool) -> None:
    experiment = small(data={"clients": 1}, rounds={"cohort": 1})
    host, arrays = Host(experiment, tmp_path, threads=threads), Central(experiment).initial_arrays
    for server_round in (1, 2, 3):
        done = host.device(0).train(arrays, server_round, 4)
    host.close()
    reading, meter = done.wall.reading, done.meter
    for seconds in (reading.origin_s, reading.cache_s, reading.decode_s, reading.write_s):
        assert seconds.shape == (4,)
        assert (seconds >= 0).all()
    missed = np.array(meter.step_misses) > 0
    assert ((reading.origin_s > 0) == missed).all()
    assert ((reading.write_s > 0) == missed).all()
    assert (reading.cache_s > 0).all()
    assert (reading.decode_s > 0).all()
    np.testing.assert_allclose(
        reading.total_s,
        reading.origin_s + reading.cache_s + reading.decode_s + reading.write_s,
    )
    training = done.wall.training
    assert min(training.stall_s, training.copy_s, training.compute_s) >= 0
    assert training.stall_s + training.copy_s + training.compute_s <= done.wall.total_s


def test_nobody_is_busy_at_first() -> None:
    busy = Busy.none(3)
    busy.cache_s[1] += 2
    busy.write_s[1] += 1
    assert busy.total_s.tolist() == [0, 3, 0]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [False, True])
def test_all_time_is_accounted_for(data_folder: Path, tmp_path: Path, *, threads: bool) -> None:
    """Stall, copies and computing are the whole but for opening and saving the cache."""
    experiment = photos_of_100_kb(data_folder)
    host, arrays = Host(experiment, tmp_path, threads=threads), Central(experiment).initial_arrays
    shares = []
    for server_round in range(1, 4):
        wall = host.device(0).train(arrays, server_round, 12).wall
        training = wall.training
        shares.append((training.stall_s + training.copy_s + training.compute_s) / wall.total_s)
        if not threads:
            # Whoever reads in turns is waited for, and has nothing else to do meanwhile.
            assert 0.8 < wall.reading.total_s.sum() / training.stall_s <= 1
    host.close()
    assert 0.95 < max(shares) <= 1


MEMORY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.clients.test_wall import memory_of_participations
memory_of_participations(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def anonymous_bytes() -> int:
    """What this process has in memory that is of no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("RssAnon"))
    return int(kilobytes) << 10


def memory_of_participations(data_folder: Path, home: Path) -> None:
    """In its own process: print how much memory each of many participations leaves in use."""
    experiment = photos_of_100_kb(data_folder)
    host, arrays = Host(experiment, home, threads=True), Central(experiment).initial_arrays
    for server_round in range(1, 31):
        host.device(0).train(arrays, server_round, 6)
        print(anonymous_bytes())  # noqa: T201 - to the process that started this one


@pytest.mark.slow
def test_memory_stays_as_it_is(data_folder: Path, tmp_path: Path) -> None:
    """That of the data path: the network is small, for what it takes comes and goes."""
    prepare(photos_of_100_kb(data_folder))
    ran = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", MEMORY, str(ROOT), str(data_folder), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    used = [int(line) for line in ran.stdout.split()]
    assert len(used) == 30
    after = used[10:]
    assert max(after) - after[0] < 4 << 20
