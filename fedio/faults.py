"""Faults on purpose: what strikes a client in a round, the same for all who ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedio.config import Experiment, Fault, Faults
from fedio.errors import InputError
from fedio.seeds import Purpose, rng

AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(frozen=True, slots=True)
class Struck:
    """What goes wrong with one participation on purpose.

    Attributes:
        kill: whether its device ends in the middle of it.
        stop_s: for how long its device stands still, in the middle too.
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
        strikes = {
            "kill": self.kill,
            "stop": self.stop_s > 0,
            "slow_storage": self.storage_slowdown > 1,
            "full_disk": self.full_disk,
            "corrupt_cache": self.corrupt_cache,
        }
        return [name for name, does in strikes.items() if does]


UNHARMED = Struck()
NONE = Faults()

MOST_STOP_S = 240.0
"""Less than `clients.device_protocol` lets a device be silent for."""


def struck(experiment: Experiment, client: int, server_round: int) -> Struck:
    """Return what strikes a client's participation in a round; of several of a kind the worst.

    A fault that is added to an experiment changes nothing in whom the others strike.
    """
    faults = experiment.faults
    if faults == NONE:
        return UNHARMED
    kinds = Faults.model_fields
    most = max(len(getattr(faults, kind)) for kind in kinds)
    # A row for the first fault of each kind, one for the second: what is added changes none of it.
    luck = rng(experiment.seed, Purpose.FAULTS, client, server_round).random((most, len(kinds)))
    luck_of = dict(zip(kinds, luck.T.tolist(), strict=True))

    def striking(kind: str, listed: Sequence[AnyFault]) -> list[AnyFault]:
        return [
            fault
            for fault, drawn in zip(listed, luck_of[kind], strict=False)
            if (fault.round == server_round if fault.rate is None else drawn < fault.rate)
            and (fault.clients is None or client in fault.clients)
        ]

    stops, slow = striking("stop", faults.stop), striking("slow_storage", faults.slow_storage)
    return Struck(
        kill=bool(striking("kill", faults.kill)),
        stop_s=max((fault.seconds for fault in stops), default=0.0),
        storage_slowdown=max((fault.factor for fault in slow), default=1.0),
        full_disk=bool(striking("full_disk", faults.full_disk)),
        corrupt_cache=bool(striking("corrupt_cache", faults.corrupt_cache)),
    )


def check_faults(experiment: Experiment) -> None:
    """Check that what is to go wrong can go wrong here.

    Raises:
        InputError: it is to strike a client that is not there, to slow storage that nothing paces,
            or to stop a device for so long that it is given up.
    """
    clients = experiment.data.clients
    for kind in Faults.model_fields:
        for fault in getattr(experiment.faults, kind):
            unknown = [client for client in fault.clients or [] if client >= clients]
            if unknown:
                raise InputError(
                    f"faults.{kind}: there is no client {unknown[0]}, "
                    f"since data.clients is {clients}: they are 0..{clients - 1}"
                )
    longest_s = max((fault.seconds for fault in experiment.faults.stop), default=0.0)
    if experiment.engine.clock == "wall" and longest_s > MOST_STOP_S:
        raise InputError(
            f"faults.stop: in emulation a device that says nothing for long is given up; stop it "
            f"for at most {MOST_STOP_S:g} s"
        )
    by_own_speed = experiment.engine.clock == "wall" and experiment.emulation.pace == "none"
    if experiment.faults.slow_storage and by_own_speed:
        raise InputError(
            "faults.slow_storage slows what is throttled, and with emulation.pace = 'none' nothing "
            "is: set emulation.pace = 'profile', or take it out"
        )
