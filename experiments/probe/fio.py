"""fio's figures beside ours, where it is installed (https://fio.readthedocs.io)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from experiments.probe.rows import Row
from fedio.errors import RunError

RUNTIME_S, TIMEOUT_S = 2, 60
_BLOCK_BYTES = 4096
_PERCENTILES = ("10.000000", "50.000000", "90.000000")


def installed() -> str | None:
    """Return where fio is."""
    return shutil.which("fio")


def measure_fio(fio: str, folder: Path, files: Sequence[str], sizes: Sequence[int]) -> list[Row]:
    """Return how long random reads of blocks take within files, direct and one at a time.

    Args:
        fio: the program.
        folder: where the files are; nothing is written there.
        files: their names, all of one length.
        sizes: in bytes, each rounded up to whole blocks of 4 kB, by which disks are addressed;
            4 kB comes first, and what is larger than a file is left out.

    Raises:
        RunError: fio failed, or said what is not understood.
    """
    length = (folder / files[0]).stat().st_size
    blocks = {-(-size // _BLOCK_BYTES) * _BLOCK_BYTES for size in (_BLOCK_BYTES, *sizes)}
    return [
        _row(block, _run([fio, *_options(block, files)], folder))
        for block in sorted(blocks)
        if block <= length
    ]


def _options(block: int, files: Sequence[str]) -> list[str]:
    return [
        "--name=probe",
        f"--filename={':'.join(files)}",
        "--readonly",
        "--rw=randread",
        f"--bs={block}",
        "--direct=1",
        "--ioengine=psync",
        "--time_based",
        f"--runtime={RUNTIME_S}",
        "--percentile_list=10:50:90",
        "--output-format=json",
    ]


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the fio on the user's PATH
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"fio: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        raise RunError(f"fio: {said[0]}")
    return done.stdout


def _row(block: int, output: str) -> Row:
    """Read fio's JSON, which notes may come before."""
    try:
        read = json.loads(output[output.index("{") :])["jobs"][0]["read"]
        low, median, high = (read["clat_ns"]["percentile"][name] / 1e9 for name in _PERCENTILES)
        return Row("fio.read", "s/read", median, (low, high), int(read["total_ios"]), block)
    except (ValueError, LookupError, TypeError) as error:
        raise RunError(f"fio {block}: its output is not understood: {error!r}") from error
