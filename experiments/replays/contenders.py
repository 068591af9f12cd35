"""Which policies a replay compares."""

from __future__ import annotations

import json
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
        if self.is_theirs:
            return False
        try:
            recorded: object = json.loads(trace.policy)
        except ValueError:  # a synthetic trace names none
            return False
        return recorded == self.spec.model_dump(mode="json")


def contenders_of(names: Sequence[str], trace: Trace) -> list[Contender]:
    """Return the policies in comma-separated lists, each once; all of ours if there are none.

    All of ours are, if the trace has no losses, those that do not learn from them.

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
