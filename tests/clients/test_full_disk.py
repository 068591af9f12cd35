"""A disk that is full: devices train all the same, and go on from what was saved last."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.central import Central
from clients.client_cache import trained_tag
from clients.device import Host, Participation
from clients.prepare import prepare
from fedio.config import Experiment
from fedio.loading import load
from fedio.runs import hash_arrays
from storage.index_file import IndexFile
from tests.storage.test_damage import in_own_namespace

Small = Callable[..., Experiment]

ON_A_FULL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.clients.test_full_disk import train_on_a_full_disk
train_on_a_full_disk(*map(Path, sys.argv[2:]))
"""


class Said(logging.Handler):
    """Counts how often something was said."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self.times = text, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.times += self._text in record.getMessage()


def fill(file: Path) -> None:
    """Take all that is left of a disk."""
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except OSError:
        os.close(descriptor)


def train_on_a_full_disk(config: Path, disk: Path, elsewhere: Path) -> None:
    """In its own process: the disk is full from round 3 on until round 6."""
    experiment = load(config)
    arrays = Central(experiment).initial_arrays
    hosts = [Host(experiment, home) for home in (disk, elsewhere)]
    unsaved = Said("its cache is not saved after round")
    logging.getLogger("clients.device").addHandler(unsaved)

    def train(server_round: int) -> Participation:
        done, twin = (host.device(0).train(arrays, server_round, 6) for host in hosts)
        done.meter.check()
        assert done.meter.trained_samples == 48
        hashes = {hash_arrays({k: a.numpy() for k, a in d.arrays.items()}) for d in (done, twin)}
        assert len(hashes) == 1
        return done

    def tag() -> int | None:
        with hosts[0].device(0)._cache.newest() as cache:
            return cache.tag

    train(1)
    train(2)
    assert tag() == trained_tag(2)
    fill(disk / "filler")
    saved = []
    for server_round in (3, 4, 5):
        train(server_round)
        saved.append(tag())
    # At some time the state does not fit any more; the one before it stays.
    assert 1 <= unsaved.times <= 3
    assert saved[-1] == max(saved) < trained_tag(5)
    assert saved.count(saved[-1]) == unsaved.times + (saved[-1] != trained_tag(2))
    (disk / "filler").unlink()
    assert train(6).meter.hits > 0
    assert tag() == trained_tag(6)
    for host in hosts:
        host.close()
    print("survived")  # noqa: T201 - to the process that started this one


def test_what_could_not_be_saved_has_not_been(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a round that is not saved a cache decides as if there had been none."""
    experiment = small(data={"clients": 1}, rounds={"cohort": 1})
    arrays = Central(experiment).initial_arrays
    ours, twin = (Host(experiment, tmp_path / name) for name in ("ours", "twin"))
    for host in (ours, twin):
        host.device(0).train(arrays, 1, 6)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "append", full)
        done = ours.device(0).train(arrays, 2, 6)
    assert done.meter.trained_samples == 48
    assert done.meter.evicted_samples > 0
    (said,) = (r.getMessage() for r in caplog.records if r.name == "clients.device")
    assert said.startswith("partition 0: its cache is not saved after round 2: ")
    assert said.endswith("No space left on device")
    with ours.device(0)._cache.newest() as cache:
        assert cache.tag == trained_tag(1)
    for server_round in (3, 4):
        one, other = (host.device(0).train(arrays, server_round, 6) for host in (ours, twin))
        assert one.meter == other.meter
    for host in (ours, twin):
        host.close()


@pytest.mark.slow
def test_training_goes_on_from_what_was_saved_last(small: Small, tmp_path: Path) -> None:
    experiment = small(data={"clients": 1}, rounds={"cohort": 1})
    prepare(experiment)
    (tmp_path / "config.toml").write_text(experiment.to_toml())
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m none {disk}"
    if in_own_namespace(mount).returncode:
        pytest.skip("this system lets no user mount a tmpfs")
    root, config = Path(__file__).parents[2], tmp_path / "config.toml"
    command = f"{sys.executable} -c '{ON_A_FULL_DISK}' {root} {config} {disk} {elsewhere}"
    done = in_own_namespace(f"{mount} && exec {command}")
    assert done.stdout == "survived\n", done.stderr
