"""Random replacement."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from storage.policy import Policy, Why

_WORD = 0xFFFFFFFFFFFFFFFF


class Random(Policy):
    """Evicts any sample, each with the same chance, whatever it was used for.

    The draw depends on a seed and on how many have left so far, so equal histories decide alike.

    Args:
        samples: how many samples there are, cached or not.
        seed: of the draws.
    """

    def __init__(self, samples: int, seed: int = 0) -> None:
        super().__init__(samples)
        self._seed = int(seed)
        self._residents: list[int] = []
        self._places = np.full(samples, -1, np.int64)  # of the residents, in the list
        self._departures = 0

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Uses change nothing."""

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        """Yield residents in random order: a shuffle that goes only as far as it is asked for."""
        swapped: dict[int, int] = {}  # place -> the place whose resident lies there now
        for named in range(count := len(self._residents)):
            last = count - 1 - named
            place = _draw(self._seed, self._departures + named) % (last + 1)
            yield self._residents[swapped.get(place, place)]
            swapped[place] = swapped.get(last, last)

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Draw a place for each; whoever lies there leaves."""
        residents, places, count = self._residents, self._places, len(self._residents)
        left: list[int] = []
        for sample in incoming:
            place = _draw(self._seed, self._departures) % count
            victim = residents[place]
            residents[place] = moved = residents[-1]
            places[moved] = place
            residents[-1] = sample
            places[sample] = count - 1
            self._departures += 1
            left.append(victim)
        return left

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples at the end of the list."""
        first = len(self._residents)
        self._places[samples] = np.arange(first, first + len(samples))
        self._residents += samples.tolist()

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Let the last of the list take the place of each that left."""
        for sample in samples.tolist():
            place, last = self._places.item(sample), self._residents.pop()
            if last != sample:
                self._residents[place] = last
                self._places[last] = place
        if why == "evicted":
            self._departures += len(samples)

    def columns(self) -> dict[str, np.ndarray]:
        """The residents in the order of their list, and how many have left."""
        residents = np.array(self._residents, np.int64)
        return {"residents": residents, "departures": np.array(self._departures)}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self._residents = columns["residents"].tolist()
        self._places[columns["residents"]] = np.arange(len(self._residents))
        self._departures = int(columns["departures"])


def _draw(seed: int, number: int) -> int:
    """Return 64 random bits that depend on both (SplitMix64; Steele et al., OOPSLA 2014)."""
    bits = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _WORD
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _WORD
    return bits ^ (bits >> 31)
