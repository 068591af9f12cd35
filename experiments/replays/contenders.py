"""Which policies a replay compares."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.replays import libcachesim
from experiments.replays.sources import named_call, split
from fedio.config import Spec
from fedio.errors import InputError
from fedio.plugins import create, unknown
from storage import Policy
from storage.policies import POLICIES
from storage.trace import Trace

ALL = "all"
THEIRS = "libcachesim"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy that is replayed.

    Attributes:
        name: as the user gave it.
        spec: of one of ours or a plug-in, or, under its own name, of one of libCacheSim's.
        is_theirs: whether it is libCacheSim's.
    """

    name: str
    spec: Spec
    is_theirs: bool = False

    def policy(self, samples: int) -> Policy:
        """Return a fresh policy, of ours or a plug-in.

        Raises:
            InputError: there is none, or it does not take these arguments.
        """
        return create(self.spec, POLICIES, Policy, samples)  # type: ignore[type-abstract]

    def was_recorded(self, trace: Trace) -> bool:
        """Whether the run that left the trace had this policy."""
        return not self.is_theirs and self.spec == recorded_policy(trace)


def recorded_policy(trace: Trace) -> Spec | None:
    """Return the policy of the run that left the trace; a synthetic one names none."""
    try:
        return Spec.model_validate_json(trace.policy)
    except ValueError:
        return None


def written(spec: Spec) -> str:
    """Return a policy as one would ask for it."""
    arguments = ", ".join(f"{key}={value}" for key, value in spec.args.items())
    return f"{spec.name}({arguments})" if arguments else spec.name


def contenders_of(names: Sequence[str], trace: Trace) -> list[Contender]:
    """Return the policies in comma-separated lists, each once; all of ours if there are none.

    All of ours are the table, and what was recorded unless it is a plug-in; if the trace has no
    losses, without those that learn from them.

    Raises:
        InputError: there is no such policy, or it needs what is not installed.
    """
    found: dict[str, Contender] = {}
    for name in [part for text in names for part in split(text)] or [ALL]:
        kind, _, one = name.partition(":")
        if name == ALL:
            has_losses = any(len(stream.losses) for stream in trace.streams)
            chosen = [each for each in POLICIES if has_losses or not POLICIES[each](1).learns]
            found |= {each: Contender(each, Spec(name=each)) for each in chosen}
            recorded = recorded_policy(trace)
            if recorded and recorded not in [contender.spec for contender in found.values()]:
                found |= _of_record(recorded)
        elif kind == THEIRS:
            known = libcachesim.policies()
            if one and one not in known:
                raise InputError(unknown("policy of libCacheSim", one, known))
            for each in [one] if one else known:
                label = f"{THEIRS}:{each}"
                found[label] = Contender(label, Spec(name=each), is_theirs=True)
        else:
            plain, arguments = named_call(name)
            found[name] = Contender(name, Spec(name=plain, args=arguments))
            found[name].policy(1)  # find out before the work
    return list(found.values())


def _of_record(spec: Spec) -> dict[str, Contender]:
    """Return the recorded policy by name, or nothing and a warning where it cannot be had.

    A plug-in is imported only if the user names it: a trace may come from anywhere.
    """
    contender = Contender(written(spec), spec)
    if spec.name not in POLICIES:
        _log.warning("left out the recorded %s: name it with --policies", contender.name)
        return {}
    try:
        contender.policy(1)
    except InputError as error:
        _log.warning("left out the recorded policy: %s", error)
        return {}
    return {contender.name: contender}
