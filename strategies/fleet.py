"""The fleet table: what the server knows of every client, one array per property."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from fedio.costs import Samples
from fedio.profiles import Speeds
from fedio.protocol import ProfileClaims

CLAIMS = (
    "samples",
    "mean_size_bytes",
    "mean_cached_bytes",
    "decoded_share",
    "cached_decoded_share",
    "resident_samples",
    "resident_bytes",
    "budget_bytes",
    "utility",
    "loss",
)
_SPEED = "speeds."
_LARGEST_EXACT = 2.0**53  # beyond it a float no longer counts in ones


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """One array of shape [clients] per property; a client's row is its partition-id.

    The first group is what clients *claim*, stored as they said it: -1 (whole numbers) or NaN is
    unknown, and anything else may be a lie. The second is what the server *observed* itself.
    Updates change whole rows of clients in place, given by an array of distinct partition-ids.

    Attributes:
        samples, mean_size_bytes: the client's data.
        mean_cached_bytes, decoded_share, cached_decoded_share: see `ProfileClaims`.
        resident_samples, resident_bytes, budget_bytes: its cache.
        utility, loss: of its last training (utility by the formula of Oort).
        claimed_round: the round of the last claim after training; 0 is never.
        speeds: its device.
        duration_s: seconds of the last participation that was seen to end; NaN is none.
        last_round: the last round it trained in and answered; 0 is never.
        selected_round: the last round it was selected in; 0 is never.
        times_selected, times_trained, failures: selections, aggregated replies, failures.
        busy_until_s: when its work ends on the virtual clock; 0 is idle from the start.
        available: whether it is there now, bool.
        fits: whether it can hold what it is to train, bool; see `strategies.capacity`.
        reachable: whether it is connected and owes no answer, bool; no device of the virtual clock
            ever goes away but by `available`.

    Attributes that clients claim, and renew whenever they are there:
        available_later: share of a window to come that it expects to be there for; NaN is unknown.
    """

    samples: np.ndarray
    mean_size_bytes: np.ndarray
    mean_cached_bytes: np.ndarray
    decoded_share: np.ndarray
    cached_decoded_share: np.ndarray
    resident_samples: np.ndarray
    resident_bytes: np.ndarray
    budget_bytes: np.ndarray
    utility: np.ndarray
    loss: np.ndarray
    claimed_round: np.ndarray
    speeds: Speeds
    duration_s: np.ndarray
    last_round: np.ndarray
    selected_round: np.ndarray
    times_selected: np.ndarray
    times_trained: np.ndarray
    failures: np.ndarray
    busy_until_s: np.ndarray
    available: np.ndarray
    fits: np.ndarray
    reachable: np.ndarray
    available_later: np.ndarray

    @classmethod
    def unknown(cls, clients: int) -> Self:
        """Return a table of `clients` rows of which nothing is known yet."""

        def whole(value: int) -> np.ndarray:
            return np.full(clients, value, dtype=np.int64)

        def real(value: float) -> np.ndarray:
            return np.full(clients, value, dtype=np.float64)

        return cls(
            samples=whole(-1),
            mean_size_bytes=real(np.nan),
            mean_cached_bytes=real(np.nan),
            decoded_share=real(np.nan),
            cached_decoded_share=real(np.nan),
            resident_samples=whole(-1),
            resident_bytes=whole(-1),
            budget_bytes=whole(-1),
            utility=real(np.nan),
            loss=real(np.nan),
            claimed_round=whole(0),
            speeds=Speeds.unknown(clients),
            duration_s=real(np.nan),
            last_round=whole(0),
            selected_round=whole(0),
            times_selected=whole(0),
            times_trained=whole(0),
            failures=whole(0),
            busy_until_s=real(0.0),
            available=np.ones(clients, dtype=np.bool_),
            fits=np.ones(clients, dtype=np.bool_),
            reachable=np.ones(clients, dtype=np.bool_),
            available_later=real(np.nan),
        )

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def tried(self) -> np.ndarray:
        """Which clients have trained and answered before: bool [clients]."""
        return self.last_round > 0

    def age_rounds(self, server_round: int) -> np.ndarray:
        """Return the rounds since each client trained; all of them where it never did."""
        ages: np.ndarray = np.maximum(server_round - self.last_round, 0)
        return ages

    def feasible(self, now_s: float) -> np.ndarray:
        """Return which clients can start at `now_s`: idle, there, in reach, and fit to train."""
        there = self.available & self.reachable
        feasible: np.ndarray = (self.busy_until_s <= now_s) & there & self.known
        return feasible

    @property
    def known(self) -> np.ndarray:
        """Which clients are known to have samples, and fit to train them: bool [clients]."""
        known: np.ndarray = (self.samples > 0) & self.fits
        return known

    @property
    def resident_share(self) -> np.ndarray:
        """The share of its samples that each client claims to hold, 0 to 1, float64 [clients]."""
        share: np.ndarray = np.clip(self.resident_samples / np.maximum(self.samples, 1), 0.0, 1.0)
        return share

    def mean_samples(self, clients: np.ndarray | slice = slice(None)) -> Samples:
        """Return what the samples of `clients` are like, as they claim."""
        return Samples(
            size_bytes=self.mean_size_bytes[clients],
            cached_bytes=self.mean_cached_bytes[clients],
            decoded_share=self.decoded_share[clients],
            cached_decoded_share=self.cached_decoded_share[clients],
        )

    def registered(self, profiles: Sequence[ProfileClaims]) -> None:
        """Write what clients say of themselves before their first round."""
        clients = _rows([profile.partition for profile in profiles])
        for field in fields(Speeds):
            values = [getattr(profile, field.name) for profile in profiles]
            getattr(self.speeds, field.name)[clients] = np.asarray(values, dtype=np.float64)
        told = [name for name in CLAIMS if name in ProfileClaims.__dataclass_fields__]
        for name in told:
            self._write(name, clients, [getattr(profile, name) for profile in profiles])

    def claimed(self, clients: npt.ArrayLike, server_round: int, **columns: npt.ArrayLike) -> None:
        """Write what `clients` claim after training in `server_round`, a column per keyword.

        Raises:
            ValueError: a keyword is not one of `CLAIMS`.
        """
        if not_claims := columns.keys() - set(CLAIMS):
            raise ValueError(f"{min(not_claims)!r} cannot be claimed; known: {', '.join(CLAIMS)}")
        rows = _rows(clients)
        for name, values in columns.items():
            self._write(name, rows, values)
        self.claimed_round[rows] = server_round

    def selected(self, clients: npt.ArrayLike, server_round: int) -> None:
        """Count that `clients` were selected for `server_round`."""
        rows = _rows(clients)
        self.times_selected[rows] += 1
        self.selected_round[rows] = server_round

    def busy(self, clients: npt.ArrayLike, until_s: npt.ArrayLike) -> None:
        """Note until when, on the virtual clock, `clients` are at work."""
        self.busy_until_s[_rows(clients)] = until_s

    def observed(
        self, clients: npt.ArrayLike, server_round: int, duration_s: npt.ArrayLike
    ) -> None:
        """Note that the answers of `clients` to `server_round` took `duration_s`, late or not."""
        rows = _rows(clients)
        self.duration_s[rows] = duration_s
        self.last_round[rows] = np.maximum(self.last_round[rows], server_round)

    def trained(self, clients: npt.ArrayLike) -> None:
        """Count that the replies of `clients` were aggregated."""
        self.times_trained[_rows(clients)] += 1

    def failed(self, clients: npt.ArrayLike) -> None:
        """Count that `clients` failed, or sent what could not be used."""
        self.failures[_rows(clients)] += 1

    def read_only(self) -> Self:
        """Return the same table, sharing its memory, that refuses to be written."""
        return type(self).from_arrays({name: _locked(a) for name, a in self.arrays().items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every column by name, sharing its memory; speeds are `speeds.NAME`."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "speeds"}
        return named | {_SPEED + f.name: getattr(self.speeds, f.name) for f in fields(Speeds)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write every column, as `arrays` names them.

        Raises:
            KeyError, ValueError: a column is missing, or not of as many clients.
        """
        for name, column in self.arrays().items():
            if arrays[name].shape != column.shape:
                raise ValueError(f"{name} is of {arrays[name].shape} clients")
            column[:] = arrays[name]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the table of these columns, as `arrays` names them.

        Raises:
            KeyError: a column is missing.
        """
        speeds = Speeds(**{f.name: arrays[_SPEED + f.name] for f in fields(Speeds)})
        named = {f.name: arrays[f.name] for f in fields(cls) if f.name != "speeds"}
        return cls(**named, speeds=speeds)

    def _write(self, name: str, rows: np.ndarray, values: npt.ArrayLike) -> None:
        """Write claims into a column; in a whole-number column what is none becomes unknown."""
        column = getattr(self, name)
        given = np.asarray(values, dtype=np.float64)
        if np.issubdtype(column.dtype, np.integer):
            given = np.where(np.abs(given) < _LARGEST_EXACT, given, -1)
        column[rows] = given


def _rows(clients: npt.ArrayLike) -> np.ndarray:
    """Return partition-ids as an index array; a negative one must not count from the end."""
    rows = np.asarray(clients, dtype=np.int64)
    if rows.size and rows.min() < 0:
        raise IndexError(f"there is no partition {rows.min()}")
    return rows


def _locked(array: np.ndarray) -> np.ndarray:
    """Return a view of `array` that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
