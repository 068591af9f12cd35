"""How large the caches of a replay are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.replays.sources import split
from fedio.errors import InputError
from storage import Layout, usable_bytes
from storage.index import Charges
from storage.replay import BySize
from storage.trace import Stream, Trace

RECORDED = "recorded"
DEFAULT_SHARES = ["1%", "2%", "5%", "10%", "20%", "50%"]

_SAMPLES = re.compile(r"[0-9]{1,13}")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
_MOST_SAMPLES = 10**12


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of each cache, as the user says it: samples, a share of them, or as recorded.

    Raises:
        InputError: it is none of these.
    """

    text: str

    def __post_init__(self) -> None:
        samples, share = _SAMPLES.fullmatch(self.text), _SHARE.fullmatch(self.text)
        is_known = self.text == RECORDED
        is_known |= samples is not None and int(self.text) <= _MOST_SAMPLES
        is_known |= share is not None and float(share[1]) <= 100
        if not is_known:
            raise InputError(
                f"--capacity {self.text}: give samples (100), a share of each client's samples "
                f"(10%), or {RECORDED!r}"
            )

    def of(self, stream: Stream) -> tuple[Charges, int]:
        """Return what the samples of a cache are charged, and what all its residents may be.

        Each is charged its size, and so many samples of average size fit. A recorded cache
        charges what its file needs.
        """
        if self.text == RECORDED:
            budget_bytes = stream.budget_bytes
            return Layout.for_budget(budget_bytes), usable_bytes(budget_bytes)
        total_bytes = int(stream.size_bytes.sum())
        if self.text.endswith("%"):
            # As the decimals say: 29 % of 100 bytes are 29.
            return BySize(), int(round(float(self.text[:-1]) * total_bytes, 6) // 100)
        return BySize(), int(self.text) * total_bytes // max(1, stream.samples)

    def mean_samples(self, trace: Trace) -> float:
        """Return how many samples of average charge fit into a cache, the mean over all caches.

        A client that has no samples does not count.
        """
        if self.text.isdecimal():
            return int(self.text)
        fitting = []
        for stream in (stream for stream in trace.streams if stream.samples):
            charges, capacity_bytes = self.of(stream)
            mean_bytes = float(charges.cost(stream.size_bytes).mean())
            fitting.append(min(stream.samples, capacity_bytes / mean_bytes))
        return sum(fitting) / len(fitting)


def capacities_of(texts: Sequence[str], trace: Trace) -> list[Capacity]:
    """Return the capacities in comma-separated lists, or those that suit the trace.

    Raises:
        InputError: one cannot be understood, or was not recorded.
    """
    is_recorded = all(stream.budget_bytes for stream in trace.streams)
    texts = [part for text in texts for part in split(text)]
    if not texts:
        texts = [RECORDED] if is_recorded else DEFAULT_SHARES
    if RECORDED in texts and not is_recorded:
        raise InputError(f"--capacity {RECORDED}: this trace was not recorded with a cache")
    return [Capacity(text) for text in dict.fromkeys(texts)]
