"""The whole probe: storage, decoding, training, and the profile that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clients.datasets.dataset import Shape
from clients.trainer import Trainer
from experiments.interrupts import ended_like_interrupts
from experiments.probe.amounts import LONG_FILES, Amounts, amounts, budget_of
from experiments.probe.cached import measure_cache
from experiments.probe.decoding import measure_decoding
from experiments.probe.files import measure_reads, measure_writes, path_of
from experiments.probe.fio import installed, measure_fio
from experiments.probe.fitting import Fit, fit
from experiments.probe.inference import measure_inference
from experiments.probe.points import Points
from experiments.probe.profile import TRAINING, profile_of, to_dict
from experiments.probe.rows import Measure, Row, row_of, rows_of
from experiments.probe.scratch_folder import scratch
from experiments.probe.slowdown import measure_slowdown
from experiments.probe.training import measure_training, trainer_of
from experiments.probe.wanted import Wanted
from experiments.table import size as shown
from fedio.errors import InputError, RunError
from fedio.profiles import Profile
from storage.direct import direct_io
from storage.errors import NotAllowed
from storage.filesystem import prepare_folder

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe has found.

    Attributes:
        rows: all figures.
        fits: the lines through them, by the name of their rows.
        notes: what one must know to judge them, a line each.
        profile: what experiments are timed by.
    """

    rows: list[Row]
    fits: dict[str, Fit]
    notes: list[str]
    profile: Profile

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "fits": {name: line.to_dict() for name, line in self.fits.items()},
            "notes": self.notes,
            "profile": to_dict(self.profile),
        }


def probe(wanted: Wanted, say: Say) -> Probed:
    """Measure all that a device profile holds; takes a minute or two where the disk is slow.

    Args:
        wanted: what and where.
        say: is told what is being done.

    Raises:
        InputError: a folder cannot be used or has no room, or there is no such model or
            accelerator.
        RunError: the disk failed.
    """
    measuring = _Probe(say)
    trainers = {
        model: trainer_of(model, wanted.shape, wanted.accelerator, measuring.rng)
        for model in wanted.models
    }
    with (
        ended_like_interrupts(),
        scratch(wanted.folder) as folder,
        scratch(wanted.cache_folder) as cache_folder,
        _disk_errors(),
    ):
        _check_local(cache_folder)
        budget_bytes = budget_of(wanted.budget_bytes, (wanted.folder, wanted.cache_folder))
        amount = amounts(wanted.sizes, budget_bytes)
        direct = measuring.origin(folder, amount)
        measuring.cache(cache_folder, amount)
    measuring.training(trainers, wanted.shape)
    inference_s = measuring.inference(wanted.accelerator)
    profile = profile_of(wanted, measuring.fits, inference_s, measuring.slowdown, direct=direct)
    return Probed(measuring.rows, measuring.fits, measuring.notes, profile)


@dataclass(slots=True)
class _Probe:
    """What has been found so far."""

    say: Say
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    rows: list[Row] = field(default_factory=list)
    fits: dict[str, Fit] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    slowdown: float = 1.0

    def origin(self, folder: Path, amount: Amounts) -> bool:
        """Measure files in `folder`; returns whether they were read past the page cache."""
        self.say(f"writing {sum(amount.files.values())} files of {_range(amount.files)}")
        self._add("origin.write", "s/file", measure_writes(folder, amount.files, self.rng))
        direct = direct_io(path_of(folder, min(amount.files), 0))
        if not direct:
            self.notes.append(
                "This file system has no O_DIRECT: files may have been read from memory."
            )
        self.say("reading them one at a time, in random order")
        self._add("origin.read", "s/file", measure_reads(folder, amount.files, self.rng))
        self._long_files(folder / "long", amount)
        return direct

    def cache(self, folder: Path, amount: Amounts) -> None:
        """Measure a cache in `folder`."""
        self.say(f"filling a cache and reading it, samples of {_range(amount.batches)}")
        cached = measure_cache(folder, amount.batches, self.rng)
        self._add("cache.read", "s/sample", cached.reads)
        self._add("cache.write", "s/sample", cached.writes)
        self.rows.append(row_of("cache.save", "s/save", cached.saves_s))

    def training(self, trainers: Mapping[str, Trainer], shape: Shape) -> None:
        """Measure decoding to `shape`, and training of each model on such images."""
        self.say("decoding JPEGs")
        self._add("decode", "s/image", measure_decoding(shape, self.rng))
        for model, trainer in trainers.items():
            self.say(f"training {model}")
            points = measure_training(trainer, shape, self.rng)
            self._add(TRAINING + model, "s/step", points, of="batch")
        factors = [measure_slowdown(trainer, shape, self.rng) for trainer in trainers.values()]
        if factors:
            self.slowdown = max(1.0, float(np.median(factors)))
            self.notes.append(
                "Decoding and training take "
                f"{self.slowdown:.2f} times as long while both go on (prefetch.slowdown)."
            )

    def inference(self, accelerator: str) -> float:
        """Measure MobileNet; returns the median in seconds."""
        self.say("timing MobileNet")
        row = row_of("inference", "s/image", measure_inference(accelerator))
        self.rows.append(row)
        return row.seconds

    def _long_files(self, folder: Path, amount: Amounts) -> None:
        """Read files from end to end, and have fio read them if it is installed."""
        self.say(f"writing and reading {LONG_FILES} files of {shown(amount.long_bytes)}")
        folder.mkdir()
        counts = {amount.long_bytes: LONG_FILES}
        measure_writes(folder, counts, self.rng)
        self.rows += rows_of("origin.sequential", "s/file", measure_reads(folder, counts, self.rng))
        fio = installed()
        if fio is None:
            self.notes.append("fio is not installed: its figures are not shown beside these.")
            return
        self.say(f"running {fio}")
        files = [path_of(folder, amount.long_bytes, number).name for number in range(LONG_FILES)]
        try:
            self.rows += measure_fio(fio, folder, files, list(amount.files))
        except RunError as error:
            self.notes.append(f"{error}; its figures are not shown.")

    def _add(self, name: str, unit: str, points: Points, of: Measure = "size_bytes") -> None:
        self.rows += rows_of(name, unit, points, of)
        self.fits[name] = fit(points)


def _check_local(folder: Path) -> None:
    """Find out before the work whether a cache may be there."""
    try:
        prepare_folder(folder)
    except NotAllowed as error:
        raise InputError(f"{error}; name a folder with --cache") from error


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Say in one line what the disk refused."""
    try:
        yield
    except OSError as error:
        raise RunError(f"the disk failed: {error.strerror or error}") from error


def _range(sizes: Mapping[int, int]) -> str:
    return f"{shown(min(sizes))} to {shown(max(sizes))}"
