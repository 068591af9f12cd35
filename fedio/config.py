"""An experiment: its TOML file, validated, with every default filled in.

A file names what it changes; everything else has the defaults below. `--set a.b=c` overrides a
key. An unknown key, a wrong unit or an impossible value is an `InputError` that names the file,
the key and the choices.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedio.errors import InputError
from fedio.plugins import unknown

DEFAULT_CACHE_SHARE = 0.2

Positive = Annotated[int, Field(gt=0, le=10**6)]
Size = Annotated[float, Field(gt=0, le=1e15)]
ArmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$")]

# Found as a resource and not imported: this house knows nothing of the ones above it.
PRESETS = resources.files("experiments") / "presets"


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
    data set is divided.
    """

    kind: Literal["iid", "dirichlet", "pathological"] = "iid"
    alpha: float = Field(default=0.3, gt=0)
    classes_per_client: Positive = 2
    samples: LogNormal | None = None


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
    """Local training: SGD on S steps of B samples, with the loss of each sample."""

    local_steps: Positive = 8
    batch_size: Positive = 20
    lr: float = Field(default=0.05, gt=0)
    lr_decay: float = Field(default=1.0, gt=0, le=1)
    lr_decay_every_rounds: Positive = 10
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    accelerator: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")

    @property
    def accesses(self) -> int:
        """Samples that a participation trains: S x B."""
        return self.local_steps * self.batch_size

    def lr_of(self, server_round: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        return float(self.lr * self.lr_decay ** ((server_round - 1) // self.lr_decay_every_rounds))


class Timing(Section):
    """The timing model: which network's cost the virtual clock charges per sample."""

    model: Literal["mobilenet", "shufflenet", "resnet", "albert"] = "mobilenet"


class FleetMix(Section):
    """The devices: shares of profiles, and the spread of speeds within a class."""

    profiles: dict[str, Annotated[float, Field(gt=0, le=1e9)]] = {"phone-mid": 1.0}
    spread: float = Field(default=0.0, ge=0, le=2)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.profiles:
            raise ValueError("needs at least one profile")
        return self


class Cache(Section):
    """Each client's cache: a share of its samples' bytes, or a budget in bytes.

    A cache on disk survives the end of the process in any case; `durable` ones survive the loss of
    the machine too, and `keep` leaves them there when the run has finished.
    """

    share: float | None = Field(default=None, ge=0, le=100)
    budget_bytes: int | None = Field(default=None, ge=0, le=2**44)
    store: Literal["lmdb", "memory"] = "lmdb"
    durable: bool = False
    keep: bool = False

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

    `deadline_s` is on the run's clock. The two timeouts are wall-clock seconds: to wait for all
    nodes, and for a round's replies (without it, until all are there; a client that misses it has
    failed, so in virtual time it makes the results depend on the machine).
    """

    rounds: Positive = 10
    cohort: Positive = 5
    over_commitment: float = Field(default=1.0, ge=1, le=1000)
    deadline_s: float | None = Field(default=None, gt=0)
    empty_rounds: Positive = 5
    evaluate_every: Positive = 1
    reply_timeout_s: float | None = Field(default=None, gt=0)
    roster_timeout_s: float = Field(default=120.0, gt=0)


class Engine(Section):
    """How the inline engine runs: in this process (0) or in that many worker processes."""

    workers: int = Field(default=0, ge=0)


class Arm(Section):
    """What is compared: who trains, what is cached, which samples are trained.

    `weighting` is how replies are averaged: by each client's number of samples, or all alike.
    """

    selector: PluginSpec = Spec(name="uniform")
    policy: PluginSpec = Spec(name="lru")
    sampler: PluginSpec = Spec(name="uniform")
    weighting: Literal["samples", "equal"] = "samples"
    kind: Literal["arm", "bound", "control"] = "arm"


class Compare(Section):
    """The comparison: which arms, over which seeds, to which accuracy."""

    arms: list[str] = []
    quick_arms: list[str] = []
    reference: str = ""
    target_accuracy: float = Field(default=0.8, gt=0, lt=1)
    seeds: Positive = 1
    quick_seeds: Positive = 1


class Experiment(Section):
    """Everything that determines a run, but for the version of the code."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    description: str = ""
    seed: int = Field(default=0, ge=0)
    arm: str = ""
    data: Data = Data()
    model: PluginSpec = Spec(name="mlp")
    training: Training = Training()
    timing: Timing = Timing()
    fleet: FleetMix = FleetMix()
    cache: Cache = Cache()
    rounds: Rounds = Rounds()
    engine: Engine = Engine()
    arms: dict[ArmName, Arm] = {"uniform+lru": Arm()}
    compare: Compare = Compare()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.arms:
            raise ValueError("arms: needs at least one")
        if self.rounds.cohort > self.data.clients:
            raise ValueError(
                f"rounds.cohort is {self.rounds.cohort} but data.clients is {self.data.clients}: "
                "a round cannot train more clients than there are"
            )
        wanted = [("arm", self.arm), ("compare.reference", self.compare.reference)]
        wanted += [("compare.arms", name) for name in self.compare.arms]
        wanted += [("compare.quick_arms", name) for name in self.compare.quick_arms]
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
            InputError: there is no such arm.
        """
        name = name or self.arm or next(iter(self.arms))
        if name not in self.arms:
            raise InputError(unknown("arm", name, list(self.arms)))
        return self.model_copy(update={"arm": name, "seed": self.seed if seed is None else seed})

    def to_toml(self) -> str:
        """Return the resolved experiment as TOML that loads to an equal one."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def digest(self) -> str:
        """A hash of what determines a run's results: setting, seed and the chosen arm."""
        arm = self.chosen.model_dump(mode="json", exclude={"kind"})
        return _hash([self.setting, self.seed, arm])

    @property
    def setting(self) -> str:
        """A hash of what the runs of a comparison share: all but arms, seed and how it is run."""
        ways = {"arm", "arms", "seed", "engine", "compare", "description"}
        values = self.model_dump(mode="json", exclude=ways)
        del values["data"]["folder"], values["cache"]["keep"], values["cache"]["durable"]
        return _hash(values)


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def load(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """Load an experiment file and apply overrides of the form `a.b=value` (a TOML value).

    Raises:
        InputError: no file, no TOML, an unknown key or an impossible value.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    for override in overrides:
        _override(values, override)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        shown = path.name if path.parent == Path(str(PRESETS)) else path
        raise InputError(f"{shown}: {_explain(error)}") from error


def _override(values: dict[str, Any], override: str) -> None:
    """Set one dotted key of the parsed file to a TOML value, or to the text itself."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise InputError(f"--set takes key=value, as in rounds.cohort=5; got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, last = key.split(".")
    table = values
    for name in tables:
        inner = table.setdefault(name, {})
        if isinstance(inner, str):  # a plug-in's bare name
            inner = table[name] = {"name": inner}
        if not isinstance(inner, dict):
            raise InputError(f"--set {override}: {name} is not a table")
        table = inner
    table[last] = value


def _explain(error: ValidationError) -> str:
    """Turn the first finding of pydantic into one line with the key and the choices."""
    found = error.errors()[0]
    where = [str(part) for part in found["loc"] if part != "function-before[_spec(), Spec]"]
    key = ".".join(where)
    if found["type"] == "extra_forbidden":
        known = _keys_at(where[:-1])
        near = difflib.get_close_matches(where[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown key {key!r}: {hint}known here: {', '.join(known)}"
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] in {"model_type", "dict_type"}:
        known = _keys_at(where)
        message = "it is a table" + (f" with the keys {', '.join(known)}" if known else "")
    given = found["input"]
    shown = f", got {given!r}" if isinstance(given, str | int | float | bool) else ""
    return f"{key}: {message}{shown}" if key else message


def _keys_at(path: Iterable[str]) -> list[str]:
    """Return the keys that the table at `path` may have."""
    section: object = Experiment
    for name in path:
        if _is_model(section) and name in section.model_fields:  # else: the name of an arm
            section = _model_in(section.model_fields[name].annotation)
    return sorted(section.model_fields) if _is_model(section) else []


def _is_model(value: object) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _model_in(annotation: object) -> object:
    """Return the section within an annotation such as `Section | None` or `dict[str, Section]`."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for inner in typing.get_args(annotation):
            if _is_model(found := _model_in(inner)):
                return found
    return annotation


def differing_keys(one: Experiment, other: Experiment) -> list[str]:
    """Return the dotted keys in which two experiments differ."""

    def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in values.items():
            name = f"{prefix}{key}"
            out |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
        return out

    a, b = flat(one.model_dump(mode="json")), flat(other.model_dump(mode="json"))
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def find(name: str) -> Path:
    """Return the file of an experiment: a path to a TOML file, or the name of a preset.

    Raises:
        InputError: neither a preset nor a file.
    """
    if name in presets():
        return Path(str(PRESETS / f"{name}.toml"))
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"no experiment file {name}")
    raise InputError(unknown("preset", name, presets()))


def presets() -> list[str]:
    """Return the names of the presets that come with fedio."""
    return sorted(p.name[:-5] for p in PRESETS.iterdir() if p.name.endswith(".toml"))


def from_run_config(run_config: Mapping[str, Any]) -> Experiment:
    """Return the experiment that Flower's run config names: keys `experiment` and `overrides`.

    `overrides` holds `key=value` pairs, one a line.
    """
    overrides = str(run_config.get("overrides", "")).splitlines()
    return load(find(str(run_config["experiment"])), overrides)
