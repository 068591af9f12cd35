"""A hermetic SuperLink: Flower's server for simulation, with a home of its own, for one block.

Its processes get a temporary folder for everything they write (Flower's home, Ray's session, other
temporary files), a free port on the loopback interface, no telemetry and no environment of the
user's that would change what Flower or Ray do. A keeper process ends them all, and removes the
folder, when the block ends, or when this process does, however that happens.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from experiments.engines import keeper
from fedio.errors import InputError, RunError

CONNECTION = "fedio"
HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 30.0
POLL_S = 0.1
STATUS_POLL_S = 1.0
LAST_WORDS_BYTES = 2000

# Ray puts a socket into BASE/ray/session_DATE_TIME_MICROSECONDS_PID/sockets/plasma_store, and the
# name of an AF_UNIX socket has at most 107 bytes.
LONGEST_BASE = 107 - len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class SuperLink:
    """A running SuperLink: Flower's command line, pointed at it."""

    def __init__(self, folder: Path, environment: dict[str, str], log: BinaryIO) -> None:
        """Take a SuperLink that `superlink()` starts.

        Args:
            folder: the temporary folder of its processes; it goes with them.
            environment: that of its processes.
            log: where they print.
        """
        self.folder = folder
        self._environment = environment
        self._log = log

    def start(self, app: Path, federation: str, run_config: str = "") -> str:
        """Start a run of a Flower app and return its id.

        Args:
            app: the app's folder.
            federation: Flower's federation config, as in "num-supernodes=10".
            run_config: overrides of the app's own config, in TOML.

        Raises:
            RunError: Flower refuses it.
        """
        command = ["run", str(app), CONNECTION, "--federation-config", federation]
        if run_config:
            command += ["--run-config", run_config]
        return str(self._ask(*command)["run-id"])

    def wait(self, run_id: str) -> tuple[str, str, str]:
        """Wait until a run has ended; return its status, Flower's details of it, and its log.

        Raises:
            RunError: the SuperLink ended before the run.
        """
        while True:
            # The stream ends with the run. Asking for the status again and again instead would
            # start a process each time, which takes a second of a core.
            log = self._flwr("log", run_id, CONNECTION, "--stream").stdout
            (found,) = self._ask("list", CONNECTION, "--run-id", run_id)["runs"]
            if str(found["status"]).startswith("finished"):
                return str(found["status"]), str(found["status-details"]), _COLOUR.sub("", log)
            time.sleep(STATUS_POLL_S)

    def last_words(self) -> str:
        """Return the end of what the SuperLink printed; it may still be at it."""
        size = os.fstat(self._log.fileno()).st_size
        said = os.pread(self._log.fileno(), LAST_WORDS_BYTES, max(0, size - LAST_WORDS_BYTES))
        return _COLOUR.sub("", said.decode(errors="replace")).strip()

    def _ask(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command and return the JSON it prints."""
        done = self._flwr(*arguments, "--format", "json")
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"success": False, "error-message": (done.stdout + done.stderr).strip()}
        if done.returncode or not answer.get("success"):
            said = answer.get("error-message", "no reason given")
            raise RunError(f"flwr {arguments[0]} failed: {said}\n{self.last_words()}")
        return dict(answer)

    def _flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - a fixed command
            [_program("flwr"), *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def superlink(inherited: Sequence[int] = ()) -> Iterator[SuperLink]:
    """Start a SuperLink for the block; when it ends, everything that was started is gone.

    Args:
        inherited: descriptors that are open until everything is gone, even if this process ends
            before that.

    Raises:
        InputError: Flower's programs are not installed beside this Python.
        RunError: it does not start.
    """
    program, port = _program("flower-superlink"), _free_port()
    folder = _short_folder()
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.{CONNECTION}]\naddress = "{HOST}:{port}"\ninsecure = true\n'
    )
    command = [program, "--insecure", "--simulation", "--host", HOST, "--port", str(port)]
    environment = _environment(folder)
    with tempfile.TemporaryFile() as log:
        kept = subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-P", keeper.__file__, str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            pass_fds=inherited,
        )
        try:
            link = SuperLink(folder, environment, log)
            _wait_until_healthy(kept, port, link)
            yield link
        finally:
            _end(kept)


def _wait_until_healthy(kept: subprocess.Popen[bytes], port: int, link: SuperLink) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(port):
        if kept.poll() is not None:
            raise RunError(f"Flower's SuperLink did not start\n{link.last_words()}")
        if time.monotonic() > deadline:
            raise RunError(f"Flower's SuperLink does not answer after {START_TIMEOUT_S:g} s")
        time.sleep(POLL_S)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=START_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _end(kept: subprocess.Popen[bytes]) -> None:
    """Close the keeper's input, upon which it ends all, and wait for it."""
    if kept.stdin is not None:
        kept.stdin.close()
    try:
        kept.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"Flower's processes do not end; process {kept.pid} is at it") from error


def _program(name: str) -> str:
    """Return the path of one of Flower's programs, from this Python's own environment."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise InputError(f"no {name} beside {sys.executable}; install fedio in this environment")
    return str(path)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: the user's, made hermetic."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "RAY_"))}
    # Last of all the current directory: a user's own modules may be there.
    modules = [entry for entry in sys.path if entry] + [str(Path.cwd())]
    programs = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    unproxied = ",".join(filter(None, [HOST, kept.get("no_proxy"), kept.get("NO_PROXY")]))
    return kept | {
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would kill workers for good when any program fills the machine's memory.
        "RAY_memory_monitor_refresh_ms": "0",
        # Clients see the accelerators that this process sees, though they reserve none of Ray's.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "TMPDIR": str(folder),
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(modules)),
        "NO_PROXY": unproxied,
        "no_proxy": unproxied,
    }


def _short_folder() -> Path:
    """Make a temporary folder whose path is short enough for the sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="fedio-"))
    if len(os.fsencode(folder)) <= LONGEST_BASE:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="fedio-", dir="/tmp"))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])
