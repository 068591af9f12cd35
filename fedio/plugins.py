"""Find a plug-in by name: in the table the caller hands over, or as `package.module:Class`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from fedio.errors import InputError

Plugin = TypeVar("Plugin")


class Named(Protocol):
    """What a plug-in is called in a configuration, and the arguments it gets."""

    @property
    def name(self) -> str:
        """The row of a table, or `package.module:Class`."""

    @property
    def args(self) -> dict[str, Any]:
        """Keyword arguments for the class."""


def resolve(
    spec: Named, table: Mapping[str, Callable[..., Plugin]], kind: str
) -> Callable[..., Plugin]:
    """Return the class or function that `spec.name` stands for.

    Args:
        spec: the name and arguments from the configuration.
        table: the known ones of this kind.
        kind: what they are, for the message ("policy", "selector").

    Raises:
        InputError: the name is neither in the table nor importable, or its module fails.
    """
    if spec.name in table:
        return table[spec.name]
    if ":" not in spec.name:
        raise InputError(unknown(kind, spec.name, table))
    module_name, _, attribute = spec.name.partition(":")
    try:
        found: Callable[..., Plugin] = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # what a module does when imported may be anything
        raise InputError(
            f"cannot load {kind} {spec.name!r}: {type(error).__name__}: {error}; "
            "name it package.module:Class and put it on the Python path"
        ) from error
    return found


def create(
    spec: Named,
    table: Mapping[str, Callable[..., Plugin]],
    abc: type[Plugin],
    *given: Any,
) -> Plugin:
    """Return an instance of the plug-in, made with `given` and then the arguments of the spec.

    Raises:
        InputError: unknown name, arguments it does not take, or not an `abc`.
    """
    kind = abc.__name__.lower()
    make = resolve(spec, table, kind)
    if isinstance(make, type) and not issubclass(make, abc):
        raise InputError(f"{kind} {spec.name!r} is the class {make.__name__}, not a {abc.__name__}")
    try:
        made = make(*given, **spec.args)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{kind} {spec.name!r} does not take {spec.args}: {error}") from error
    if not isinstance(made, abc):
        raise InputError(f"{kind} {spec.name!r} is a {type(made).__name__}, not a {abc.__name__}")
    return made


def unknown(kind: str, name: str, known: Mapping[str, object] | list[str]) -> str:
    """Return the one line for an unknown name: what was meant, and what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}known: {', '.join(names)}"
