"""Telemetry: counters are the system's, families are whole, tables survive what happens to them."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from experiments.probe.photo_files import write_photos
from experiments.telemetry import (
    Telemetry,
    Watched,
    gpu,
    lines,
    read,
    sampler,
    summarise,
)
from experiments.telemetry import counters as counting
from experiments.telemetry import processes as processes_of
from experiments.telemetry.host import host, operations
from experiments.telemetry.processes import Family, kind_by
from fedio.config import Emulation
from fedio.runs import CHECKPOINT_FILE, TELEMETRY_FILE, Row, RunFolder
from storage.direct import direct_io
from tests.experiments.synthetic_runs import process_row, telemetry_rows

LIMIT_S = 120.0
OFTEN = Emulation(telemetry_s=0.1, memory_s=0.1)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python, and go on when it says a line: it is ready."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-u", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": "."},
    ) as process:  # fmt: skip
        try:
            hear(process)
            yield process
        finally:
            process.kill()


def child(code: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started("-c", code)


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline()
    assert line, "it ended"
    return line.strip()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def until(is_so: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if found := is_so():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to be")


WAITS = "print('ready'); input()"
HAS_CHILD = (
    "import subprocess, sys; "
    f"one = subprocess.Popen([sys.executable, '-u', '-c', {WAITS!r}], stdin=subprocess.PIPE, "
    "stdout=subprocess.PIPE); one.stdout.readline(); print(one.pid); input()"
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def processes(folder: RunFolder, pid: int) -> list[Row]:
    return [row for row in read(folder.path) if row["what"] == "process" and row["pid"] == pid]


@pytest.mark.skipif(not counting.ON_LINUX, reason="counters come from psutil here")
def test_counters_are_those_that_psutil_reads() -> None:
    work = "import os\nx = [os.urandom(1 << 20) for _ in range(50)]\nfor _ in range(10**6): pass\n"
    threads = "import threading\nfor _ in range(3): threading.Thread(target=input).start()\n"
    with child(work + threads + "print('ready')") as process:
        ours, theirs = counting.counters(process.pid), counting.from_psutil(process.pid)
        assert (ours.threads, theirs.threads) == (4, 4)
        assert ours.user_s == theirs.user_s > 0
        assert ours.system_s == theirs.system_s > 0
        for name in ("read_bytes", "written_bytes", "read_calls", "write_calls"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.rss_bytes == pytest.approx(theirs.rss_bytes, rel=0.05)
        assert ours.rss_bytes > 50 << 20
        assert ours.born_s == pytest.approx(theirs.born_s, abs=0.1)
        memory, other = counting.seldom(process.pid), counting.seldom_from_psutil(process.pid)
        assert memory.pss_bytes == other.pss_bytes
        assert memory.voluntary_switches is not None
        assert other.voluntary_switches is not None
        assert memory.voluntary_switches > other.voluntary_switches  # psutil: of one thread


@pytest.mark.parametrize("look", [counting.counters, counting.seldom, counting.from_psutil,
                                  counting.seldom_from_psutil])  # fmt: skip
def test_a_process_that_is_gone_says_so(look: Callable[[int], object]) -> None:
    with child(WAITS) as process:
        pass
    with pytest.raises(ProcessLookupError):
        look(process.pid)


def test_host_counts_cpu_memory_and_network_by_kind() -> None:
    before = host()
    sum(range(3_000_000))
    after = host()
    assert 0 < after["cpu_s"] - before["cpu_s"] < 60
    assert after["cpu_s"] < after["cpus"] * (time.time() - psutil.boot_time() + 1)
    assert 0 < after["memory_bytes"] < psutil.virtual_memory().total
    assert after["loopback_sent_bytes"] >= before["loopback_sent_bytes"]


class CpuTimes(NamedTuple):
    user: float = 50
    system: float = 10
    idle: float = 900
    iowait: float = 5
    guest: float = 20
    guest_nice: float = 3


def test_time_of_guests_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", CpuTimes)
    assert host()["cpu_s"] == 60


MOUNTS = """\
device proc mounted on /proc with fstype proc
device server:/export mounted on /mnt/data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tage:\t1000
\tbytes:\t1 2 3 4 5 6 7 8
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 30 30 0 1 2 3 4 5 0
\t       WRITE: 12 12 0 1 2 3 4 5 0
\t      COMMIT: 3 3 0 1 2 3 4 5 0
\t     GETATTR: 100 100 0 1 2 3 4 5 0
\t      LOOKUP: 7 7 0 1 2 3 4 5 0

device /dev/sda1 mounted on / with fstype ext4
"""


def test_data_and_metadata_operations_of_network_file_systems(tmp_path: Path) -> None:
    file = tmp_path / "mountstats"
    file.write_text(MOUNTS)
    assert operations(file) == (45, 108)
    file.write_text("device /dev/sda1 mounted on / with fstype ext4\n")
    assert operations(file) == (None, None)
    assert operations(tmp_path / "none") == (None, None)


def test_gpu_memory_by_process() -> None:
    assert gpu.parse("") == {}
    told = "4242, 512\n17, 3\n4242, 100\n99, [N/A]\nNo running processes found\n"
    assert gpu.parse(told) == {4242: 612 * gpu.MIB, 17: 3 * gpu.MIB}


def test_gpu_memory_is_asked_for_where_there_is_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: RunFolder
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.gpu_bytes() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n[ $# = 2 ] && echo '{os.getpid()}, 7'\n")
    tool.chmod(stat.S_IRWXU)
    with Telemetry(folder, list, OFTEN):
        pass
    assert processes(folder, os.getpid())[0]["gpu_bytes"] == 7 * gpu.MIB
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpu.gpu_bytes() is None


def test_kinds_by_command_line() -> None:
    python = "/venv/bin/python3.11"
    for words, kind in {
        (python, "/venv/bin/flower-supernode", "--insecure"): "supernode",
        ("flower-superexec", "--plugin-type", "clientapp"): "superexec",
        (python, "/venv/bin/flwr-clientapp", "--token"): "clientapp",
        (python, "/venv/bin/flwr-serverapp"): "serverapp",
        (python, "/venv/bin/flwr", "run"): "flwr",
        (python, "-m", "clients.zygote"): "zygote",
        (python, "/x/engines/keeper.py", "/y"): "keeper",
        (python, "-c", "print('fedio')"): "other",
        (): "other",
    }.items():
        assert kind_by(words) == kind


def test_a_family_is_who_is_told_of_and_all_below_them() -> None:
    with child(HAS_CHILD) as process, child(WAITS) as stranger:
        below = psutil.Process(process.pid).children()[0].pid
        told = [Watched(process.pid, "supernode", 3)]
        family = Family(lambda: told)
        found = {one.pid: one for one in family.living()}
        assert found[process.pid] == told[0]
        assert found[below] == Watched(below, "other", 3)
        assert found[os.getpid()].kind == "fedio"
        assert found[stranger.pid].client is None  # ours, but nobody's in particular
        assert os.getppid() not in found
        told[:] = [Watched(below, "device", 4)]
        found = {one.pid: one for one in family.living()}
        assert found[below] == told[0]
    until(lambda: not psutil.pid_exists(below))
    assert not {below, process.pid} & {one.pid for one in family.living()}


def test_those_who_descend_from_one_told_of_later_are_found_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with child(HAS_CHILD) as process, child(WAITS) as own:
        below = psutil.Process(process.pid).children()[0].pid
        monkeypatch.setattr(processes_of, "os", SimpleNamespace(getpid=lambda: own.pid))
        told: list[Watched] = []
        family = Family(lambda: told)
        assert [one.pid for one in family.living()] == [own.pid]
        told.append(Watched(process.pid, "supernode", 1))
        found = {one.pid: one.client for one in family.living()}
        assert found == {own.pid: None, process.pid: 1, below: 1}


def test_a_child_on_its_way_to_another_program_is_looked_at_again() -> None:
    becomes = (
        f"import os, sys\n{WAITS}\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {WAITS!r}, 'clients.zygote'])"
    )
    family = Family(lambda: [Watched(os.getpid(), "other")])
    with child(becomes) as process:
        assert {one.pid: one.kind for one in family.living()}[process.pid] == "other"
        say(process)
        hear(process)
        assert {one.pid: one.kind for one in family.living()}[process.pid] == "zygote"


def test_rows_of_a_run_and_the_last_of_those_that_vanish(folder: RunFolder) -> None:
    before_s = time.time()
    with child(WAITS) as process:
        told = [Watched(process.pid, "device", 2)]
        with Telemetry(folder, lambda: told, OFTEN) as telemetry:
            telemetry.started("device", 2, process.pid, 0.25)
            until(lambda: processes(folder, process.pid))
            process.kill()
            process.wait()
            telemetry.ended("device", 2, process.pid, -9)
            told.clear()
            seen = len(read(folder.path))
            until(lambda: len(read(folder.path)) > seen + 2)
    rows = read(folder.path)
    begin, *others = rows
    assert begin["what"] == "begin"
    assert before_s <= begin["began_s"] <= time.time()
    assert {row["what"] for row in others} == {"process", "host", "started", "ended"}
    assert all(0 <= row["wall_s"] <= time.time() - before_s + 1 for row in rows)
    last = processes(folder, process.pid)[-1]
    assert (last["kind"], last["client"], last["threads"]) == ("device", 2, 1)
    assert -LIMIT_S < last["born_s"] <= last["wall_s"]
    ended = next(row for row in rows if row["what"] == "ended")
    assert (ended["kind"], ended["client"], ended["code"]) == ("device", 2, -9)
    assert rows[-1]["what"] == "host"
    assert 0 < rows[-1]["telemetry_share"] < 1


def test_memory_is_looked_at_seldom(folder: RunFolder) -> None:
    with Telemetry(folder, list, Emulation(telemetry_s=0.1, memory_s=3600)):
        until(lambda: len(processes(folder, os.getpid())) > 3)
    looked = ["pss_bytes" in row for row in processes(folder, os.getpid())]
    assert looked[0]
    assert not any(looked[1:])


def test_rows_become_rarer_and_the_last_ones_are_kept(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    clock = SimpleNamespace(
        monotonic=lambda: now_s, time=time.time, thread_time=time.thread_time
    )  # fmt: skip
    monkeypatch.setattr(sampler, "time", clock)
    telemetry = Telemetry(folder, list, Emulation(telemetry_s=1.0, memory_s=3600))
    telemetry.sample()
    # Other tests may have left children of this process, which have rows too.
    monkeypatch.setattr(sampler, "ROWS_BEFORE_THINNING", 3 * telemetry._written)
    now_s, written = 1.0, []
    for _ in range(60):
        before = len(processes(folder, os.getpid()))
        telemetry.sample()
        written.append(len(processes(folder, os.getpid())) > before)
        now_s += 1.0
    gaps = np.diff(np.flatnonzero(written)).tolist()
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (1, 16)
    with child(WAITS) as process:
        telemetry.sample()
        assert not processes(folder, process.pid)
    telemetry.sample()
    assert len(processes(folder, process.pid)) == 1


def test_a_resumed_run_goes_on_with_its_table_and_a_new_one_begins_anew(folder: RunFolder) -> None:
    with Telemetry(folder, list, OFTEN):
        pass
    file = folder.path / TELEMETRY_FILE
    first = read(folder.path)
    with file.open("a") as torn:
        torn.write('{"what":"proc')
    assert read(folder.path) == first
    (folder.path / CHECKPOINT_FILE).parent.mkdir()
    (folder.path / CHECKPOINT_FILE).touch()
    with Telemetry(folder, list, OFTEN):
        pass
    rows = read(folder.path)
    assert rows[: len(first)] == first
    assert [row["what"] for row in rows].count("begin") == 1
    assert all(one["wall_s"] <= other["wall_s"] + 1e-3 for one, other in pairwise(rows))
    born = {row["born_s"] for row in processes(folder, os.getpid())}
    assert len(born) == 1  # the same clock
    (folder.path / CHECKPOINT_FILE).unlink()
    with Telemetry(folder, list, OFTEN):
        pass
    assert read(folder.path)[0] != first[0]


def test_a_disk_that_takes_no_more_ends_telemetry_only(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Telemetry(folder, list, OFTEN) as telemetry:
        (folder.path / TELEMETRY_FILE).unlink()
        (folder.path / TELEMETRY_FILE).mkdir()
        for _ in range(3):
            telemetry.started("device", 0, 1, 0.1)
    assert [record.message.startswith("no more telemetry") for record in caplog.records] == [True]


def test_a_run_without_telemetry_has_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    assert summarise([]) is None


def test_summary_by_hand() -> None:
    summary = summarise(telemetry_rows())
    assert summary is not None
    assert (summary.wall_s, summary.pss_bytes, summary.overhead_share) == (5.0, 500_000_000, 0.004)
    device, superlink = summary.kinds
    assert (device.kind, device.processes, device.restarts) == ("device", 2, 1)
    assert (device.cpu_s, device.read_bytes, device.written_bytes) == (7.0, 3_000_000, 4_000)
    assert (device.start_s, device.pss_bytes) == (0.5, 400_000_000)
    assert (superlink.kind, superlink.cpu_s, superlink.start_s) == ("superlink", 1.5, None)
    assert superlink.pss_bytes == 100_000_000  # of the moment when the sum was highest
    assert lines(summary) == [
        "Memory (PSS) at its peak: 500 MB (device 400 MB, superlink 100 MB).",
        "CPU: device 7.00 s, superlink 1.50 s.",
        "Devices asked storage for 3 MB, and wrote 4 kB.",
        "Ready after (median): device 0.50 s.",
        "Ended and started again: 1 x device.",
        "Telemetry took 0.4% of a core.",
    ]


def test_a_run_that_is_resumed_starts_again_without_restarts() -> None:
    first = [row for row in telemetry_rows() if row["what"] != "ended"]
    summary = summarise(first)
    assert summary is not None
    assert [one.restarts for one in summary.kinds] == [0, 0]


def test_summary_of_what_the_system_does_not_tell() -> None:
    row = process_row(1.0, 5, "device", read_bytes=None, written_bytes=None, children_s=None)
    summary = summarise([{"what": "begin", "wall_s": 0.0}, row])
    assert summary is not None
    assert lines(summary) == ["CPU: device 0.00 s."]


TRAINS = """
import sys
from contextlib import closing
from pathlib import Path
from clients.device import Host
from fedio.config import Experiment

home = Path(sys.argv[1])
experiment = Experiment.model_validate_json(sys.argv[2])
with closing(Host(experiment, home)) as host:
    arrays, device = host.trainer.arrays(), host.device(0)
    print("ready")
    input()
    read = [device.train(arrays, r, 4).meter.origin_bytes for r in (1, 2, 3)]
    print(*read)
    input()
"""


@pytest.mark.slow
def test_bytes_read_are_those_that_the_meter_counts(tmp_path: Path, folder: RunFolder) -> None:
    """An uninflated origin of photos, read past the page cache."""
    photos = tmp_path / "photos"
    write_photos(photos, 30_000_000, np.random.default_rng(0), lambda _: None)
    if not direct_io(next(photos.rglob("*.jpg"))):
        pytest.skip(f"the file system of {tmp_path} reads through the page cache only")
    data = {
        "dataset": {"name": "image-folder", "args": {"path": str(photos), "direct": True}},
        "folder": str(tmp_path / "data"), "clients": 1,
    }  # fmt: skip
    experiment = {
        "name": "bytes", "data": data, "rounds": {"cohort": 1}, "training": {"accelerator": "cpu"},
    }  # fmt: skip
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    with started(str(script), str(tmp_path / "home"), json.dumps(experiment)) as device:
        told = [Watched(device.pid, "device", 0)]
        with Telemetry(folder, lambda: told, OFTEN):
            before = until(lambda: processes(folder, device.pid))[0]
            say(device)
            metered = sum(map(int, hear(device).split()))
        after = processes(folder, device.pid)[-1]
    measured = after["read_bytes"] - before["read_bytes"]
    assert metered > 20_000_000
    assert measured == pytest.approx(metered, rel=0.05)
