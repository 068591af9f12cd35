"""Finding and loading experiment files.

A file may extend another: `extends = "headline"`.

`--set a.b=c` overrides a key. An unknown key, a wrong unit or an impossible value is an
`InputError` that names the file, the key and the choices.
"""

from __future__ import annotations

import copy
import difflib
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedio.config import Experiment
from fedio.errors import InputError
from fedio.plugins import unknown

# Found as a resource and not imported: this house knows nothing of the ones above it.
PRESETS = resources.files("experiments") / "presets"


def load(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """Load an experiment file and apply overrides of the form `a.b=value` (a TOML value).

    Raises:
        InputError: no file, no TOML, an unknown key or an impossible value.
    """
    values = _values(path)
    for override in overrides:
        _override(values, override)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        shown = path.name if path.parent == Path(str(PRESETS)) else path
        raise InputError(f"{shown}: {_explain(error)}") from error


def with_values(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment with other values for some dotted keys.

    Raises:
        InputError: an unknown key or an impossible value.
    """
    values = experiment.model_dump(mode="json", exclude_none=True)
    for key, value in changes.items():
        _set(values, key, copy.deepcopy(value), f"{key} = {value!r}")
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise InputError(_explain(error)) from error


def _values(path: Path, inner: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return what a file says, over what the one says that it `extends`: a preset, or a path.

    Tables are merged key by key, but for one that names a plug-in and the cells of a map's axis:
    these, and everything else, are replaced. A path is taken from the folder of the file that names
    it.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    if "extends" not in values:
        return values
    name = values.pop("extends")
    if not isinstance(name, str):
        raise InputError(f"{path}: extends: names a preset or a file, got {name!r}")
    try:
        base = find(name if name in presets() else str(path.parent / Path(name).expanduser()))
    except (InputError, RuntimeError) as error:  # no home is a RuntimeError
        raise InputError(f"{path}: extends: {error}; presets: {', '.join(presets())}") from error
    if base.resolve() in {file.resolve() for file in (*inner, path)}:
        raise InputError(f"{path}: extends: {name} extends it in turn")
    return _merged(_values(base, (*inner, path)), values)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables as one, the second over the first."""
    both = {
        key: _merged(base[key], value)
        for key, value in over.items()
        if isinstance(value, dict)
        and isinstance(base.get(key), dict)
        and "name" not in value
        and key != "cells"
    }
    return {**base, **over, **both}


def _override(values: dict[str, Any], override: str) -> None:
    """Set one dotted key of the parsed file to a TOML value, or to the text itself."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise InputError(f"--set takes key=value, as in rounds.cohort=5; got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    _set(values, key, value, f"--set {override}")


def _set(values: dict[str, Any], key: str, value: object, where: str) -> None:
    """Set a dotted key of a parsed file."""
    *tables, last = key.split(".")
    table = values
    for name in tables:
        inner = table.setdefault(name, {})
        if isinstance(inner, str):  # a plug-in's bare name
            inner = table[name] = {"name": inner}
        if not isinstance(inner, dict):
            raise InputError(f"{where}: {name} is not a table")
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
