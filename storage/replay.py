"""Replaying a trace: what a policy would have hit, had it been asked for the same in that order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage.index import Charges
from storage.late_feedback import LateFeedback
from storage.offer import Offer, Plan
from storage.placement import Placement
from storage.policy import Policy
from storage.trace import Stream
from storage.victim_queue import NOBODY

_HITS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it; requests = hits + substituted + misses, bytes are declared sizes.

    Attributes:
        requests: how many there were.
        hits: demand hits, those that a stand-in served not among them.
        substituted: requests that a stand-in served.
        served_bytes: of all that was served, stand-ins too.
        hit_bytes: of that, what came from the cache.
        written_bytes: of what came into the cache.
        hits_by_participation: int64[p].
    """

    requests: int
    hits: int
    substituted: int
    served_bytes: int
    hit_bytes: int
    written_bytes: int
    hits_by_participation: np.ndarray


class BySize:
    """A charge of just the declared size."""

    def cost(self, size_bytes: np.ndarray) -> np.ndarray:
        """Of sizes int64[k], int64[k]."""
        return size_bytes

    def cost_of(self, size_bytes: int) -> int:
        """Of one size."""
        return size_bytes


def replay(stream: Stream, policy: Policy, charges: Charges, usable_bytes: int) -> Outcome:
    """Replay the requests to one cache, which is empty at the start.

    Decisions are those of a `SampleCache`: a batch is read as a whole, then what was missed is
    offered. The policy is told the losses of what was served both here and in the recording, as
    late as they came there: before batch j is read those of all up to j - depth, see `Stream`.

    Args:
        stream: the requests.
        policy: a fresh one over the stream's samples.
        charges: what samples are charged for their sizes.
        usable_bytes: what the residents may be charged in all.
    """
    costs = charges.cost(stream.size_bytes)
    residency: Slots | Bytes
    if (costs == costs[:1]).all():
        residency = Slots(policy, stream.size_bytes, costs, usable_bytes)
    else:
        residency = Bytes(policy, stream.size_bytes, charges, usable_bytes)
    requests, sizes = stream.requests, stream.size_bytes
    hit, written = np.zeros(len(requests), dtype=bool), [requests[:0]]
    all_served = requests.copy()
    learns, substitutes = policy.learns and len(stream.losses) > 0, policy.substitutes
    is_substituted, losses = len(stream.served) > 0, stream.losses.astype(np.float64)
    late = LateFeedback(policy)
    for rows in _batches(stream, policy, residency.resident, late):
        batch = requests[rows]
        hit[rows] = resident = residency.resident[batch]
        served = _with_stand_ins(policy, batch, residency.resident) if substitutes else batch
        policy.access(batch, resident)
        missed = batch[~resident]
        if served is not batch:
            missed = batch[~resident & (served == batch)]
            all_served[rows] = served
        if len(missed):
            written.append(residency.offer(_each_once(missed)))
        if learns and served is batch and not is_substituted:
            late.read(batch, losses[rows])
        elif learns:
            same = served == stream.trained[rows]
            late.read(served[same], losses[rows][same])
    residency.check()
    stood_in = all_served != requests
    return Outcome(
        requests=len(requests),
        hits=int(np.count_nonzero(hit)),
        substituted=int(np.count_nonzero(stood_in)),
        served_bytes=int(sizes[all_served].sum()),
        hit_bytes=int(sizes[all_served[hit | stood_in]].sum()),
        written_bytes=int(sizes[np.concatenate(written)].sum()),
        hits_by_participation=np.array(
            [np.count_nonzero(hit[a:b]) for a, b in zip(stream.starts, stream.ends, strict=True)],
            np.int64,
        ),
    )


class Slots:
    """Who is resident where all are charged alike: so many samples fit.

    Attributes:
        resident: bool[n].
    """

    def __init__(
        self, policy: Policy, size_bytes: np.ndarray, costs: np.ndarray, usable_bytes: int
    ) -> None:
        """Start empty, with size and charge of each sample, int64[n], all charges alike."""
        self.resident = np.zeros(len(costs), dtype=bool)
        self._policy, self._size_bytes = policy, size_bytes
        self._slots = self._free = usable_bytes // int(costs[0]) if len(costs) else 0
        self._is_closed = not self._free  # nothing can ever come in
        self._is_selective = type(policy).admit is not Policy.admit
        policy.capacity_bytes = usable_bytes
        policy.weigh(np.arange(len(costs)), costs)

    def offer(self, samples: np.ndarray) -> np.ndarray:
        """Offer samples that are not resident, each once, int64[k]; returns those that came in."""
        policy = self._policy
        if self._is_closed:
            return samples[:0]
        if self._is_selective:
            samples = samples[policy.checked_admit(samples, self._size_bytes[samples])]
        free = self._free
        if free:
            first = samples[:free]
            policy.inserted(first)
            self.resident[first] = True
            self._free -= len(first)
        rest = samples[free:]
        if not len(rest) or not policy.evicts:
            return samples[:free]
        exchanged = policy.exchange(rest.tolist())
        left = np.array(exchanged)
        if NOBODY in exchanged:
            rest, left = rest[left != NOBODY], left[left != NOBODY]
        # In this order: one that came in may have left for a later one.
        self.resident[rest] = True
        self.resident[left] = False
        return np.concatenate([samples[:free], rest]) if free else rest

    def check(self) -> None:
        """Make sure that as many are resident as came in and did not leave.

        Raises:
            ValueError: the policy named a victim that was none.
        """
        if np.count_nonzero(self.resident) != self._slots - self._free:
            who = type(self._policy).__name__
            raise ValueError(f"policy {who} named a victim twice, or one that is not cached")


class Bytes:
    """Who is resident where charges differ: the placement of a cache, without payloads.

    Attributes:
        resident: bool[n].
    """

    def __init__(
        self, policy: Policy, size_bytes: np.ndarray, charges: Charges, usable_bytes: int
    ) -> None:
        """Start empty, with the size of each sample, int64[n]."""
        self._placement = Placement(policy, usable_bytes, charges)
        self.resident = self._placement.index.resident
        self._size_bytes, self._costs = size_bytes, charges.cost(size_bytes)
        self._nothing = np.empty(0, np.uint8)

    def offer(self, samples: np.ndarray) -> np.ndarray:
        """Offer samples that are not resident, each once, int64[k]; returns those that came in."""
        sizes, none = self._size_bytes[samples], np.zeros(len(samples), np.int64)
        offer = Offer(
            samples=samples,
            buffer=self._nothing,
            starts=none,
            lengths=none,
            sizes=sizes,
            costs=self._costs[samples],
            checksums=none.view(np.uint64),
        )
        taken: np.ndarray = samples[self._placement.decide(offer, Plan())]
        return taken

    def check(self) -> None:
        """Nothing is left to check: the placement looks at every victim."""


def _batches(
    stream: Stream, policy: Policy, resident: np.ndarray, late: LateFeedback
) -> Iterator[slice]:
    """Yield what is read at once, in order; plan each participation before, and end it after.

    Requests that are a batch each are put together up to the first miss, as long as nothing is
    learned between them and nobody stands in: nothing changes before that.
    """
    singly = len(stream.batch_starts) == len(stream.requests)
    learns = len(stream.losses) > 0 and policy.learns
    grouped = singly and not learns and not policy.substitutes
    batch_starts, batch_ends = stream.batch_starts, stream.batch_ends
    pieces = stream.starts, stream.ends, stream.depth
    first = 0
    for start, end, depth in zip(*map(np.ndarray.tolist, pieces), strict=True):
        policy.plan(stream.requests[start:end])
        late.begin(depth)
        if grouped:
            at = start
            while at < end:
                there = resident[stream.requests[at : min(at + _HITS_AT_ONCE, end)]]
                hits = int(there.argmin()) if not there.all() else len(there)
                stop = min(at + hits + 1, end) if hits < len(there) else at + hits
                yield slice(at, stop)
                at = stop
            continue
        last = int(np.searchsorted(batch_starts, end))
        yield from map(slice, batch_starts[first:last].tolist(), batch_ends[first:last].tolist())
        late.end()
        first = last


def _with_stand_ins(policy: Policy, batch: np.ndarray, is_resident: np.ndarray) -> np.ndarray:
    """Return what is trained for each request, int64[k]: its sample, or who stands in for it."""
    resident = is_resident[batch]
    if resident.all():
        return batch
    served = batch.copy()
    missed = np.flatnonzero(~resident)
    stand_ins = policy.stand_ins(batch[missed])
    is_there = (stand_ins != NOBODY) & is_resident[stand_ins]
    served[missed] = np.where(is_there, stand_ins, batch[missed])
    return served


def _each_once(samples: np.ndarray) -> np.ndarray:
    """Return distinct samples in the order of their last places, as a cache takes an offer."""
    last = dict.fromkeys(reversed(samples.tolist()))
    return samples if len(last) == len(samples) else np.array(list(last))[::-1]
