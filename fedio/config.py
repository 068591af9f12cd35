"""An experiment: everything that determines a run, section by section, with its defaults.

A file names what it changes (`fedio.loading`); everything else is as below.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedio.errors import InputError
from fedio.plugins import unknown

DEFAULT_CACHE_SHARE = 0.2

Positive = Annotated[int, Field(gt=0, le=10**6)]
Size = Annotated[float, Field(gt=0, le=1e15)]
Seconds = Annotated[float, Field(gt=0)]
CellName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+% -]{0,99}$")]
ArmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$")]


class Section(BaseModel):
    """A table of the file: frozen, and nothing unknown in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Spec(Section):
    """A plug-in by name, with its arguments; a bare string is short for a name without any."""

    name: str
    args: dict[str, Any] = {}


def _spec(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


PluginSpec = Annotated[Spec, BeforeValidator(_spec)]


class LogNormal(Section):
    """Sizes around a median, spread by `sigma` (of the logarithm), clipped to [min, max]."""

    median: Size
    sigma: float = Field(default=0.0, ge=0, le=10)
    min: Size
    max: Size

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.median <= self.max:
            raise ValueError("needs min <= median <= max")
        return self


class Partition(Section):
    """How the training samples are divided among the clients.

    `iid`: at random. `dirichlet`: label shares ~ Dirichlet(alpha). `pathological`: a fixed number
    of classes per client. `samples` draws each client's number of samples; without it the whole
    data set is divided. For a share `slow_labels` of the clients, the slower a device computes, the
    more of its samples are of the last classes.
    """

    kind: Literal["iid", "dirichlet", "pathological"] = "iid"
    alpha: float = Field(default=0.3, gt=0)
    classes_per_client: Positive = 2
    samples: LogNormal | None = None
    slow_labels: float = Field(default=0.0, ge=0, le=1)


class Nominal(Section):
    """Declared sizes for a small data set, drawn per sample: the timing of larger photos.

    Tiers time and budgets charge these bytes; the payload stays what it is.
    """

    size_bytes: LogNormal
    prepared_bytes: int = Field(gt=0, le=10**15)


class Data(Section):
    """The samples: data set, clients, who has what, what a sample weighs."""

    dataset: PluginSpec = Spec(name="photos")
    folder: str = ""
    clients: Positive = 10
    partition: Partition = Partition()
    holdout: float = Field(default=0.1, ge=0, lt=1)
    nominal: Nominal | None = None
    decode_bytes_per_s: float = Field(default=100e6, ge=1)

    @property
    def home(self) -> Path:
        """The folder for data sets and prepared partitions."""
        if not self.folder:
            return Path.home() / ".cache" / "fedio"
        return Path(os.path.expanduser(self.folder))  # noqa: PTH111 - takes an unknown user as is


class Training(Section):
    """Local training: SGD on S steps of B samples, with the loss of each sample.

    With `bfloat16` precision the forward pass is autocast; weights stay float32.
    """

    local_steps: Positive = 8
    batch_size: Positive = 20
    lr: float = Field(default=0.05, gt=0)
    lr_decay: float = Field(default=1.0, gt=0, le=1)
    lr_decay_every_rounds: Positive = 10
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    accelerator: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")
    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def accesses(self) -> int:
        """Samples that a participation trains: S x B."""
        return self.local_steps * self.batch_size

    def lr_of(self, server_round: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        return float(self.lr * self.lr_decay ** ((server_round - 1) // self.lr_decay_every_rounds))


class Timing(Section):
    """The timing model: which network's cost the virtual clock charges per sample.

    `own` is the network that is trained, as the device profiles have measured it (`fedio probe`).
    """

    model: Literal["mobilenet", "shufflenet", "resnet", "albert", "femnist-cnn", "own"] = (
        "mobilenet"
    )


class FleetMix(Section):
    """The devices: shares of profiles, and the spread of speeds within a class.

    `capacity` is a trace of measured devices (JSON, CSV or FedScale's pickle): with it compute and
    network are theirs, and the profiles give storage and memory. `storage` names one profile whose
    tiers all devices have, whatever their own profiles say.
    """

    profiles: dict[str, Annotated[float, Field(gt=0, le=1e9)]] = {"phone-mid": 1.0}
    spread: float = Field(default=0.0, ge=0, le=2)
    capacity: str = ""
    storage: str = ""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.profiles:
            raise ValueError("needs at least one profile")
        return self


class Availability(Section):
    """When devices are there: only then can they be selected, and only then do they work.

    `trace`: as in a file (JSON, CSV or FedScale's pickle), which repeats when it is over.
    `periodic`: for a `share` of every `period_s`, each device with a phase of its own. `random`:
    stays and absences of random length (exponential), `stay_s` and `absence_s` on average. Who
    leaves in mid-round aborts its work, or resumes it when it is back. Devices forecast how long
    they will be there in the next `forecast_s`, and are right in a share of the cases.
    """

    kind: Literal["always", "trace", "periodic", "random"] = "always"
    file: str = ""
    period_s: float = Field(default=86_400.0, gt=0, le=1e9)
    share: float = Field(default=0.5, gt=0, le=1)
    stay_s: float = Field(default=3_600.0, gt=0, le=1e9)
    absence_s: float = Field(default=3_600.0, gt=0, le=1e9)
    on_leave: Literal["abort", "resume"] = "abort"
    forecast_s: float = Field(default=3_600.0, gt=0, le=1e9)
    forecast_accuracy: float = Field(default=0.9, ge=0, le=1)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.kind == "trace") != bool(self.file):
            raise ValueError("kind = 'trace' goes with a file, and a file with it")
        return self


class Cache(Section):
    """Each client's cache: a share of its samples' bytes, or a budget in bytes.

    A cache on disk survives the end of the process in any case; `durable` ones survive the loss of
    the machine too, and `keep` leaves them there when the run has finished. Staging stops for a
    client whose cache was written `daily_write_bytes` in a day, by whatever.
    """

    share: float | None = Field(default=None, ge=0, le=100)
    budget_bytes: int | None = Field(default=None, ge=0, le=2**44)
    store: Literal["lmdb", "memory"] = "lmdb"
    durable: bool = False
    keep: bool = False
    daily_write_bytes: int | None = Field(default=None, ge=0, le=2**60)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.share is not None and self.budget_bytes is not None:
            raise ValueError("give share or budget_bytes, not both")
        return self

    def budget_of(self, samples_bytes: int) -> int:
        """Return the budget in bytes of a client whose samples are `samples_bytes` in all."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        return int((DEFAULT_CACHE_SHARE if self.share is None else self.share) * samples_bytes)


class Rounds(Section):
    """The server's rounds: K clients count, of a cohort that may be larger.

    A round that brings fewer than `minimum` usable replies leaves the model as it is, and so many
    of them in a row end the run. `deadline_s` is on the run's clock: one figure, or pairs of the
    first round that it holds for and the seconds. Clients that are late `finish` what they do, and
    are busy until then, or are told to `cancel` it when the round ends.

    A run ends before its last round with the one in which `horizon_s` of its clock are over, so
    that arms can be given equal time instead of equal rounds (what was evaluated later does not
    count), or with the one in which an evaluation, and the two before it, had `stop_accuracy`.

    The two timeouts are wall-clock seconds: to wait for all nodes, and for a round's replies
    (without it, until all are there; a client that misses it has failed, so in virtual time it
    makes the results depend on the machine).
    """

    rounds: Positive = 10
    cohort: Positive = 5
    over_commitment: float = Field(default=1.0, ge=1, le=1000)
    minimum: Positive = 1
    deadline_s: Seconds | list[tuple[Positive, Seconds]] | None = None
    late: Literal["finish", "cancel"] = "finish"
    empty_rounds: Positive = 5
    evaluate_every: Positive = 1
    horizon_s: Seconds | None = None
    stop_accuracy: float | None = Field(default=None, gt=0, lt=1)
    reply_timeout_s: float | None = Field(default=None, gt=0)
    roster_timeout_s: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.minimum > self.cohort:
            raise ValueError(f"minimum is {self.minimum}, more than the cohort of {self.cohort}")
        if isinstance(self.deadline_s, list):
            first = [server_round for server_round, _ in self.deadline_s]
            if first != sorted(set(first)) or first[:1] != [1]:
                raise ValueError("deadline_s: rounds must start at 1 and increase")
        return self

    def deadline_of(self, server_round: int) -> float | None:
        """Return the deadline of a round in seconds from its start, if it has one."""
        if not isinstance(self.deadline_s, list):
            return self.deadline_s
        return [seconds for first, seconds in self.deadline_s if first <= server_round][-1]


class Engine(Section):
    """How a run is carried out; nothing here but the clock changes its results.

    Inline: that many workers, 0 is this process. Flower: that many Ray actors, 0 is one a core.
    `record_trace` has the run leave a trace: all that its caches were asked for, in order. With
    `checkpoints` it can be resumed after each of its rounds.

    By the `virtual` clock participations take what the cost model makes of their counts; by the
    `wall` clock they take what the devices have measured, in real time. Emulation sets it.
    """

    workers: int = Field(default=0, ge=0)
    record_trace: bool = False
    checkpoints: bool = True
    clock: Literal["virtual", "wall"] = "virtual"


class Emulation(Section):
    """Devices in real time: how they keep it, and how closely they are watched.

    At the `profile`'s pace storage is throttled, and computing, decoding and the network are waited
    for, until the time is over that the device's profile says; `none` is as fast as this machine
    can. Processes are looked at every `telemetry_s`, and their memory, which takes longer to find
    out, every `memory_s`.
    """

    pace: Literal["profile", "none"] = "profile"
    telemetry_s: float = Field(default=1.0, ge=0.1, le=3600)
    memory_s: float = Field(default=15.0, ge=0.1, le=3600)


class Fault(Section):
    """When something goes wrong on purpose: in one round, or at a rate per participation.

    It strikes the clients named, or any.
    """

    round: Positive | None = None
    rate: float | None = Field(default=None, gt=0, le=1)
    clients: list[Annotated[int, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.round is None) == (self.rate is None):
            raise ValueError("give a round or a rate, one of the two")
        return self


class Stop(Fault):
    """A fault that stops a device for so many seconds."""

    seconds: float = Field(default=30.0, gt=0, le=1e6)


class SlowStorage(Fault):
    """A fault that makes a device's storage, both tiers, so many times slower."""

    factor: float = Field(default=10.0, gt=1, le=1e4)


def _several(value: object) -> object:
    return value if isinstance(value, list) else [value]


class Faults(Section):
    """What goes wrong on purpose while clients train.

    `kill`: the device ends in the middle, and its participation is lost. `stop`: it stands still
    for a while. `slow_storage`: for this participation. `full_disk`: nothing can be written into
    the cache. `corrupt_cache`: the file of the cache is damaged before it is opened.

    Each is one table, or a list of them: `kill = { round = 3, clients = [1] }`,
    `stop = { rate = 0.05, seconds = 20 }`.
    """

    kill: Annotated[list[Fault], BeforeValidator(_several)] = []
    stop: Annotated[list[Stop], BeforeValidator(_several)] = []
    slow_storage: Annotated[list[SlowStorage], BeforeValidator(_several)] = []
    full_disk: Annotated[list[Fault], BeforeValidator(_several)] = []
    corrupt_cache: Annotated[list[Fault], BeforeValidator(_several)] = []


class Arm(Section):
    """What is compared: who trains, what is cached, which samples are trained, how they get there.

    `prefetch`: the next batches are read while one is trained. `form`: samples are cached
    `encoded`, as they are at the origin, `prepared`, as they are trained, or whichever is `best`:
    saves more seconds per byte of cache. `staging`: who is named for the next round fills its cache
    while it is idle.

    `cache` bounds say what a better policy could win at most: `unbounded` caches hold all that was
    ever read, `warm` ones hold all samples before the first round, uncharged.

    `aggregation` is what becomes of the replies; `weighting` is how they are averaged: by each
    client's number of samples, or all alike. `local_work`: each client of a cohort takes as many
    steps, or as many as let them finish `together`, by what they claim. With `fednova` an update
    counts per step, so that who takes more of them does not draw the model its way.
    """

    selector: PluginSpec = Spec(name="uniform")
    policy: PluginSpec = Spec(name="lru")
    sampler: PluginSpec = Spec(name="uniform")
    prefetch: bool = True
    form: Literal["encoded", "prepared", "best"] = "encoded"
    staging: bool = False
    cache: Literal["bounded", "unbounded", "warm"] = "bounded"
    aggregation: PluginSpec = Spec(name="fedavg")
    weighting: Literal["samples", "equal"] = "samples"
    local_work: Literal["equal", "together"] = "equal"
    normalisation: Literal["none", "fednova"] = "none"
    kind: Literal["arm", "bound", "control"] = "arm"


class Compare(Section):
    """The comparison: which arms, over which seeds, to which accuracy.

    `arm_seeds` is for arms that get another number of seeds than the rest.
    """

    arms: list[str] = []
    quick_arms: list[str] = []
    reference: str = ""
    target_accuracy: float = Field(default=0.8, gt=0, lt=1)
    seeds: Positive = 1
    arm_seeds: dict[ArmName, Positive] = {}
    quick_seeds: Positive = 1


class Axis(Section):
    """One question of a map: the same comparison in several cells, which differ in one respect.

    `cells` are what each changes, by dotted key; the cell named `base` changes nothing and is
    shared with the other axes. `question` is what is asked, `regime` what was expected before the
    first run.
    """

    title: str
    question: str
    regime: str
    base: str = ""
    arms: list[str] = []
    cells: dict[CellName, dict[str, Any]]

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.cells:
            raise ValueError("cells: needs at least one")
        if self.base and self.cells.get(self.base) != {}:
            raise ValueError(f"base is {self.base!r}, which must be a cell that changes nothing")
        return self


class Map(Section):
    """A map: comparisons along axes, to find in which regime which part of an arm matters."""

    axes: dict[CellName, Axis] = {}


class Experiment(Section):
    """Everything that determines a run, but for the version of the code.

    `cell` says which cell of its map an experiment is, as `axis/cell`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    description: str = ""
    seed: int = Field(default=0, ge=0)
    arm: str = ""
    data: Data = Data()
    model: PluginSpec = Spec(name="mlp")
    training: Training = Training()
    timing: Timing = Timing()
    fleet: FleetMix = FleetMix()
    availability: Availability = Availability()
    cache: Cache = Cache()
    rounds: Rounds = Rounds()
    engine: Engine = Engine()
    emulation: Emulation = Emulation()
    faults: Faults = Faults()
    arms: dict[ArmName, Arm] = {"uniform+lru": Arm()}
    compare: Compare = Compare()
    map: Map = Map()
    cell: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.arms:
            raise ValueError("arms: needs at least one")
        if self.rounds.cohort > self.data.clients:
            raise ValueError(
                f"rounds.cohort is {self.rounds.cohort} but data.clients is {self.data.clients}: "
                "a round cannot train more clients than there are"
            )
        if self.faults.corrupt_cache and self.cache.store == "memory":
            raise ValueError(
                "faults.corrupt_cache damages a file, and with cache.store = 'memory' there is none"
            )
        wanted = [("arm", self.arm), ("compare.reference", self.compare.reference)]
        wanted += [("compare.arms", name) for name in self.compare.arms]
        wanted += [("compare.quick_arms", name) for name in self.compare.quick_arms]
        wanted += [("compare.arm_seeds", name) for name in self.compare.arm_seeds]
        for label, axis in self.map.axes.items():
            wanted += [(f"map.axes.{label}.arms", name) for name in axis.arms]
        for key, name in wanted:
            if name and name not in self.arms:
                raise ValueError(f"{key}: {unknown('arm', name, list(self.arms))}")
        return self

    @property
    def chosen(self) -> Arm:
        """The arm that runs: the one named by `arm`, else the first."""
        return self.arms[self.arm or next(iter(self.arms))]

    def for_arm(self, name: str | None = None, seed: int | None = None) -> Experiment:
        """Return the same experiment with that arm chosen, and that seed.

        Raises:
            InputError: there is no such arm, or it cannot leave the trace that is asked for.
        """
        name = name or self.arm or next(iter(self.arms))
        if name not in self.arms:
            raise InputError(unknown("arm", name, list(self.arms)))
        if self.engine.record_trace and self.arms[name].cache == "warm":
            raise InputError(
                f"arm {name} begins with warm caches, which a trace cannot say: leave the trace "
                "out, or choose an arm whose caches are bounded or unbounded"
            )
        return self.model_copy(update={"arm": name, "seed": self.seed if seed is None else seed})

    def to_toml(self) -> str:
        """Return the resolved experiment as TOML that loads to an equal one."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def digest(self) -> str:
        """A hash of what determines a run's results: setting, seed and the chosen arm."""
        arm = self.chosen.model_dump(mode="json", exclude={"kind"})
        parts = [self.setting, self.seed, arm]
        if self.engine.clock == "wall":
            parts.append(self.emulation.pace)
        return _hash(parts)

    @property
    def setting(self) -> str:
        """A hash of what the runs of a comparison share: all but arms, seed and how it is run."""
        ways = {"arm", "arms", "seed", "engine", "emulation", "compare", "description"}
        ways |= {"map", "cell"}
        values = self.model_dump(mode="json", exclude=ways)
        del values["data"]["folder"], values["cache"]["keep"], values["cache"]["durable"]
        return _hash(values)


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
