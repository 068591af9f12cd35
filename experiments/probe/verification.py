"""The virtual clock beside this machine: what it predicts of participations, and what they took.

A probe of this machine and real participations alternate, so that a slow minute hits both. The
probe sees other files, of other sizes, and batches of other sizes than those it has to predict.
Each participation is carried out twice, from the same state of the cache and with the same reads,
which shows how far two runs of the same work are apart.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np

from clients.central import Central
from clients.device import Host, Participation
from experiments.interrupts import ended_like_interrupts
from experiments.probe.cached import measure_cache
from experiments.probe.decoding import measure_decoding
from experiments.probe.files import measure_reads, measure_writes
from experiments.probe.fitting import Fit, fit
from experiments.probe.photo_files import write_photos
from experiments.probe.points import Points
from experiments.probe.profile import TRAINING, profile_of, to_toml
from experiments.probe.scratch_folder import scratch
from experiments.probe.slowdown import measure_slowdown
from experiments.probe.training import measure_training, trainer_of
from experiments.probe.wanted import Wanted
from experiments.table import size as shown
from fedio.config import Experiment
from fedio.costs import Phases, phases
from fedio.errors import InputError
from fedio.profiles import Speeds, draw_fleet
from storage import Origin, ThrottledOrigin, Tier
from storage.direct import direct_io
from strategies.round import work_of

PHASES = ("origin_s", "cache_s", "decode_s", "write_s", "stall_s", "compute_s", "total_s")

MODEL, SIZE_PX = "cnn", 96
PROBED_BYTES = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
PROBED_SIDES_PX = (240, 480, 960, 1920)
INFERENCE_S = 0.01
"""MobileNet is not timed: the network itself is."""

STEPS, BATCH = 8, 24
SAMPLES_EACH, CACHE_SHARE = 200, 0.3
ROUNDS = 3

THROTTLE = Tier(0.0005, 40e6, 1.0, 1.0)
"""A good microSD card reads like this; nothing is written there."""

CASES = ("throttled", "direct")
ARMS: dict[str, dict[str, Any]] = {
    "lru, in turns": {"policy": "lru", "prefetch": False},
    "lru, ahead": {"policy": "lru"},
    "static, prepared, ahead": {"policy": "static", "form": "prepared"},
}


@dataclass(frozen=True, slots=True)
class Amount:
    """How much work a verification is.

    Attributes:
        cycles: how often probe and participations alternate; each takes a client of its own.
        photo_bytes: of the files that clients train on.
        probed_files: of each size, per cycle.
    """

    cycles: int = 4
    photo_bytes: int = 2_500_000_000
    probed_files: int = 12


@dataclass(frozen=True, slots=True)
class Run:
    """One participation, carried out twice.

    Attributes:
        case: what its origin was.
        arm: how it read.
        took: seconds by phase, [2] each.
        predicted_s: seconds by phase.
    """

    case: str
    arm: str
    took: dict[str, np.ndarray]
    predicted_s: dict[str, float]


@dataclass(slots=True)
class Probing:
    """What the slices of the probe have found so far, by the name of what was measured."""

    folder: Path
    rng: np.random.Generator
    points: dict[str, list[Points]] = field(default_factory=dict)
    factors: list[float] = field(default_factory=list)

    def slice(self, cycle: int, files: int) -> None:
        """Measure a little of everything."""
        folder = self.folder / f"probe-{cycle}"
        (folder / "files").mkdir(parents=True)
        counts = dict.fromkeys(PROBED_BYTES, files)
        self._add("origin.write", measure_writes(folder / "files", counts, self.rng))
        self._add("origin.read", measure_reads(folder / "files", counts, self.rng))
        cached = measure_cache(folder / "cache", dict.fromkeys(PROBED_BYTES, 8), self.rng)
        self._add("cache.read", cached.reads)
        self._add("cache.write", cached.writes)
        shape = (3, SIZE_PX, SIZE_PX)
        self._add("decode", measure_decoding(shape, self.rng, PROBED_SIDES_PX))
        trainer = trainer_of(MODEL, shape, "cpu", self.rng)
        self._add(TRAINING + MODEL, measure_training(trainer, shape, self.rng))
        self.factors += measure_slowdown(trainer, shape, self.rng)

    def fits(self) -> dict[str, Fit]:
        """Return the lines through all slices."""
        return {name: fit(Points.together(parts)) for name, parts in self.points.items()}

    def _add(self, name: str, points: Points) -> None:
        self.points.setdefault(name, []).append(points)


def verify(path: Path, amount: Amount, say: Callable[[str], None]) -> dict[str, Any]:
    """Probe and train in turns; returns errors by case, arm and phase, as plain data.

    Args:
        path: a folder on the storage in question; all is done in one of its own there.
        amount: how much to do.
        say: is told what is being done.

    Raises:
        InputError: the folder cannot be written to, or has no room.
    """
    with ended_like_interrupts(), scratch(path) as folder:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < 2 * amount.photo_bytes:
            raise InputError(
                f"{path} has {shown(free_bytes)} free, and {shown(2 * amount.photo_bytes)} are "
                "needed; name a folder with more room"
            )
        return _verify(folder, amount, say)


def _verify(folder: Path, amount: Amount, say: Callable[[str], None]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    files = write_photos(folder / "photos", amount.photo_bytes, rng, say)
    probing = Probing(folder, rng)
    # Caches are taken back on purpose; that payloads have left since is no news.
    logging.getLogger("storage.recovery").setLevel(logging.ERROR)
    done: list[tuple[str, str, list[Participation]]] = []
    with _Sides(folder, files // SAMPLES_EACH) as sides:
        for cycle in range(amount.cycles):
            say(f"cycle {cycle + 1} of {amount.cycles}: probing")
            probing.slice(cycle, amount.probed_files)
            say(f"cycle {cycle + 1} of {amount.cycles}: training")
            done += sides.train(cycle)
    direct = direct_io(next((folder / "photos" / "train").rglob("*.jpg")))
    wanted = Wanted(folder, folder, (MODEL,), PROBED_BYTES, shape=(3, SIZE_PX, SIZE_PX))
    fits = probing.fits()
    profile = folder / "probed.toml"
    slowdown = max(1.0, float(np.median(probing.factors)))
    probed = profile_of(wanted, fits, INFERENCE_S, slowdown, direct=direct)
    profile.write_text(to_toml(probed))
    speeds = {case: _speeds(profile, case) for case in CASES}
    runs = [_run(case, arm, twice, speeds[case]) for case, arm, twice in done]
    return {
        "schema": 1,
        "direct_io": direct,
        "slowdown": slowdown,
        "fits": {name: line.to_dict() for name, line in fits.items()},
        "rows": [
            _row(runs, case, arm, phase)
            for case, arm, phase in product(CASES, (None, *ARMS), PHASES)
        ],
    }


class _Sides:
    """A host for each case and arm, which train the same clients."""

    def __init__(self, folder: Path, clients: int) -> None:
        self._hosts: dict[tuple[str, str], Host] = {}
        for case, arm in product(CASES, ARMS):
            experiment = _experiment(folder, clients, ARMS[arm], direct=case == "direct")
            home = folder / f"{case}-{list(ARMS).index(arm)}"
            slow = _throttled if case == "throttled" else None
            self._hosts[case, arm] = Host(experiment, home, slow=slow)
        self._arrays = Central(experiment).initial_arrays

    def train(self, client: int) -> Iterator[tuple[str, str, list[Participation]]]:
        """Yield participations of a client, each carried out twice: the cache goes back."""
        for server_round in range(1, ROUNDS + 1):
            for (case, arm), host in self._hosts.items():
                device = host.device(client)
                yield case, arm, [device.train(self._arrays, server_round, STEPS) for _ in "ab"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts.values():
            host.close()


def _throttled(partition: int, origin: Origin, size_bytes: np.ndarray) -> Origin:
    del partition
    return ThrottledOrigin(origin, THROTTLE, size_bytes)


def _experiment(folder: Path, clients: int, arm: dict[str, Any], *, direct: bool) -> Experiment:
    photos = {"path": str(folder / "photos"), "size": SIZE_PX, "direct": direct}
    return Experiment.model_validate(
        {
            "name": "verification",
            "data": {
                "clients": clients,
                "folder": str(folder / "data"),
                "dataset": {"name": "image-folder", "args": photos},
            },
            "model": MODEL,
            "training": {"local_steps": STEPS, "batch_size": BATCH, "accelerator": "cpu"},
            "cache": {"share": CACHE_SHARE},
            "rounds": {"cohort": 1},
            "arms": {"a": arm},
        }
    )


def _speeds(profile: Path, case: str) -> Speeds:
    """Return what simulation makes of the profile, for one device."""
    rng = np.random.default_rng(0)
    _, speeds = draw_fleet({str(profile): 1.0}, 1, rng, timing_model=MODEL)
    if case == "throttled":
        speeds.origin_read_latency_s[:] = THROTTLE.read_latency_s
        speeds.origin_read_bytes_per_s[:] = THROTTLE.read_bytes_per_s
    return speeds


def _run(case: str, arm: str, twice: list[Participation], speeds: Speeds) -> Run:
    if twice[0].meter != twice[1].meter:
        raise RuntimeError("the same participation has counted something else the second time")
    predicted = phases(work_of([twice[0].meter], 0.0), speeds)
    took = [_took(one) for one in twice]
    return Run(
        case=case,
        arm=arm,
        took={phase: np.array([one[phase] for one in took]) for phase in PHASES},
        predicted_s={phase: _of(predicted, phase) for phase in PHASES},
    )


def _of(predicted: Phases, phase: str) -> float:
    return float(getattr(predicted, phase)[0])


def _took(done: Participation) -> dict[str, float]:
    wall = done.wall
    reading = {name: float(getattr(wall.reading, name).sum()) for name in PHASES[:4]}
    return reading | {
        "stall_s": wall.training.stall_s,
        "compute_s": wall.training.compute_s + wall.training.copy_s,
        "total_s": wall.total_s,
    }


def _row(runs: list[Run], case: str, arm: str | None, phase: str) -> dict[str, Any]:
    """Return error and spread of a phase, as shares of the total that participations took.

    Without an arm, of all of them.
    """
    of_case = [run for run in runs if run.case == case and arm in {None, run.arm}]
    totals_s = np.stack([run.took["total_s"] for run in of_case])
    took_s = np.stack([run.took[phase] for run in of_case])
    predicted_s = np.array([run.predicted_s[phase] for run in of_case])[:, None]
    errors = np.abs(predicted_s - took_s) / totals_s
    spread = np.abs(took_s[:, 0] - took_s[:, 1]) / totals_s.mean(axis=1)
    return {
        "case": case,
        "arm": arm,
        "phase": phase.removesuffix("_s"),
        "share": float((took_s / totals_s).mean()),
        "predicted_share": float((predicted_s / totals_s).mean()),
        "error_median": float(np.median(errors)),
        "error_p95": float(np.quantile(errors, 0.95)),
        "spread_median": float(np.median(spread)),
        "spread_p95": float(np.quantile(spread, 0.95)),
        "participations": errors.size,
    }
