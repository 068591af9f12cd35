"""The flower engine: the inline engine's results on Flower's own runtime, and nothing left."""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from experiments.engines import flower, hermetic, inline
from experiments.engines.superlink import superlink
from fedio.config import Experiment
from fedio.errors import InputError, RunError
from fedio.home import home_of, run_name
from fedio.loading import find, load
from fedio.runs import CACHES_FOLDER, Run, RunFolder, read_run

Tiny = Callable[..., Experiment]

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written
PATIENCE_S = 180.0

OUTSIDE = """
from clients.samplers import Uniform


class Backwards(Uniform):
    '''The uniform sampler's order from its end.'''

    def order(self, *given):
        return super().order(*given)[::-1].copy()


class Stuck(Uniform):
    '''Says that it was asked, and never answers.'''

    def __init__(self, *given, asked, never):
        super().__init__(*given)
        self.asked, self.never = asked, never

    def order(self, *given):
        with open(self.asked, "w") as pipe:
            pipe.write("asked")
        with open(self.never) as pipe:
            pipe.read()
"""

SECOND_TIME = """#!{python}
import pathlib, signal, socket, sys

asked, port = pathlib.Path("{asked}"), sys.argv[-1]
before = asked.read_text() if asked.exists() else ""
asked.write_text(f"{{before}} {{port}}")
if not before:
    sys.exit("[errno 98] error while attempting to bind: address already in use")
with socket.create_server(("127.0.0.1", int(port))):
    signal.pause()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; in the end none is there, nor a process that used it."""
    assert tmp_path.is_dir()  # made before: it is not to land in there
    path = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))
    segments = set(SHARED_MEMORY.glob("*plasma*"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    assert not list(path.iterdir())
    assert not users_of(path)
    assert set(SHARED_MEMORY.glob("*plasma*")) <= segments
    shutil.rmtree(path)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's working directory with a module of plug-ins."""
    path = tmp_path / "user"
    path.mkdir()
    (path / "outside.py").write_text(OUTSIDE)
    monkeypatch.chdir(path)
    return path


def users_of(folder: Path) -> list[psutil.Process]:
    """Return the processes whose Flower home is below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("FLWR_HOME", "")
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if home.startswith(f"{folder}/"):
            found.append(process)
    return found


def lines(run: Run) -> tuple[str, str]:
    return (run.path / "rounds.jsonl").read_text(), (run.path / "clients.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("temporary")
def test_fedcase_on_fashion_mnist_is_the_same_on_both_engines(tmp_path: Path) -> None:
    overrides = ["data.clients=20", "rounds.cohort=5", "rounds.rounds=10"]
    experiment = load(find("quickstart"), overrides).for_arm("fedcase-code")
    folders = [RunFolder.create(tmp_path / name, experiment) for name in ("flower", "inline")]
    flower.run(experiment, folders[0])
    inline.run(experiment, folders[1])
    on_flower, on_inline = (read_run(folder.path) for folder in folders)
    assert lines(on_flower) == lines(on_inline)
    assert on_flower.summary["model_hash"] == on_inline.summary["model_hash"]
    requests = sum(row["requests"] for row in on_flower.clients)
    assert on_flower.summary["demand_hits"] / requests > 0.2
    assert on_flower.summary["evictions"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("temporary")
def test_it_does_what_inline_does_also_with_a_plugin_from_outside(
    tiny: Tiny,
    tmp_path: Path,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = tiny("arms.one.sampler='outside:Backwards'", "engine.workers=2")
    folders = [RunFolder.create(tmp_path / name, experiment) for name in ("flower", "inline")]
    flower.run(experiment, folders[0])
    monkeypatch.syspath_prepend(outside)
    inline.run(tiny("arms.one.sampler='outside:Backwards'"), folders[1])
    there, here = (read_run(folder.path) for folder in folders)
    assert there.summary["model_hash"] == here.summary["model_hash"]
    assert lines(there) == lines(here)
    assert there.summary["demand_hits"] > 0
    assert there.summary["evictions"] > 0
    assert not (there.path / CACHES_FOLDER).exists()
    inline.run(tiny(), RunFolder.create(tmp_path / "own", tiny()))
    assert read_run(tmp_path / "own").summary["model_hash"] != here.summary["model_hash"]


@pytest.mark.slow
@pytest.mark.usefixtures("temporary")
def test_the_first_traceback_with_round_and_partition_is_in_the_error(
    tiny: Tiny, tmp_path: Path
) -> None:
    experiment = tiny(
        "arms.one.sampler='tests.experiments.failing:Raises'",
        "rounds.empty_rounds=1",
        "rounds.cohort=6",
        "rounds.over_commitment=1.0",
        "engine.workers=1",
    )
    with pytest.raises(RunError) as caught:
        flower.run(experiment, RunFolder.create(tmp_path / "run", experiment))
    said = str(caught.value)
    assert "round 1, partition 0: ValueError: boom" in said.splitlines()[0]
    assert "Traceback" in said
    assert "failing.py" in said
    assert not (tmp_path / "run" / CACHES_FOLDER).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("temporary")
def test_what_the_user_has_to_put_right_is_an_input_error(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny("arms.one.selector='nobody'", "engine.workers=1", "cache.keep=true")
    with pytest.raises(InputError, match="unknown selector 'nobody'"):
        flower.run(experiment, RunFolder.create(tmp_path / "run", experiment))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_ends_all_that_it_started(
    tiny: Tiny, tmp_path: Path, outside: Path, temporary: Path, number: signal.Signals
) -> None:
    asked, never = outside / "asked", outside / "never"
    os.mkfifo(asked)
    os.mkfifo(never)
    file = outside / "stuck.toml"
    sampler = f"{{name='outside:Stuck', args={{asked='{asked}', never='{never}'}}}}"
    file.write_text(tiny(f"arms.one.sampler={sampler}", "engine.workers=1").to_toml())
    words = outside / "words"
    command = "import sys, experiments.cli; sys.exit(experiments.cli.main())"
    options = ["run", str(file), "--engine", "flower", "--out", str(tmp_path / "run")]
    paths = os.pathsep.join([str(CHECKOUT), str(outside)])
    told = os.open(asked, os.O_RDONLY | os.O_NONBLOCK)
    with (
        words.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-c", command, *options],
            env=os.environ | {"PYTHONPATH": paths, "TMPDIR": str(temporary)},
            stderr=stderr,
            # Who runs the tests in the background may ignore it, and children inherit that.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        ) as engine,
    ):
        ended = os.pidfd_open(engine.pid)
        try:
            ready, _, _ = select.select([told, ended], [], [], PATIENCE_S)
            assert ready == [told], words.read_text()
            family = psutil.Process(engine.pid).children(recursive=True)
            assert len(family) > 3
            engine.send_signal(number)
            engine.wait(PATIENCE_S)
            _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
        finally:
            engine.kill()
            os.close(told)
            os.close(ended)
    assert not alive
    assert engine.returncode == (130 if number == signal.SIGINT else -number)
    assert (tmp_path / "run" / CACHES_FOLDER).exists() == (number == signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("temporary")
def test_flwr_run_by_hand_works_from_a_checkout(tiny: Tiny, tiny_file: Path, outside: Path) -> None:
    federation = "num-supernodes=6 client-resources-num-cpus=1 init-args-num-cpus=1"
    overrides = r"rounds.rounds=2\nseed=3"
    with superlink() as link:
        run_id = link.start(
            CHECKOUT, federation, f'experiment="{tiny_file}" overrides="{overrides}"'
        )
        status, details, log = link.wait(run_id)
    assert status == "finished:completed", details + log
    experiment = tiny("rounds.rounds=2", "seed=3")
    done = read_run(outside / "runs" / run_name(experiment))
    assert done.experiment == experiment
    inline.run(experiment, RunFolder.create(outside / "inline", experiment))
    assert lines(done) == lines(read_run(outside / "inline"))
    assert not (done.path / CACHES_FOLDER).exists()
    assert not (tiny_file.parent / CACHES_FOLDER).exists()


@pytest.mark.usefixtures("temporary")
def test_a_superlink_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "flower-superlink"
    program.write_text("#!/bin/sh\nsleep 600 &\necho no licence to start\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(hermetic, "program", lambda _: str(program))
    with pytest.raises(RunError, match="no licence to start"), superlink():
        pytest.fail("it did start")


def test_flowers_programs_come_from_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(InputError, match="no flwr beside"), superlink():
        pytest.fail("it did start")


def test_caches_in_memory_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny("cache.store='memory'")
    with pytest.raises(InputError, match=r"cache\.store=lmdb"):
        flower.run(experiment, RunFolder.create(tmp_path / "run", experiment))


def test_without_ray_the_extra_is_named(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"fedio\[simulation\]"):
        flower.check(tiny())


def test_there_are_never_more_actors_than_clients(tiny: Tiny) -> None:
    assert "init-args-num-cpus=3" in flower.federation_config(tiny("engine.workers=3"))
    assert "init-args-num-cpus=6" in flower.federation_config(tiny("engine.workers=99"))


def test_an_error_that_is_not_of_the_app_shows_the_end_of_the_log() -> None:
    log = "".join(f"line {number}\n" for number in range(100))
    error = flower.failure("finished:failed", "Task failed with unknown error.", log)
    assert isinstance(error, RunError)
    assert "unknown error" in str(error).splitlines()[0]
    assert str(error).endswith("line 99")
    assert "line 1\n" not in str(error)


@pytest.mark.parametrize("what", ["Simulation", "ServerApp"])
@pytest.mark.parametrize("kind", [InputError, RunError])
def test_an_error_of_ours_comes_back_as_what_it_was(what: str, kind: type[Exception]) -> None:
    log = f"Traceback\nfedio.errors.{kind.__name__}: first\nsecond\n"
    details = f"{what} failed with exception: first\nsecond"
    error = flower.failure("finished:failed", details, log)
    assert type(error) is kind
    assert str(error) == "first\nsecond"


def test_a_server_that_nobody_hears_of_is_said_in_one_line() -> None:
    error = flower.failure("finished:failed", "No heartbeat received from the task", "line\nline\n")
    assert isinstance(error, RunError)
    assert "\n" not in str(error)
    assert "ServerApp ended before the run did" in str(error)


def test_a_process_listens_on_a_port_only_if_it_does_itself() -> None:
    with socket.create_server((hermetic.HOST, 0)) as server:
        port = server.getsockname()[1]
        assert hermetic.listens(os.getpid(), port)
        assert not hermetic.listens(os.getppid(), port)
        with socket.create_connection((hermetic.HOST, port)) as client:
            assert not hermetic.listens(os.getpid(), client.getsockname()[1])
    assert not hermetic.listens(os.getpid(), port)


def test_a_superlink_whose_port_is_taken_tries_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "flower-superlink"
    program.write_text(SECOND_TIME.format(python=sys.executable, asked=tmp_path / "asked"))
    program.chmod(0o700)
    monkeypatch.setattr(hermetic, "program", lambda _: str(program))
    with superlink() as link:
        first, second = (tmp_path / "asked").read_text().split()
        assert first != second
        assert link.address == f"127.0.0.1:{second}"


def test_a_superlink_that_never_finds_a_port_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "flower-superlink"
    program.write_text("#!/bin/sh\necho 'bind: [errno 98] address already in use'\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(hermetic, "program", lambda _: str(program))
    with pytest.raises(RunError, match="found its port taken 5 times"), superlink():
        pytest.fail("it did start")


def test_a_run_lives_beside_its_config_and_another_file_names_no_place(
    tiny: Tiny, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny()
    folder = RunFolder.create(tmp_path / "run", experiment)
    assert home_of(str(folder.path / "config.toml"), experiment) == folder.path
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "runs" / run_name(experiment)
    assert home_of(str(tiny_file), experiment) == elsewhere
    assert home_of(str(tiny_file), load(tiny_file)) == elsewhere
    assert home_of("smoke", experiment) == elsewhere
