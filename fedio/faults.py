"""Faults on purpose: what strikes a client in a round, the same for all who ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedio.config import Experiment, Fault, Faults
from fedio.seeds import Purpose, rng

AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(frozen=True, slots=True)
class Struck:
    """What goes wrong with one participation on purpose.

    Attributes:
        kill: whether its device ends in the middle of it.
        stop_s: for how long its device stands still.
        storage_slowdown: how many times as long storage takes, both tiers.
        full_disk: whether nothing can be written into the cache.
        corrupt_cache: whether the file of its cache is damaged before it begins.
    """

    kill: bool = False
    stop_s: float = 0.0
    storage_slowdown: float = 1.0
    full_disk: bool = False
    corrupt_cache: bool = False

    @property
    def names(self) -> list[str]:
        """What strikes, as the experiment's `faults` name it."""
        return [
            name
            for name, strikes in (
                ("kill", self.kill),
                ("stop", self.stop_s > 0),
                ("slow_storage", self.storage_slowdown > 1),
                ("full_disk", self.full_disk),
                ("corrupt_cache", self.corrupt_cache),
            )
            if strikes
        ]


UNHARMED = Struck()
NONE = Faults()


def struck(experiment: Experiment, client: int, server_round: int) -> Struck:
    """Return what strikes a client's participation in a round; of several of a kind the worst."""
    faults = experiment.faults
    if faults == NONE:
        return UNHARMED
    generator = rng(experiment.seed, Purpose.FAULTS, client, server_round)

    def striking(kind: Sequence[AnyFault]) -> list[AnyFault]:
        """Return those that strike; each draws in any case, for the luck of the others."""
        luck = generator.random(len(kind))
        return [
            fault
            for fault, drawn in zip(kind, luck.tolist(), strict=True)
            if (fault.round == server_round if fault.rate is None else drawn < fault.rate)
            and (fault.clients is None or client in fault.clients)
        ]

    return Struck(
        kill=bool(striking(faults.kill)),
        stop_s=max((fault.seconds for fault in striking(faults.stop)), default=0.0),
        storage_slowdown=max((one.factor for one in striking(faults.slow_storage)), default=1.0),
        full_disk=bool(striking(faults.full_disk)),
        corrupt_cache=bool(striking(faults.corrupt_cache)),
    )
