"""GPU memory by process, as NVIDIA's tool tells."""

from __future__ import annotations

import shutil
import subprocess

PROGRAM = "nvidia-smi"
_QUERY = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
_LIMIT_S = 20.0
MIB = 1 << 20


def gpu_bytes() -> dict[int, int] | None:
    """Return bytes of GPU memory by process-id, None where there is no GPU to ask about."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    try:
        told = subprocess.run(  # noqa: S603 - a fixed command
            [program, *_QUERY], capture_output=True, text=True, timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(told.stdout)


def parse(text: str) -> dict[int, int]:
    """Return bytes by process from lines such as `4242, 512` (MiB).

    A process on several GPUs has a line for each. Where the driver does not say how much it is, as
    in `4242, [N/A]`, the process is left out.
    """
    sums: dict[int, int] = {}
    for line in text.splitlines():
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and used.isdecimal():
            sums[int(pid)] = sums.get(int(pid), 0) + int(used) * MIB
    return sums
