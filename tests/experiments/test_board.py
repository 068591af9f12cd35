"""`fedio device`: one client alone, which asks for TLS, takes part, and ends as a whole."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

import psutil
import pytest

from experiments.cli import main
from experiments.engines import hermetic
from experiments.engines.emulate import CLIENT_APP
from experiments.engines.flower import COMPLETED, write_app
from experiments.engines.kept import keeping
from experiments.engines.superlink import SuperLink
from fedio.config import Experiment
from fedio.home import RUNS_FOLDER, run_name
from fedio.loading import load
from fedio.output import reserved
from fedio.runs import CONFIG_FILE, RunFolder, read_run

PATIENCE_S = 120.0
NOBODY = "127.0.0.1:9"  # the discard port


@pytest.fixture
def files(tmp_path: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an authority's certificate and keys of nodes."""
    monkeypatch.chdir(tmp_path)
    for name, mode in (("ca.crt", 0o644), ("key", 0o600), ("open", 0o640)):
        holds = "CERTIFICATE" if name == "ca.crt" else "PRIVATE KEY"
        Path(name).write_text(f"-----BEGIN {holds}-----\n")
        Path(name).chmod(mode)
    return tiny_file


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "the following arguments are required: --partition, --superlink"),
        ("--partition 0", "required: --superlink"),
        ("--partition 0 --superlink host", "HOST:PORT, as in fl.example.org:8000; got 'host'"),
        ("--partition 0 --superlink host:0", "HOST:PORT"),
        ("--partition 0 --superlink host:70000", "HOST:PORT"),
        ("--partition 0 --superlink https://host:8000", "HOST:PORT"),
        ("--partition 0 --superlink :8000", "HOST:PORT"),
        ("--partition 0 --superlink h:8000", "needs --root-certificates FILE"),
        ("--partition 0 --superlink h:8000", "without TLS, say --insecure"),
        ("--partition 0 --superlink h:8000 --key key", "needs --root-certificates FILE"),
        ("--partition 0 --superlink h:8000 --key key --insecure", "--key is for TLS"),
        ("--partition 0 --superlink h:8000 --root-certificates ca.crt --insecure", "leave one out"),
        ("--partition 0 --superlink h:8000 --root-certificates no.crt", "there is no file no.crt"),
        (
            "--partition 0 --superlink h:8000 --root-certificates ca.crt --key none",
            "there is no file none",
        ),
        (
            "--partition 0 --superlink h:8000 --root-certificates ca.crt --key open",
            "others can read the private key",
        ),
        ("--partition 6 --superlink h:8000 --insecure", "has clients 0..5"),
        ("--partition -1 --superlink h:8000 --insecure", "--partition is -1"),
        ("--partition x --superlink h:8000 --insecure", "invalid int value: 'x'"),
        ("--partition 0 --superlink h:8000 --insecure --pace fast", "invalid choice: 'fast'"),
        ("--partition 0 --superlink h:8000 --insecure --set cache.shar=1", "unknown key"),
        ("--partition 0 --superlink h:8000 --insecure --set cache.store=memory", "store=lmdb"),
        ("--partition 0 --superlink h:8000 --insecure --home key", "key is a file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    files: Path, arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in Path.cwd().iterdir()}
    assert main(["device", str(files), *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path.cwd().iterdir()} == before


def test_a_home_of_others_is_refused(
    files: Path, tiny: Callable[..., Experiment], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["device", str(files), "--partition", "0", "--superlink", NOBODY, "--insecure"]
    with reserved(Path("taken")):
        assert main([*given, "--home", "taken"]) == 2
    RunFolder.create(Path("other"), tiny("seed=9"))
    assert main([*given, "--home", "other"]) == 2
    taken, other = capsys.readouterr().err.splitlines()
    assert "another fedio is writing to taken" in taken
    assert "other holds another experiment (it differs in" in other
    assert "seed = 9" in Path("other", CONFIG_FILE).read_text()


class Board:
    """`fedio device` in a process of its own."""

    def __init__(self, file: Path, partition: int, superlink: str) -> None:
        given = ["device", str(file), "--partition", str(partition), "--superlink", superlink]
        # What runs in the background of a shell ignores SIGINT, and so would what it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process = subprocess.Popen(  # noqa: S603
            [hermetic.program("fedio"), *given, "--insecure"], stderr=subprocess.PIPE, text=True
        )
        signal.signal(signal.SIGINT, before)
        self._errors = cast("IO[str]", self._process.stderr)
        self._family: list[psutil.Process] = []

    def until(self, wanted: str) -> None:
        """Read until it has said that, in a line of its own."""
        while (line := self._errors.readline()).strip() != wanted:
            assert line
        self._family = psutil.Process(self._process.pid).children(recursive=True)

    def one_of(self, *words: str) -> psutil.Process:
        """Return the process, the youngest of its family, whose command line has these words."""
        return [one for one in self._family if all(word in one.cmdline() for word in words)][-1]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends(self, code: int) -> str:
        """Check that it ends so, and with it all that it has started; return its last line."""
        said = self._errors.read().splitlines()
        assert self._process.wait(PATIENCE_S) == code, said
        assert not psutil.wait_procs(self._family, PATIENCE_S)[1]
        return said[-1] if said else ""

    def close(self) -> None:
        self._errors.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def board(files: Path) -> Iterator[Callable[[int, str], Board]]:
    """Start boards, which end with the test."""
    with ExitStack() as stack:

        def start(partition: int, superlink: str) -> Board:
            made = Board(files, partition, superlink)
            stack.callback(made.close)
            return made

        yield start


@pytest.mark.slow
def test_boards_take_part_in_a_run_and_end_when_told(
    files: Path, board: Callable[[int, str], Board]
) -> None:
    files.write_text(
        files.read_text().replace("clients = 6", "clients = 2").replace("rounds = 5", "rounds = 2")
        + '[engine]\nclock = "wall"\n[emulation]\npace = "none"\n'
    )
    with keeping() as kept:
        link = SuperLink(kept)
        link.open(simulation=False)
        one, other = board(0, link.address), board(1, link.address)
        one.until("connected as client 0")
        other.until("connected as client 1")
        status, details, log = link.wait(link.start(write_app(Path("app"), files, CLIENT_APP)))
        assert status == COMPLETED, details + log
        one.send(signal.SIGTERM)
        assert one.ends(0) == "told to end"
        other.send(signal.SIGINT)
        assert other.ends(130) == "interrupted"
    run = read_run(Path(RUNS_FOLDER) / run_name(load(files)))
    assert run.clock == "wall"
    assert {row["outcome"] for row in run.clients} == {"counted"}


@pytest.mark.slow
def test_a_board_ends_when_its_device_or_its_node_does_and_leaves_nothing_when_it_is_killed(
    board: Callable[[int, str], Board],
) -> None:
    one, other, third = (board(partition, NOBODY) for partition in range(3))
    for partition, started in enumerate((one, other, third)):
        started.until(f"device {partition} is ready; its SuperNode connects")
    one.one_of("clients.zygote").kill()
    assert one.ends(1) == "error: device 0 ended (ended by SIGKILL)"
    other.one_of(hermetic.program("flower-supernode")).kill()
    assert other.ends(1) == "error: Flower's SuperNode ended: ended by SIGKILL"
    third.one_of("clients.zygote").suspend()
    third.send(signal.SIGKILL)
    third.ends(-signal.SIGKILL)
