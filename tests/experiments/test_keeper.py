"""The keeper: commands start, end, start again, and never outlive who asked for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from experiments.engines.kept import Ended, Kept, how, keeping
from fedio.errors import RunError

PATIENCE_S = 60.0
FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
STUBBORN = [sys.executable, "-c", f"{DEAF}; signal.pause()"]
# Starts a process in a session of its own and leaves it to itself.
DAEMON = ["sh", "-c", f"setsid {sys.executable} -c 'import signal; signal.pause()' & echo $!"]
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders go, a short path: in the end there is none."""
    path = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    path.rmdir()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def endings(kept: Kept, count: int) -> list[Ended]:
    found: list[Ended] = []
    wait_for(lambda: found.extend(kept.ended()) or len(found) >= count)
    return found


def words(kept: Kept, name: str) -> str:
    wait_for(lambda: kept.last_words(name))
    return kept.last_words(name)


def alive(pids: list[int]) -> list[int]:
    _, left = psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=PATIENCE_S
    )
    return [process.pid for process in left]


def test_commands_end_with_their_codes_and_others_go_on() -> None:
    with keeping() as kept:
        assert kept.folder.is_dir()
        steady = kept.start("steady", FOREVER)
        pids = {code: kept.start(f"code-{code}", ["sh", "-c", f"exit {code}"]) for code in (0, 7)}
        killed = kept.start("killed", FOREVER)
        os.kill(killed, signal.SIGKILL)
        assert set(endings(kept, 3)) == {
            Ended("code-0", pids[0], 0),
            Ended("code-7", pids[7], 7),
            Ended("killed", killed, -9),
        }
        assert psutil.Process(steady).is_running()
        assert not kept.ended()
    assert not alive([steady, kept.pid])


def test_a_name_can_be_started_again_and_has_the_words_of_the_last() -> None:
    with keeping() as kept:
        kept.start("one", ["sh", "-c", "echo first >&2"])
        endings(kept, 1)
        assert kept.last_words("one") == "first"
        kept.start("one", ["echo", "\x1b[31msecond\x1b[0m"])
        endings(kept, 1)
        assert kept.last_words("one") == "second"


def test_the_last_words_are_the_end_of_what_was_said() -> None:
    with keeping() as kept:
        kept.start("talker", ["sh", "-c", "seq 100000"])
        endings(kept, 1)
        assert kept.last_words("talker").endswith("99999\n100000")
        assert len(kept.last_words("talker")) <= 2000
        assert kept.printed("talker").startswith("1\n2\n")


def test_a_command_that_is_not_there_is_an_error_of_its_own() -> None:
    with keeping() as kept:
        with pytest.raises(RunError, match=r"cannot start /nowhere/flower: .*No such file"):
            kept.start("absent", ["/nowhere/flower"])
        kept.start("there", ["true"])
        assert [ended.name for ended in endings(kept, 1)] == ["there"]


def test_a_command_gives_way_by_so_much_and_others_by_nothing() -> None:
    with keeping() as kept:
        polite = kept.start("polite", FOREVER, nice=5)
        plain = kept.start("plain", FOREVER)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, polite) == own + 5
        assert os.getpriority(os.PRIO_PROCESS, plain) == own


def test_commands_have_no_input_and_the_environment_that_is_given() -> None:
    with keeping() as kept:
        kept.start("asks", ["sh", "-c", 'cat; echo "$FLWR_HOME"'])
        endings(kept, 1)
        assert kept.last_words("asks") == str(kept.folder / "home")


def test_what_left_its_family_ends_too() -> None:
    with keeping() as kept:
        kept.start("daemon", DAEMON)
        endings(kept, 1)
        pid = int(kept.last_words("daemon"))
        assert psutil.pid_exists(pid)
    assert not alive([pid])


def test_an_orphan_that_ends_is_no_zombie() -> None:
    with keeping() as kept:
        kept.start("daemon", DAEMON)
        endings(kept, 1)
        orphan = psutil.Process(int(kept.last_words("daemon")))
        orphan.kill()
        orphan.wait(PATIENCE_S)
        assert not psutil.pid_exists(orphan.pid)


@pytest.mark.slow
def test_who_does_not_want_to_end_or_stands_still_ends() -> None:
    with keeping() as kept:
        deaf, still = kept.start("deaf", STUBBORN), kept.start("still", FOREVER)
        assert words(kept, "deaf") == "deaf"
        os.kill(still, signal.SIGSTOP)
    assert not alive([deaf, still])


def test_an_owner_that_is_killed_leaves_nothing(temporary: Path) -> None:
    script = (
        "import signal, sys\n"
        "from experiments.engines.kept import keeping\n"
        "with keeping() as kept:\n"
        f"    pids = [kept.start(f'c-{{k}}', {FOREVER!r}) for k in range(3)]\n"
        "    print(kept.pid, *pids, flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen(  # noqa: S603 - a fixed command
        [sys.executable, "-c", script],
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 4
        owner.kill()
    assert not alive(pids)


def test_a_keeper_that_is_killed_is_missed_and_its_commands_end() -> None:
    with keeping() as kept:
        pid = kept.start("one", FOREVER)
        kept.start("parent", ["sh", "-c", f"{DAEMON[2]}; wait"])
        child = int(words(kept, "parent"))
        os.kill(kept.pid, signal.SIGKILL)
        with pytest.raises(RunError, match="that keeps Flower's processes ended"):
            endings(kept, 3)
        with pytest.raises(RunError, match="ended by SIGKILL"):
            kept.start("late", FOREVER)
    assert not alive([pid, child])


def test_a_keeper_that_is_told_to_end_ends_all() -> None:
    with keeping() as kept:
        pid = kept.start("one", FOREVER)
        os.kill(kept.pid, signal.SIGTERM)
        assert not alive([pid])
        with pytest.raises(RunError, match="exit code 1"):
            endings(kept, 2)


def test_what_is_inherited_stays_open_in_the_keeper_alone() -> None:
    reading, writing = os.pipe()
    with keeping([writing]) as kept:
        pid = kept.start("one", FOREVER)
        os.close(writing)
        held = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
        assert held
        assert not any(file.startswith("pipe:") for file in held)
        os.set_blocking(reading, False)
        with pytest.raises(BlockingIOError):  # somebody could still write
            os.read(reading, 1)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_how_a_process_ended_is_said_in_words() -> None:
    assert how(3) == "exit code 3"
    assert how(-15) == "ended by SIGTERM"
    assert how(-64 - 1) == "ended by signal 65"
