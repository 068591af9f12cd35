"""When devices are there: stays that repeat, asked of all clients at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# Times of stays are multiples of 1/1024 s, which is a power of two: their sums are exact, so who is
# said to come, or to leave, at a moment does so at that very moment.
TICKS_PER_S = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Availability:
    """Who is there when, in seconds from the start of the run.

    A client is there in its stays [start, end) and, again and again, a period later. No two stays
    touch, and the last one ends within a period of the first one's start. Who is always there has
    one stay as long as the period, and who never is an empty one.

    Attributes:
        starts_s: float64 [m], the stays' starts, ascending within a client, one client after the
            other; multiples of 1 / `TICKS_PER_S`, as `ends_s` and `period_s`.
        ends_s: float64 [m], their ends.
        first: int64 [N + 1], where the stays of each client begin.
        period_s: float64 [N], after which each client's stays repeat.
    """

    starts_s: np.ndarray
    ends_s: np.ndarray
    first: np.ndarray
    period_s: np.ndarray
    # float64 [m]: how long the client is there in stays of a cycle before each one.
    _before_s: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths_s = self.ends_s - self.starts_s
        before_s = np.cumsum(lengths_s) - lengths_s
        before_s -= np.repeat(before_s[self.first[:-1]], np.diff(self.first))
        object.__setattr__(self, "_before_s", before_s)

    @classmethod
    def of(
        cls, client: np.ndarray, starts_s: np.ndarray, ends_s: np.ndarray, period_s: np.ndarray
    ) -> Availability:
        """Make it of the stays [m] of each `client`, in order, all within [0, period_s].

        Empty stays are left out, and those that touch, over the end of the period too, become one.
        """
        starts_s, ends_s, period_s = map(on_ticks, (starts_s, ends_s, period_s))
        some = ends_s > starts_s
        client, starts_s, ends_s = client[some], starts_s[some], ends_s[some]
        apart = np.ones(len(client), np.bool_)
        apart[1:] = (client[1:] != client[:-1]) | (starts_s[1:] > ends_s[:-1])
        begin = np.flatnonzero(apart)
        client, starts_s = client[begin], starts_s[begin]
        ends_s = ends_s[np.append(begin[1:], len(ends_s)) - 1] if len(begin) else ends_s
        # Who is there when the period ends and when it begins has one stay over the end of it.
        opens, closes = starts_s == 0, ends_s == period_s[client]
        joined = np.intersect1d(client[opens & ~closes], client[closes & ~opens])
        early = opens & np.isin(client, joined)
        ends_s[closes & np.isin(client, joined)] += ends_s[early]
        never = np.setdiff1d(np.arange(len(period_s)), client)
        nothing = np.zeros(len(never))
        client = np.append(client[~early], never)
        order = np.argsort(client, kind="stable")
        first = np.searchsorted(client[order], np.arange(len(period_s) + 1))
        starts_s = np.append(starts_s[~early], nothing)[order]
        return cls(starts_s, np.append(ends_s[~early], nothing)[order], first, period_s)

    def take(self, clients: np.ndarray) -> Availability:
        """Return the availability of clients that are there as `clients` of this one are."""
        counts = np.diff(self.first)[clients]
        first = np.append(0, np.cumsum(counts))
        stays = np.arange(first[-1]) + np.repeat(self.first[clients] - first[:-1], counts)
        return Availability(self.starts_s[stays], self.ends_s[stays], first, self.period_s[clients])

    def at(self, now_s: float) -> np.ndarray:
        """Return who is there, bool [N]."""
        stay, within_s, _ = self._locate(self._everybody, now_s)
        there: np.ndarray = within_s < self.ends_s[stay]
        return there

    def next_s(self, now_s: float) -> np.ndarray:
        """Return from when on each is there: now, or when it comes next; inf is never, [N]."""
        return self._next_s(self._everybody, now_s)

    def leaves_s(self, clients: np.ndarray, now_s: npt.ArrayLike) -> np.ndarray:
        """Return the end of the stay in which each of `clients` is, and now of who is not there.

        Args:
            clients: int [k].
            now_s: the moment, or one for each client.

        Returns:
            float64 [k]; inf of who is always there.
        """
        stay, within_s, later_s = self._locate(clients, now_s)
        there = within_s < self.ends_s[stay]
        always = self._cycle_there_s(clients) == self.period_s[clients]
        end_s = np.where(always, np.inf, later_s + self.ends_s[stay])
        return np.where(there, end_s, now_s)

    def finish_s(
        self, clients: np.ndarray, start_s: npt.ArrayLike, work_s: npt.ArrayLike, *, resumes: bool
    ) -> np.ndarray:
        """Return when work is done that starts at a moment and goes on while a client is there.

        Args:
            clients: int [k].
            start_s: when it starts; where a client is not there, it waits, if it resumes.
            work_s: seconds that it takes.
            resumes: whether work that a client leaves goes on when it is back.

        Returns:
            float64 [k]; inf where it is never done, as is work that is left and not resumed.
        """
        done_s = np.add(start_s, work_s)
        in_time = done_s <= self.leaves_s(clients, start_s)
        if not resumes:
            return np.where(in_time, done_s, np.inf)
        # Work that is too short to show on the clock below is done when the client is back.
        back_s = self._next_s(clients, start_s)
        resumed_s = self._until_there_s(clients, self._there_s(clients, start_s) + work_s)
        return np.where(in_time, done_s, np.maximum(resumed_s, back_s))

    def there_s(
        self, clients: np.ndarray, from_s: npt.ArrayLike, to_s: npt.ArrayLike
    ) -> np.ndarray:
        """Return for how long clients are there between two moments, float64 [k]."""
        there_s: np.ndarray = self._there_s(clients, to_s) - self._there_s(clients, from_s)
        return there_s

    def share(self, from_s: float, to_s: float) -> np.ndarray:
        """Return the share of the time between two moments for which each is there, [N].

        Raises:
            ValueError: the second moment is not after the first one.
        """
        if to_s <= from_s:
            raise ValueError(f"{from_s} s to {to_s} s is no time")
        there_s = self.there_s(self._everybody, from_s, to_s)
        share: np.ndarray = np.clip(there_s / (to_s - from_s), 0.0, 1.0)
        return share

    @property
    def _everybody(self) -> np.ndarray:
        return np.arange(len(self.period_s))

    def _locate(
        self, clients: np.ndarray, now_s: npt.ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the last stay that began, the moment as in the first cycle, and what it is later.

        A client's cycle begins with its first stay.
        """
        begin_s = self.starts_s[self.first[clients]]
        since_s = np.subtract(now_s, begin_s)
        into_s = np.mod(since_s, self.period_s[clients])
        within_s = begin_s + into_s
        return self._last(self.starts_s, clients, within_s), within_s, since_s - into_s

    def _last(self, values: np.ndarray, clients: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Return the last of each client's stays whose value is at most so much, or its first."""
        low, high = self.first[clients], self.first[clients + 1]
        for _ in range(int((high - low).max(initial=1) - 1).bit_length()):
            middle = (low + high) // 2
            begun = values[middle] <= most
            low = np.where(begun, middle, low)
            high = np.maximum(np.where(begun, high, middle), low + 1)
        stay: np.ndarray = low
        return stay

    def _next_s(self, clients: np.ndarray, now_s: npt.ArrayLike) -> np.ndarray:
        stay, within_s, later_s = self._locate(clients, now_s)
        following, past = stay + 1, self.first[clients + 1]
        over = following == past
        following = np.where(over, self.first[clients], following)
        start_s = later_s + self.starts_s[following] + np.where(over, self.period_s[clients], 0.0)
        start_s = np.where(self._cycle_there_s(clients) > 0, start_s, np.inf)
        return np.where(within_s < self.ends_s[stay], now_s, start_s)

    def _there_s(self, clients: np.ndarray, now_s: npt.ArrayLike) -> np.ndarray:
        """Return how long clients have been there, from some moment of their own until now."""
        stay, within_s, later_s = self._locate(clients, now_s)
        cycles = later_s / self.period_s[clients]
        in_stay_s = np.minimum(within_s, self.ends_s[stay]) - self.starts_s[stay]
        there_s: np.ndarray = (
            cycles * self._cycle_there_s(clients) + self._before_s[stay] + in_stay_s
        )
        return there_s

    def _until_there_s(self, clients: np.ndarray, there_s: np.ndarray) -> np.ndarray:
        """Return when clients have been there for so long: the inverse of `_there_s`.

        Where that is for a whole absence, it is when that begins. Any time for who is never there.
        """
        cycle_s = self._cycle_there_s(clients)
        cycle_s = np.where(cycle_s > 0, cycle_s, 1.0)
        rest_s = np.mod(there_s, cycle_s)
        rest_s = np.where(rest_s > 0, rest_s, cycle_s)
        stay = self._last(self._before_s, clients, np.nextafter(rest_s, 0.0))
        in_cycle_s = self.starts_s[stay] + rest_s - self._before_s[stay]
        cycles = np.rint((there_s - rest_s) / cycle_s)
        time_s: np.ndarray = cycles * self.period_s[clients] + in_cycle_s
        return time_s

    def _cycle_there_s(self, clients: np.ndarray) -> np.ndarray:
        """Return how long clients are there in each period."""
        last = self.first[clients + 1] - 1
        there_s: np.ndarray = self._before_s[last] + self.ends_s[last] - self.starts_s[last]
        return there_s


def on_ticks(time_s: npt.ArrayLike) -> np.ndarray:
    """Return times as the nearest multiples of a tick."""
    ticks: np.ndarray = np.rint(np.multiply(time_s, TICKS_PER_S)) / TICKS_PER_S
    return ticks
