"""The doctor: is everything here that fedio needs, and is what an experiment names there?"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from clients.accelerator import find_accelerator
from clients.models import MODELS
from clients.prepare import prepare
from clients.samplers import SAMPLERS, Sampler
from fedio.availability_kinds import availability_of
from fedio.config import Data, Experiment
from fedio.errors import InputError, RunError
from fedio.faults import check_faults
from fedio.flower_internals import check_version
from fedio.plugins import create, resolve
from fedio.profiles import fleet_of, load_profile
from storage import Policy, open_cache
from storage.policies import POLICIES
from strategies.aggregations import aggregation_of
from strategies.buffered import FedBuff
from strategies.buffered_rounds import check_buffered
from strategies.server_app import selector_of

OPTIONAL = {
    "flwr_datasets": "partitions: pip install 'fedio[experiments]'",
    "matplotlib": "plots: pip install 'fedio[experiments]'",
}


def check_experiment(experiment: Experiment) -> None:
    """Check that all that an experiment names is here, and prepare its data if it is not yet.

    Raises:
        InputError: a plug-in, a profile, the accelerator or the data is not to be had, or what is
            to go wrong on purpose cannot.
    """
    find_accelerator(experiment.training.accelerator)
    check_faults(experiment)
    with _at("model"):
        resolve(experiment.model, MODELS, "model")
    with _at("fleet.profiles"):
        for name in experiment.fleet.profiles:
            load_profile(name)
    with _at("fleet"):
        fleet_of(experiment)
    with _at("availability"):
        availability_of(experiment)
    for name, arm in experiment.arms.items():
        with _at(f"arms.{name}.selector"):
            selector_of(arm)
        with _at(f"arms.{name}.aggregation"):
            aggregation = aggregation_of(arm)
            if isinstance(aggregation, FedBuff):
                check_buffered(arm, aggregation.buffer, experiment.data.clients)
        with _at(f"arms.{name}.policy"):
            create(arm.policy, POLICIES, Policy, 1)  # type: ignore[type-abstract]
        with _at(f"arms.{name}.sampler"):
            create(arm.sampler, SAMPLERS, Sampler, 1, 1)  # type: ignore[type-abstract]
    with _at("data"):
        prepare(experiment)


@contextmanager
def _at(key: str) -> Iterator[None]:
    """Say at which key of the experiment a wrong input is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{key}: {error}") from error


def check(console: Console) -> None:
    """Print one line per check.

    Raises:
        RunError: something that every run needs is not in order.
    """
    failed = 0
    for name, probe in _probes():
        try:
            console.print(f"ok    {name}: {probe()}")
        except Exception as error:  # noqa: BLE001 - a diagnosis reports whatever it meets
            failed += 1
            console.print(f"FAIL  {name}: {error}")
    if failed:
        raise RunError(f"{failed} checks failed; the lines above say which")


def _probes() -> Iterator[tuple[str, Callable[[], str]]]:
    yield (
        "python",
        lambda: f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    )
    yield "flower", _flower
    yield "torch", _torch
    yield "accelerator", lambda: f"auto is {find_accelerator('auto')}"
    yield "processors", lambda: f"{len(os.sched_getaffinity(0))} to use"
    yield "data folder", _data_folder
    yield "lmdb", _lmdb
    for module, purpose in OPTIONAL.items():
        yield module, partial(_import, module, purpose)


def _flower() -> str:
    check_version()
    return "its internals are those that the inline engine knows"


def _torch() -> str:
    return f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()} kernels"


def _data_folder() -> str:
    home = Data().home
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if not os.access(home, os.W_OK):
        raise InputError(f"{home} cannot be written; set data.folder")
    return f"{home}, {free / 1e9:.1f} GB free"


def _lmdb() -> str:
    """Write a sample into a real cache, read it back and compare."""
    payload = np.arange(100, dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        policy = POLICIES["lru"](1)
        with open_cache(Path(folder) / "cache", 2**20, policy) as cache:
            one = np.zeros(1, dtype=np.int64)
            cache.offer(one, payload, one, one + len(payload))
            buffer = np.empty(len(payload), dtype=np.uint8)
            if cache.read(one, buffer).lengths[0] != len(payload) or (buffer != payload).any():
                raise RunError("a sample written into a cache does not come back")
    return "a sample goes in and comes back"


def _import(module: str, purpose: str) -> str:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"not installed, needed for {purpose}") from error
    return "installed"
