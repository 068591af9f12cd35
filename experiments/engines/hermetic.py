"""Where Flower's processes live: a temporary folder, and an environment that leads nowhere else.

Whatever they write (Flower's home, Ray's session, other temporary files) lands in the folder. They
send no telemetry, and no setting of the user's changes what Flower or Ray do.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from fedio.errors import InputError

HOST = "127.0.0.1"

# Ray puts a socket into BASE/ray/session_DATE_TIME_MICROSECONDS_PID/sockets/plasma_store, and the
# name of an AF_UNIX socket has at most 107 bytes.
LONGEST_BASE = 107 - len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")


def program(name: str) -> str:
    """Return the path of one of Flower's programs, from this Python's own environment.

    Raises:
        InputError: it is not installed there.
    """
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise InputError(f"no {name} beside {sys.executable}; install fedio in this environment")
    return str(path)


def short_folder() -> Path:
    """Make a temporary folder whose path is short enough for the sockets in it.

    Nor has it a quote: Flower's node config, which names one of them, could not hold that.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedio-"))
    if len(os.fsencode(folder)) <= LONGEST_BASE and "'" not in str(folder):
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="fedio-", dir="/tmp"))


def environment(folder: Path, poll_s: float) -> dict[str, str]:
    """Return the environment of Flower's processes: the user's, made hermetic.

    Args:
        folder: the temporary folder of the processes.
        poll_s: how often they look for work to start.
    """
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
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(poll_s),
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


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def listens(pid: int, port: int) -> bool:
    """Tell whether a process, and none that took the port before it, listens on it."""
    with suppress(psutil.Error):
        return any(
            found.status == psutil.CONN_LISTEN and found.laddr.port == port
            for found in psutil.Process(pid).net_connections("tcp")
        )
    return False
