"""Device profiles: compute, network and storage figures of a device class, and fleets of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from operator import attrgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedio.config import Experiment
from fedio.device_traces import read_capacity, rows_of
from fedio.errors import InputError
from fedio.plugins import unknown
from fedio.seeds import Purpose, rng
from storage.tier import Tier


class StorageFigures(BaseModel):
    """What one storage tier of a device does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    read_latency_s: float = Field(ge=0)
    read_bytes_per_s: float = Field(gt=0)
    write_latency_s: float = Field(ge=0)
    write_bytes_per_s: float = Field(gt=0)


MOST_SLOWDOWN = 100.0


class DecodeFigures(BaseModel):
    """What decoding an image costs: seconds each, and its encoded bytes per second."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sample_s: float = Field(ge=0)
    bytes_per_s: float = Field(gt=0)


class TrainingFigures(BaseModel):
    """What training a network costs: seconds per step, and per sample of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_s: float = Field(ge=0)
    sample_s: float = Field(gt=0)


class PrefetchFigures(BaseModel):
    """How far reading may run ahead of training.

    That many readers, that many batches read or trained at a time, and that share of the memory.
    While a batch is decoded and another trained, both take `slowdown` times as long.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    readers: int = Field(default=1, ge=1, le=64)
    batches: int = Field(default=4, ge=1, le=1024)
    memory_share: float = Field(default=0.25, gt=0, le=1)
    slowdown: float = Field(default=1.0, ge=1, le=MOST_SLOWDOWN)


class Profile(BaseModel):
    """One device class.

    `inference_ms` is the time of one MobileNet inference on one sample; training a sample is
    taken as three times that (FedScale; FedCaSe's artifact), times the relative cost of the timed
    model (`RELATIVE_COST`). `training` has networks that were measured themselves; `decode`, where
    it is there, stands for the rate that the experiment declares.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str
    source: str
    inference_ms: float = Field(gt=0)
    download_bytes_per_s: float = Field(gt=0)
    upload_bytes_per_s: float = Field(gt=0)
    memory_bytes: int = Field(gt=0)
    origin: StorageFigures
    cache: StorageFigures
    prefetch: PrefetchFigures = PrefetchFigures()
    decode: DecodeFigures | None = None
    training: dict[str, TrainingFigures] = {}


# Relative cost of a training step (FedScale's measurements; MobileNet = 1). The CNN for FEMNIST
# took 164, 59 and 18 ms a sample on three phones (FedBalancer, MobiSys 2022): at the geometric mean
# a quarter of what MobileNet takes on the devices of the profiles; a fifth to a third of it, phone
# by phone.
RELATIVE_COST = {
    "mobilenet": 1.0,
    "shufflenet": 1.16,
    "resnet": 2.44,
    "albert": 6.05,
    "femnist-cnn": 0.25,
}
TRAINING_PER_INFERENCE = 3.0

PROFILES = resources.files("fedio") / "profiles"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Figures of many devices: one array of shape [clients] per property (floats for one device).

    `compute_s` and `step_s` are seconds of training per sample and per step of the timing model.
    Decoding takes `decode_sample_s` an image and `decode_bytes_per_s` of its encoded bytes.
    `buffer_bytes` is what may be read ahead, by `readers` readers, `depth` batches at most, the one
    in training included: with a depth of 1 reading and training take turns. Decoding and training
    take `slowdown` times as long while both go on.
    """

    compute_s: np.ndarray
    step_s: np.ndarray
    decode_sample_s: np.ndarray
    decode_bytes_per_s: np.ndarray
    readers: np.ndarray
    depth: np.ndarray
    buffer_bytes: np.ndarray
    slowdown: np.ndarray
    download_bytes_per_s: np.ndarray
    upload_bytes_per_s: np.ndarray
    memory_bytes: np.ndarray
    origin_read_latency_s: np.ndarray
    origin_read_bytes_per_s: np.ndarray
    cache_read_latency_s: np.ndarray
    cache_read_bytes_per_s: np.ndarray
    cache_write_latency_s: np.ndarray
    cache_write_bytes_per_s: np.ndarray

    @property
    def origin(self) -> Tier:
        """The slow tier, which is only read."""
        nothing = np.full_like(self.origin_read_latency_s, np.inf)
        return Tier(self.origin_read_latency_s, self.origin_read_bytes_per_s, nothing, nothing)

    @property
    def cache(self) -> Tier:
        """The fast tier."""
        return Tier(
            self.cache_read_latency_s,
            self.cache_read_bytes_per_s,
            self.cache_write_latency_s,
            self.cache_write_bytes_per_s,
        )

    def decode_s(self, count: npt.ArrayLike, size_bytes: npt.ArrayLike) -> np.ndarray:
        """Seconds to decode `count` images of `size_bytes` encoded bytes in all."""
        each = np.multiply(count, self.decode_sample_s)
        seconds: np.ndarray = each + np.divide(size_bytes, self.decode_bytes_per_s)
        return seconds

    def take(self, clients: np.ndarray | int | slice) -> Speeds:
        """Return the figures of `clients` only."""
        return Speeds(**{f.name: getattr(self, f.name)[clients] for f in fields(self)})

    def with_storage_slowed(self, times: np.ndarray) -> Speeds:
        """Return the figures with both tiers so many times slower, [clients]."""
        return replace(
            self,
            origin_read_latency_s=self.origin_read_latency_s * times,
            origin_read_bytes_per_s=self.origin_read_bytes_per_s / times,
            cache_read_latency_s=self.cache_read_latency_s * times,
            cache_read_bytes_per_s=self.cache_read_bytes_per_s / times,
            cache_write_latency_s=self.cache_write_latency_s * times,
            cache_write_bytes_per_s=self.cache_write_bytes_per_s / times,
        )

    @property
    def by_step(self) -> Speeds:
        """The figures with a last axis, [clients, 1], to go with arrays of [clients, steps]."""
        return Speeds(
            **{f.name: np.asarray(getattr(self, f.name))[..., None] for f in fields(self)}
        )

    @classmethod
    def unknown(cls, clients: int) -> Speeds:
        """Return `clients` rows of which nothing is known (NaN)."""
        return cls(**{f.name: np.full(clients, np.nan) for f in fields(cls)})


def known_profiles() -> list[str]:
    """Return the names of the profiles that come with fedio."""
    return sorted(p.name[:-5] for p in PROFILES.iterdir() if p.name.endswith(".toml"))


def load_profile(name: str) -> Profile:
    """Return the profile called `name`, or the one in the TOML file at that path.

    Raises:
        InputError: no such profile, or the file is not one.
    """
    if name in known_profiles():
        text, where = PROFILES.joinpath(f"{name}.toml").read_text(), name
    elif name.endswith(".toml") and Path(name).is_file():
        text, where = Path(name).read_text(), name
    else:
        raise InputError(unknown("profile", name, known_profiles()))
    try:
        return Profile.model_validate(tomllib.loads(text))
    except (ValidationError, tomllib.TOMLDecodeError) as error:
        first = str(error).replace("\n", " ")
        raise InputError(f"profile {where}: {first}") from error


def draw_fleet(  # noqa: PLR0913 - options, by name
    shares: Mapping[str, float],
    clients: int,
    rng: np.random.Generator,
    *,
    timing_model: str = "mobilenet",
    decode_bytes_per_s: float = np.inf,
    spread: float = 0.0,
    storage: str = "",
) -> tuple[np.ndarray, Speeds]:
    """Draw a fleet: each client's device class, and its own figures around those of the class.

    Classes are apportioned to the shares by largest remainder, then shuffled, so that small fleets
    keep the declared mix. Compute, network and storage speeds vary independently from device to
    device by a factor exp(spread * N(0, 1)).

    Args:
        shares: profile -> its share.
        clients: how many devices to draw.
        rng: what to draw from.
        timing_model: a key of `RELATIVE_COST`, or a network that the profiles have measured.
        decode_bytes_per_s: of devices whose profile does not say how fast they decode.
        spread: of the speeds within a class.
        storage: the profile whose tiers all devices have; their own if it is empty.

    Returns:
        The profile's position in `shares` per client (int64 [clients]) and the speeds.

    Raises:
        InputError: no such profile, or one that has not measured the timing model.
    """
    profiles = [load_profile(name) for name in shares]
    training = [_training(*pair, timing_model) for pair in zip(shares, profiles, strict=True)]
    decode = [_decode(profile, decode_bytes_per_s) for profile in profiles]
    if storage:
        lent = load_profile(storage)
        tiers = {"origin": lent.origin, "cache": lent.cache}
        profiles = [profile.model_copy(update=tiers) for profile in profiles]
    classes = np.repeat(np.arange(len(profiles)), _apportion(list(shares.values()), clients))
    rng.shuffle(classes)
    compute, network, origin, cache = np.exp(spread * rng.standard_normal((4, clients)))

    def column(path: str, of: Sequence[object] = profiles) -> np.ndarray:
        return np.array(list(map(attrgetter(path), of)), dtype=np.float64)[classes]

    speeds = Speeds(
        compute_s=column("sample_s", training) / compute,
        step_s=column("step_s", training) / compute,
        decode_sample_s=column("sample_s", decode),
        decode_bytes_per_s=column("bytes_per_s", decode),
        readers=column("prefetch.readers"),
        depth=column("prefetch.batches"),
        buffer_bytes=column("memory_bytes") * column("prefetch.memory_share"),
        slowdown=column("prefetch.slowdown"),
        download_bytes_per_s=column("download_bytes_per_s") * network,
        upload_bytes_per_s=column("upload_bytes_per_s") * network,
        memory_bytes=column("memory_bytes"),
        origin_read_latency_s=column("origin.read_latency_s") / origin,
        origin_read_bytes_per_s=column("origin.read_bytes_per_s") * origin,
        cache_read_latency_s=column("cache.read_latency_s") / cache,
        cache_read_bytes_per_s=column("cache.read_bytes_per_s") * cache,
        cache_write_latency_s=column("cache.write_latency_s") / cache,
        cache_write_bytes_per_s=column("cache.write_bytes_per_s") * cache,
    )
    return classes, speeds


def fleet_of(experiment: Experiment) -> tuple[list[str], Speeds]:
    """Return the devices of an experiment's clients: the name of each one's profile, its speeds.

    Raises:
        InputError: a profile or the capacity trace is wrong, or has not measured what is timed.
    """
    mix, own = experiment.fleet, experiment.timing.model == "own"
    if own and mix.capacity:
        raise InputError(
            "timing.model is own, but fleet.capacity has measured no network of ours: name another "
            f"timing model ({', '.join(RELATIVE_COST)}), or leave fleet.capacity out"
        )
    classes, speeds = draw_fleet(
        mix.profiles,
        experiment.data.clients,
        rng(experiment.seed, Purpose.FLEET),
        timing_model=experiment.model.name if own else experiment.timing.model,
        decode_bytes_per_s=experiment.data.decode_bytes_per_s,
        spread=mix.spread,
        storage=mix.storage,
    )
    names = list(mix.profiles)
    return [names[i] for i in classes], _as_traced(speeds, experiment) if mix.capacity else speeds


def _as_traced(speeds: Speeds, experiment: Experiment) -> Speeds:
    """Return the speeds with compute and network of devices drawn from the capacity trace."""
    capacity = read_capacity(experiment.fleet.capacity)
    generator = rng(experiment.seed, Purpose.CAPACITY)
    rows = rows_of(len(capacity.inference_ms), experiment.data.clients, generator)
    bytes_per_s = capacity.bytes_per_s[rows]
    return replace(
        speeds,
        compute_s=capacity.inference_ms[rows] * _per_inference_s(experiment.timing.model),
        step_s=np.zeros(len(rows)),
        download_bytes_per_s=bytes_per_s,
        upload_bytes_per_s=bytes_per_s,
    )


def _per_inference_s(model: str) -> float:
    """Return the seconds of training a sample for each millisecond of a MobileNet inference."""
    return TRAINING_PER_INFERENCE * RELATIVE_COST[model] / 1000


def _training(name: str, profile: Profile, model: str) -> TrainingFigures:
    """Return what training the timing model costs on devices of a profile."""
    if model in RELATIVE_COST:
        sample_s = profile.inference_ms * _per_inference_s(model)
        return TrainingFigures(step_s=0.0, sample_s=sample_s)
    if model not in profile.training:
        measured = ", ".join(profile.training) or "none"
        raise InputError(
            f"timing.model is own, but profile {name} has not measured model {model!r} (measured: "
            f"{measured}); measure it with fedio probe, or name another timing model"
        )
    return profile.training[model]


def _decode(profile: Profile, declared_bytes_per_s: float) -> DecodeFigures:
    """Return what decoding costs on devices of a profile."""
    return profile.decode or DecodeFigures(sample_s=0.0, bytes_per_s=declared_bytes_per_s)


def _apportion(shares: list[float], total: int) -> np.ndarray:
    """Split `total` in proportion to `shares` by largest remainder."""
    exact = np.array(shares) / sum(shares) * total
    counts = np.floor(exact).astype(np.int64)
    for position in np.argsort(counts - exact, kind="stable")[: total - counts.sum()]:
        counts[position] += 1
    return counts
