"""Long and repeated runs cost no more than short ones, and what is killed can be taken up again."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from clients.prepare import prepare
from experiments.engines import inline
from fedio.config import Experiment
from fedio.runs import FILES, RunFolder

Tiny = Callable[..., Experiment]

FEDIO = Path(sys.executable).with_name("fedio")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written
PATIENCE_S = 120.0

# The allocator keeps a few MiB more or less. One model kept a round would be 1.2 MB, 75 times.
TOLERANCE_BYTES = 12 << 20

IN_A_ROW = """
import json, sys
from pathlib import Path
import psutil
from experiments.engines import ENGINES
from fedio.loading import load
from fedio.runs import RunFolder

engine, file, times = sys.argv[1:]
me = psutil.Process()
for number in range(int(times)):
    experiment = load(Path(file)).for_arm()
    ENGINES[engine](experiment, RunFolder.create(Path(f"run-{number}"), experiment))
    print(json.dumps([len(me.children(recursive=True)), me.num_fds()]))
"""

STUCK = """
from pathlib import Path
import numpy as np
from clients.samplers import Uniform


class Stuck(Uniform):
    '''While there is a pipe it says in every second participation that it is stuck, and is.'''

    def __init__(self, *given, told, never):
        super().__init__(*given)
        self.told, self.never, self.again = told, never, False

    def order(self, *given):
        if self.again and Path(self.told).exists():
            with open(self.told, "w") as pipe:
                pipe.write("!")
            with open(self.never) as pipe:
                pipe.read()
        return super().order(*given)

    def columns(self):
        return {"again": np.array(True)}

    def restore(self, columns):
        self.again = bool(columns)
"""


def own_bytes(pid: int) -> int:
    """Return a process's share (PSS) of memory that no file backs, swapped or not.

    Pages of files, such as libraries, come and go with what else runs on the machine.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kinds = re.findall(r"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB$", rollup, re.MULTILINE)
    assert len(kinds) == 3
    return 1024 * sum(map(int, kinds))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_descriptors_are_flat_after_round_5(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    me = psutil.Process()
    used_bytes: list[int] = []
    descriptors: list[int] = []
    append_round = RunFolder.append_round

    def watched(folder: RunFolder, row: dict[str, Any]) -> None:
        append_round(folder, row)
        family = [me, *me.children(recursive=True)]
        used_bytes.append(sum(own_bytes(process.pid) for process in family))
        descriptors.append(sum(process.num_fds() for process in family))

    monkeypatch.setattr(RunFolder, "append_round", watched)
    experiment = tiny("rounds.rounds=100", f"engine.workers={workers}")
    inline.run(experiment, RunFolder.create(tmp_path / "run", experiment))
    assert len(used_bytes) == 101
    early, late = median(used_bytes[6:26]), median(used_bytes[81:])
    assert late - early < TOLERANCE_BYTES
    assert max(descriptors[6:]) <= descriptors[5]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def users_of(folder: Path) -> list[psutil.Process]:
    """Return the processes whose temporary folder is this or below it."""
    found = []
    for process in psutil.process_iter():
        try:
            used = process.environ().get("TMPDIR", "")
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if used == str(folder) or used.startswith(f"{folder}/"):
            found.append(process)
    return found


def unused(segments: set[Path]) -> set[Path]:
    """Return those that no process maps: others may run at the same time."""
    mapped: set[str] = set()
    for process in psutil.process_iter() if segments else ():
        try:
            mapped |= {region.path for region in process.memory_maps()}
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return {path for path in segments if path.exists() and str(path) not in mapped}


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "times"), [("inline", 10), ("flower", 3)])
def test_simulations_in_a_row_leave_nothing(
    tiny: Tiny, tmp_path: Path, temporary: Path, engine: str, times: int
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    file = tmp_path / "short.toml"
    workers = 2 if engine == "inline" else 1
    experiment = tiny("rounds.rounds=2", f"engine.workers={workers}")
    file.write_text(experiment.to_toml())
    prepare(experiment)  # once for all runs, with libraries that keep caches of their own
    before = set(SHARED_MEMORY.iterdir())
    done = subprocess.run(  # noqa: S603 - a fixed command
        [sys.executable, "-c", IN_A_ROW, engine, str(file), str(times)],
        cwd=work,
        env=os.environ | {"HOME": str(home), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(counts) == times
    assert all(count == counts[0] for count in counts)  # processes and descriptors

    _, alive = psutil.wait_procs(users_of(temporary), timeout=PATIENCE_S)
    assert not alive
    assert not unused(set(SHARED_MEMORY.iterdir()) - before)
    assert not list(temporary.iterdir())
    assert not list(home.iterdir())
    assert {path.name for path in work.iterdir()} == {f"run-{number}" for number in range(times)}
    for run in work.iterdir():
        assert {path.name for path in run.iterdir()} == set(FILES)


def compare(folder: Path, out: str) -> tuple[dict[str, Any], str]:
    """Compare in a folder of one's own; returns the figures, and what was said of progress."""
    done = subprocess.run(  # noqa: S603 - our own program
        [FEDIO, *words(out)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{out}.json").read_text()), done.stderr


def words(out: str) -> list[str]:
    options = ["--seeds", "2", "--jobs", "2", "--out", out, "--json", f"{out}.json"]
    return ["compare", "stuck.toml", *options]


@pytest.mark.slow
def test_a_comparison_that_is_killed_goes_on_where_it_was(tiny: Tiny, tmp_path: Path) -> None:
    told, never = tmp_path / "told", tmp_path / "never"
    os.mkfifo(told)
    os.mkfifo(never)
    (tmp_path / "stuck.py").write_text(STUCK)
    sampler = f"{{name='stuck:Stuck', args={{told='{told}', never='{never}'}}}}"
    (tmp_path / "stuck.toml").write_text(tiny(f"arms.two.sampler={sampler}").to_toml())

    # For each seed arm one starts first, and a job of arm two holds its process: both processes are
    # held only when both runs of arm one are complete.
    pipe = os.open(told, os.O_RDWR)
    with subprocess.Popen(  # noqa: S603 - our own program
        [FEDIO, *words("killed")], cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as command:
        ended = os.pidfd_open(command.pid)
        try:
            for _ in range(2):
                ready, _, _ = select.select([pipe, ended], [], [], PATIENCE_S)
                assert ready == [pipe]
                assert os.read(pipe, 1) == b"!"
            family = psutil.Process(command.pid).children(recursive=True)
            assert len(family) >= 3  # two jobs, and what starts them
        finally:
            command.kill()
            os.close(pipe)
            os.close(ended)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not alive
    for seed in (0, 1):
        assert (tmp_path / f"killed/one/seed-{seed}/summary.json").is_file()
        rounds = tmp_path / f"killed/two/seed-{seed}/rounds.jsonl"
        assert rounds.read_text().count("\n") >= 2  # it was in the middle
        assert not rounds.with_name("summary.json").exists()

    told.unlink()
    resumed, said = compare(tmp_path, "killed")
    assert "2 of 4 runs are there already" in said
    whole, said = compare(tmp_path, "whole")
    assert not re.search("there already", said)
    assert resumed["arms"] == whole["arms"]
    for folder in (tmp_path / "killed", tmp_path / "whole"):
        assert not list(folder.rglob("caches"))
