"""What `fedio probe` is told on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from experiments.probe.wanted import MODELS, NETWORK_BYTES_PER_S, SHAPE, SIZES, Wanted
from fedio.config import Training


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedio probe`."""
    parser.add_argument("folder", type=Path, metavar="PATH", help="a folder on the slow tier")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="a folder on the fast tier, for the cache (PATH)"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        dest="models",
        help=f"a network to train, or module:function (several; {', '.join(MODELS)})",
    )
    parser.add_argument(
        "--size",
        action="append",
        type=_bytes,
        metavar="BYTES",
        dest="sizes",
        help="of samples (two or more; 4 kB to 4 MB)",
    )
    parser.add_argument(
        "--budget", type=_bytes, metavar="BYTES", help="written at most (1e9, if there is room)"
    )
    parser.add_argument(
        "--shape",
        type=_shape,
        default=SHAPE,
        metavar="CxHxW",
        help="of the images that are trained (3x32x32)",
    )
    parser.add_argument(
        "--accelerator", type=_accelerator, default="auto", metavar="NAME", help="cpu or cuda:i"
    )
    for way in ("download", "upload"):
        parser.add_argument(
            f"--{way}",
            type=_speed,
            default=NETWORK_BYTES_PER_S,
            metavar="BYTES",
            help="a second: assumed, the network is not measured (5e6)",
        )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare what the virtual clock says with what participations take here",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.toml", help="write the profile there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")


def wanted_of(options: argparse.Namespace) -> Wanted:
    """Return what the parsed arguments ask for."""
    return Wanted(
        folder=options.folder,
        cache_folder=options.cache or options.folder,
        models=tuple(dict.fromkeys(options.models or MODELS)),
        sizes=tuple(sorted(set(options.sizes or SIZES))),
        budget_bytes=options.budget,
        shape=options.shape,
        accelerator=options.accelerator,
        download_bytes_per_s=options.download,
        upload_bytes_per_s=options.upload,
    )


def _bytes(text: str) -> int:
    value = _float(text)
    if not 1 <= value <= 1e15 or value != int(value):
        raise argparse.ArgumentTypeError(
            f"needs whole bytes from 1 on, as in 4096 or 1e9; got {text!r}"
        )
    return int(value)


def _speed(text: str) -> float:
    value = _float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"needs bytes a second, above 0; got {text!r}")
    return value


def _shape(text: str) -> tuple[int, int, int]:
    sides = text.split("x")
    if len(sides) != 3 or not all(map(str.isdecimal, sides)) or sides[0] not in {"1", "3"}:
        raise argparse.ArgumentTypeError(f"needs CxHxW with 1 or 3 channels, got {text!r}")
    channels, height, width = map(int, sides)
    if not 4 <= min(height, width) <= max(height, width) <= 1024:
        raise argparse.ArgumentTypeError(f"needs 4 to 1024 pixels a side, got {text!r}")
    return channels, height, width


def _accelerator(text: str) -> str:
    try:
        return Training(accelerator=text).accelerator
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"needs auto, cpu or cuda:i, got {text!r}") from error


def _float(text: str) -> float:
    """Return a number, or NaN."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
