"""What the whole machine has used since it started, and how much memory it uses now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

from fedio.runs import Row

MOUNTS_FILE = Path("/proc/self/mountstats")
_DATA = frozenset({"READ", "WRITE", "COMMIT"})  # the operations of NFS that move data


def host() -> Row:
    """Return the host's counters; None where the system does not tell.

    Seconds, bytes and operations are since the machine started, of everybody on it.
    """
    cpu, disk = psutil.cpu_times(), _disk()
    idle_s = cpu.idle + getattr(cpu, "iowait", 0.0)
    # On Linux the time of guests is in that of users too.
    guests_s = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)
    data, metadata = operations()
    return {
        "cpu_s": sum(cpu) - idle_s - guests_s,
        "cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().used,
        **_network(),
        "disk_read_bytes": getattr(disk, "read_bytes", None),
        "disk_written_bytes": getattr(disk, "write_bytes", None),
        "disk_reads": getattr(disk, "read_count", None),
        "disk_writes": getattr(disk, "write_count", None),
        "data_operations": data,
        "metadata_operations": metadata,
    }


def _disk() -> object:
    """Return the counters of all disks; some systems have none, or do not say."""
    try:
        return psutil.disk_io_counters()
    except (OSError, RuntimeError, NotImplementedError):
        return None


def _network() -> dict[str, int]:
    """Return bytes sent and received, over the loopback interface and over all others."""
    sums = dict.fromkeys(
        ("loopback_sent_bytes", "loopback_received_bytes", "sent_bytes", "received_bytes"), 0
    )
    for name, counts in psutil.net_io_counters(pernic=True).items():
        prefix = "loopback_" if name.startswith("lo") else ""
        sums[f"{prefix}sent_bytes"] += counts.bytes_sent
        sums[f"{prefix}received_bytes"] += counts.bytes_recv
    return sums


def operations(file: Path = MOUNTS_FILE) -> tuple[int | None, int | None]:
    """Return data and metadata operations of all network file systems that are mounted.

    Only those are counted by kind (NFS, per-op statistics of mountstats); without one it is None.
    """
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return None, None
    counts = list(_by_name(text.splitlines()))
    if not counts:
        return None, None
    data = sum(count for name, count in counts if name in _DATA)
    return data, sum(count for _, count in counts) - data


def _by_name(lines: Iterable[str]) -> Iterable[tuple[str, int]]:
    """Give each operation of each mount with how often it was asked for."""
    counting = False
    for line in lines:
        if line.startswith("device "):
            counting = False
        elif line.strip() == "per-op statistics":
            counting = True
        elif counting and ":" in line:
            name, _, numbers = line.partition(":")
            yield name.strip(), int(numbers.split()[0])
