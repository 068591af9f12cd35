"""What a selector is given and what it answers: which clients train in a round, and why."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedio.errors import InputError, RunError
from strategies.fleet import Fleet

# A selector's memory: named arrays, so that a checkpoint is the state. Never changed in place.
State = dict[str, np.ndarray]


class NoFeasibleClient(RunError):  # noqa: N818 - the name says what is wrong
    """Clients are wanted and not one can be selected."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a selector sees of one round.

    Attributes:
        fleet: the table of all N clients, read-only.
        round: the round, counted from 1.
        now_s: the virtual clock.
        feasible: bool [N], who can be selected: idle, there, and fit to train.
        wanted: K, how many replies will count.
        count: clients to select, over-commitment included.
        local_steps, batch_size: S and B of the work that is asked for.
        model_bytes: what a client downloads, and uploads.
        staging: whether clients that are named for the next round prepare for it.
        sampler: the name of what orders a participation's samples, on which its hits depend.

    Raises:
        ValueError: a shape or a number is impossible.
    """

    fleet: Fleet
    round: int
    now_s: float
    feasible: np.ndarray
    wanted: int
    count: int
    local_steps: int
    batch_size: int
    model_bytes: float
    staging: bool = False
    sampler: str = "uniform"

    def __post_init__(self) -> None:
        if self.feasible.shape != (len(self.fleet),) or self.feasible.dtype != np.bool_:
            raise ValueError(f"feasible must be bool [{len(self.fleet)}]")
        if self.round < 1 or self.count < 0:
            raise ValueError(f"round is {self.round} and count {self.count}; need >= 1 and >= 0")

    @property
    def accesses(self) -> int:
        """Samples that a participation trains: q = S x B."""
        return self.local_steps * self.batch_size


@dataclass(frozen=True, slots=True, eq=False)
class Reasons:
    """Why these clients: `why` and `details` per chosen client, `rest` counts all the others.

    Attributes:
        why: one word per chosen client, in the order of `Cohort.clients`.
        details: figures per chosen client, float64 arrays in the same order; NaN is unknown.
        rest: how many were not chosen, by reason; they add up to N minus the chosen.
    """

    why: list[str]
    details: dict[str, np.ndarray]
    rest: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """The clients of a round.

    Attributes:
        clients: distinct partition-ids, ascending, int64.
        local_steps: local steps of each of them, int64.
        reasons: why they, and why not the others.
        next: clients to stage for the next round, likewise; idle or not. None by default.
    """

    clients: np.ndarray
    local_steps: np.ndarray
    reasons: Reasons
    next: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def of(
        cls,
        view: View,
        pool: np.ndarray,
        picked: Mapping[str, np.ndarray],
        considered: np.ndarray,
        details: Mapping[str, np.ndarray],
    ) -> Self:
        """Return the cohort, with its reasons worked out.

        Args:
            view: the round.
            pool: the feasible clients that were not excluded.
            picked: why -> positions in `pool`, all distinct.
            considered: positions in `pool` that were good enough to be drawn from.
            details: figures aligned to `pool`.
        """
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *picked.values()])
        why = [reason for reason, chosen in picked.items() for _ in chosen]
        order = np.argsort(pool[positions], kind="stable")
        positions = positions[order]
        left = np.ones(len(pool), dtype=np.bool_)
        left[positions] = False
        drawable = np.zeros(len(pool), dtype=np.bool_)
        drawable[considered] = True
        rest = _infeasible(view) | {
            "excluded": np.count_nonzero(view.feasible) - len(pool),
            "lower score": np.count_nonzero(left & ~drawable),
            "not drawn": np.count_nonzero(left & drawable),
        }
        reasons = Reasons(
            why=[why[i] for i in order],
            details={k: np.asarray(v, dtype=np.float64)[positions] for k, v in details.items()},
            rest={reason: int(count) for reason, count in rest.items() if count},
        )
        steps = np.full(len(positions), view.local_steps, dtype=np.int64)
        return cls(pool[positions].astype(np.int64), steps, reasons)


def _infeasible(view: View) -> dict[str, int]:
    """Return how many cannot be selected, by reason."""
    fleet, out = view.fleet, np.flatnonzero(~view.feasible)
    fits, known = fleet.fits[out], fleet.known[out]
    busy = known & (fleet.busy_until_s[out] > view.now_s)
    away = known & ~fleet.available[out] & ~busy
    rest = fits & ~busy & ~away
    reasons = {"busy": busy, "away": away, "does not fit": ~fits, "unavailable": rest}
    return {reason: int(np.count_nonzero(which)) for reason, which in reasons.items()}


class Selector(ABC):
    """Chooses the clients of a round, from the table, its state and a generator alone.

    The same view, state and generator give the same cohort. Neither the table nor the state it is
    given changes.

    Attributes:
        names_next: whether its cohorts say who is going to be in the next one, if the view asks.
    """

    names_next = False

    def initial_state(self, clients: int) -> State:  # noqa: ARG002 - for those that need it
        """Return the state before the first round of a fleet of `clients`."""
        return {}

    def select(self, view: View, state: State, rng: np.random.Generator) -> tuple[Cohort, State]:
        """Return the cohort and the state for the next round.

        It has min(count, feasible) clients at least. One that appends to what it would choose
        otherwise says by how many at most; the K that finish first count in any case.


        Raises:
            NoFeasibleClient: clients are wanted and none is feasible.
        """
        candidates = np.flatnonzero(view.feasible)
        if view.count == 0:
            return Cohort.of(view, candidates, {}, np.arange(len(candidates)), {}), state
        if not len(candidates):
            raise NoFeasibleClient(
                f"round {view.round}: none of {len(view.fleet)} clients is idle, there and fit"
            )
        cohort, state = self.choose(view, candidates, state, rng)
        self._check(cohort, view, candidates)
        return cohort, state

    def _check(self, cohort: Cohort, view: View, candidates: np.ndarray) -> None:
        """Check what `choose` gave, so that a mistake in it cannot pass as a result.

        Raises:
            InputError: it is no cohort of enough distinct candidates with their work and reasons.
        """
        who, least = type(self).__name__, min(view.count, len(candidates))
        if not isinstance(cohort, Cohort):
            raise InputError(f"selector {who} gave a {type(cohort).__name__}, not a Cohort")
        clients, steps = np.asarray(cohort.clients), np.asarray(cohort.local_steps)
        wrong = _wrong_next(np.asarray(cohort.next), view.fleet)
        if clients.dtype != np.int64 or clients.ndim != 1:
            wrong = f"clients of type {clients.dtype} and {clients.ndim} dimensions, not int64 [k]"
        elif len(np.unique(clients)) < len(clients):
            wrong = "a client twice"
        elif len(strange := clients[~_feasible(clients, view)]):
            wrong = f"client {strange[0]}, which is not feasible"
        elif len(clients) < least:
            wrong = f"{len(clients)} clients where {least} were wanted and feasible"
        elif steps.shape != clients.shape or not (steps >= 1).all():
            wrong = "local steps that are not one positive number per client"
        elif len(cohort.reasons.why) != len(clients):
            wrong = "reasons that are not one per client"
        if wrong:
            raise InputError(f"round {view.round}: selector {who} chose {wrong}")

    @abstractmethod
    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        """Choose from `candidates` (never empty, ascending); at least one client is wanted."""


def _feasible(clients: np.ndarray, view: View) -> np.ndarray:
    """Return which of some numbers are clients that are feasible, bool [k]."""
    exist = (clients >= 0) & (clients < len(view.fleet))
    feasible: np.ndarray = exist & view.feasible[np.where(exist, clients, 0)]
    return feasible


def _wrong_next(named: np.ndarray, fleet: Fleet) -> str | None:
    """Return what is wrong with clients named for the next round, if anything is."""
    if named.dtype != np.int64 or named.ndim != 1 or (np.diff(named) <= 0).any():
        return "clients for the next round that are not int64 [k], distinct and ascending"
    if len(named) and (named[0] < 0 or named[-1] >= len(fleet)):
        return "clients for the next round that do not exist"
    if not fleet.known[named].all():
        return "clients for the next round that are not known"
    return None
