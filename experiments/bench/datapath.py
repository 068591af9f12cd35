"""The data path: a participation on a slow origin, beside its parts and beside torch's DataLoader.

The origin is throttled in real time, training and decoding are real. For each ratio of computing to
I/O the origin's bandwidth is set so that reading and decoding take that share of the computing that
was measured just before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from clients.central import Central
from clients.datapath import Ahead, Buffers, DataPath
from clients.device import Device, Host
from experiments.bench.datapath_loader import LoaderSide
from experiments.bench.measure import Row, in_turns
from fedio.config import Experiment
from storage import Origin, ThrottledOrigin, Tier, open_cache
from storage.policies import Static

LATENCY_S = 0.0005
NEVER = 1e30


@dataclass(frozen=True, slots=True)
class Setting:
    """Photos of about one size, and a network that takes about as long to train as to read them.

    Attributes:
        side_px: of the photos.
        size_px: what they are scaled to.
        model: what is trained.
        batch: samples of a step.
        steps: of a participation.
        samples: how many photos there are.
    """

    side_px: int
    size_px: int
    model: str
    batch: int
    steps: int
    samples: int


FULL = (
    Setting(side_px=670, size_px=160, model="cnn", batch=8, steps=12, samples=96),
    Setting(side_px=2100, size_px=32, model="resnet18", batch=4, steps=10, samples=40),
)
RATIOS = ((2, 1), (1, 1), (1, 2))


def rows(settings: tuple[Setting, ...] = FULL) -> Iterator[Row]:
    """Measure every size of photo at every ratio of computing to I/O; takes ten minutes."""
    for setting in settings:
        for compute, io in RATIOS:
            yield from _measured(setting, io / compute, f"{compute}:{io}")


def experiment_of(setting: Setting, *, prefetch: bool) -> Experiment:
    """Return an experiment of one client without a cache: every sample comes from the origin."""
    drawing = {
        "samples": setting.samples,
        "test_samples": 10,
        "median_side_px": setting.side_px,
        "min_side_px": setting.side_px // 2,
        "max_side_px": setting.side_px * 2,
        "sigma": 0.2,
        "size": setting.size_px,
    }
    return Experiment.model_validate(
        {
            "name": "datapath",
            "data": {
                "clients": 1,
                "holdout": 0.0,
                "dataset": {"name": "photos", "args": drawing},
            },
            "model": setting.model,
            "training": {
                "local_steps": setting.steps,
                "batch_size": setting.batch,
                "accelerator": "cpu",
            },
            "rounds": {"cohort": 1},
            "cache": {"budget_bytes": 0},
            "arms": {"a": {"policy": "static", "prefetch": prefetch}},
        }
    )


def _measured(setting: Setting, io: float, ratio: str) -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedio-bench-")))
        tier = _tier(setting, io, folder / "calibration")

        def throttled(partition: int, origin: Origin, size_bytes: np.ndarray) -> Origin:
            del partition
            return ThrottledOrigin(origin, tier, size_bytes)

        def side(name: str, *, prefetch: bool) -> _Side:
            host = Host(experiment_of(setting, prefetch=prefetch), folder / name, slow=throttled)
            stack.callback(host.close)
            return _Side(host, setting)

        ahead, turns = side("ahead", prefetch=True), side("turns", prefetch=False)
        loader = stack.enter_context(
            LoaderSide(turns.device.data, turns.host, turns.order, setting.batch)
        )
        actions = (ahead.train, turns.train, loader.train, turns.compute, turns.read)
        ours_s, sum_s, loader_s, compute_s, io_s = in_turns(*actions)
        fills_s = ahead.fills_s[-len(ours_s) :]
    largest_s = [max(pair) for pair in zip(compute_s, io_s, strict=True)]
    max_s = [one + fill for one, fill in zip(largest_s, fills_s, strict=True)]
    about = {
        "model": setting.model,
        "batch": setting.batch,
        "local_steps": setting.steps,
        "sample_bytes": round(float(turns.device.data.size_bytes.mean())),
        "compute_to_io": ratio,
        "compute_ms": median(compute_s) * 1e3,
        "io_ms": median(io_s) * 1e3,
        "first_fill_ms": median(fills_s) * 1e3,
        "origin_bytes_per_s": tier.read_bytes_per_s,
    }
    for reference, seconds in (("sum", sum_s), ("max", max_s), ("dataloader", loader_s)):
        yield Row.of_seconds(("datapath.prefetch", reference), ours_s, seconds, 1, about)


def _tier(setting: Setting, io: float, folder: Path) -> Tier:
    """Return the tier with which reading and decoding take `io` times as long as computing."""
    host = Host(experiment_of(setting, prefetch=False), folder)
    side = _Side(host, setting)
    compute_s, decode_s = (median(s) for s in in_turns(side.compute, side.read))
    host.close()
    order = side.order
    left_s = io * compute_s - decode_s - LATENCY_S * len(order)
    size_bytes = float(side.device.data.size_bytes[order].sum())
    bytes_per_s = size_bytes / left_s if left_s > 0 else NEVER
    return Tier(LATENCY_S, bytes_per_s, NEVER, NEVER)


class _Side:
    """A device, and what of a participation can be measured alone."""

    def __init__(self, host: Host, setting: Setting) -> None:
        self.host = host
        self.device: Device = host.device(0)
        self._setting = setting
        self._arrays = Central(host.experiment).initial_arrays
        self._round = 0
        accesses = setting.steps * setting.batch
        self.order = np.resize(np.random.default_rng(0).permutation(setting.samples), accesses)
        self._held = [(batch.images.copy(), batch.labels, None) for batch in self._path().batches()]
        self.fills_s: list[float] = []

    def train(self) -> None:
        """One participation."""
        self._round += 1
        done = self.device.train(self._arrays, self._round, self._setting.steps)
        self.fills_s.append(float(done.wall.reading.total_s[0]))

    def compute(self) -> None:
        """Its computing, on batches in memory."""
        self.host.trainer.train(self._arrays, self._held, 0.05)

    def read(self) -> None:
        """Its reading and decoding, in turns."""
        for _ in self._path().batches():
            pass

    def _path(self) -> DataPath:
        data = self.device.data
        cache = open_cache(None, 0, Static(len(data.labels)))
        return DataPath(self.order, self._setting.batch, data, cache, Buffers(), Ahead())
