"""The device profile that follows from what was measured."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import tomli_w
import torch

from clients.accelerator import find_accelerator
from experiments.probe.fitting import Fit
from experiments.probe.training import BATCH_SIZES
from experiments.probe.wanted import Wanted
from fedio.profiles import DecodeFigures, PrefetchFigures, Profile, StorageFigures, TrainingFigures
from storage.filesystem import file_system

TRAINING = "training."
"""What the fit of a network's training is called: this, and its name."""


def profile_of(
    wanted: Wanted,
    fits: Mapping[str, Fit],
    inference_s: float,
    slowdown: float,
    *,
    direct: bool,
) -> Profile:
    """Return the profile.

    Args:
        wanted: what was asked for; the network's speeds are taken from there.
        fits: by name: `origin.read`, `origin.write`, `cache.read`, `cache.write`, `decode` and
            `training.MODEL` of each model.
        inference_s: of MobileNet.
        slowdown: of decoding and training while both go on, at least 1.
        direct: whether files were read past the page cache.
    """
    return Profile(
        description=_description(wanted, direct),
        source=_source(wanted),
        inference_ms=inference_s * 1e3,
        download_bytes_per_s=wanted.download_bytes_per_s,
        upload_bytes_per_s=wanted.upload_bytes_per_s,
        memory_bytes=psutil.virtual_memory().total,
        origin=_storage(fits["origin.read"], fits["origin.write"]),
        cache=_storage(fits["cache.read"], fits["cache.write"]),
        decode=DecodeFigures(
            sample_s=fits["decode"].latency_s, bytes_per_s=fits["decode"].bytes_per_s
        ),
        prefetch=PrefetchFigures(slowdown=slowdown),
        training={
            model: TrainingFigures(
                step_s=fits[TRAINING + model].latency_s, sample_s=fits[TRAINING + model].unit_s
            )
            for model in wanted.models
        },
    )


def to_dict(profile: Profile) -> dict[str, Any]:
    """Return a profile as plain data, without what was not measured and is as by default."""
    return profile.model_dump(mode="json", exclude_defaults=True)


def to_toml(profile: Profile) -> str:
    """Return a profile as the TOML that `fleet.profiles` takes."""
    return tomli_w.dumps(to_dict(profile))


def _storage(read: Fit, write: Fit) -> StorageFigures:
    return StorageFigures(
        read_latency_s=read.latency_s,
        read_bytes_per_s=read.bytes_per_s,
        write_latency_s=write.latency_s,
        write_bytes_per_s=write.bytes_per_s,
    )


def _description(wanted: Wanted, direct: bool) -> str:
    shape = "x".join(map(str, wanted.shape))
    trained = f"{' and '.join(wanted.models)} trained" if wanted.models else "photos decoded"
    return (
        f"This machine: samples on {_place(wanted.folder)}, "
        f"{'past' if direct else 'maybe from'} the page cache; "
        f"cache on {_place(wanted.cache_folder)}, through the page cache; "
        f"{trained} at {shape} in batches of {BATCH_SIZES[0]} to {BATCH_SIZES[-1]}; "
        "network speeds assumed, not measured"
    )


def _place(folder: Path) -> str:
    return f"{folder.resolve()} ({file_system(folder) or 'unknown file system'})"


def _source(wanted: Wanted) -> str:
    device = find_accelerator(wanted.accelerator)
    kernels = torch.backends.cpu.get_cpu_capability()
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{kernels} kernels"
    return (
        f"fedio probe {metadata.version('fedio')}, {datetime.now(UTC):%Y-%m-%d}: {device} ({what}) "
        f"of {platform.system()} {platform.release()} on {platform.machine()}, one thread"
    )
