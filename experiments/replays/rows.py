"""The figures of a replay: a row per policy and capacity."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.replays import libcachesim
from experiments.replays.capacity import RECORDED, Capacity
from experiments.replays.contenders import Contender
from fedio.runs import Row
from storage.bound import hit_bound
from storage.policies import NextUse
from storage.replay import replay
from storage.trace import Trace

_log = logging.getLogger(__name__)

_COUNTERFACTUAL = (
    "counterfactual, for {}: under this policy or capacity other samples would have been "
    "requested, so this is of a run that could not have happened"
)


@dataclass(frozen=True, slots=True)
class Counts:
    """What a policy came to at one capacity, over all caches of a trace."""

    hits: int
    hit_bytes: int
    served_bytes: int
    written_bytes: int
    substituted: int = 0


def rows(
    trace: Trace, contenders: Sequence[Contender], capacities: Sequence[Capacity]
) -> Iterator[Row]:
    """Yield a row per policy and capacity, the policies one after another.

    Ratios are over all requests of all caches, `hit_ratio` of demand hits alone, and
    `byte_hit_ratio` of bytes from the cache, stand-ins too, over bytes served. `bound` is the
    hit ratio that no cache can exceed, and `regret` how far below it a policy stays.
    `counterfactual` says that another order would have been requested under this policy, so that
    its figures are of a run that could not have happened; `caveats` are sentences for people.

    What libCacheSim cannot replay has no row, and a warning instead.
    """
    requests = sum(len(stream.requests) for stream in trace.streams)
    bounds = {capacity: _bound(trace, capacity, requests) for capacity in capacities}
    for contender in contenders:
        for capacity in capacities:
            try:
                counts = (_theirs if contender.is_theirs else _ours)(trace, contender, capacity)
            except libcachesim.TheirError as error:
                _log.warning("%s at capacity %s: %s", contender.name, capacity.text, error)
                continue
            hit_ratio = counts.hits / requests
            is_recorded = contender.was_recorded(trace) and capacity.text == RECORDED
            counterfactual = bool(trace.depends) and not is_recorded
            caveats = _caveats(trace, contender, counts)
            if counterfactual:
                caveats.append(_COUNTERFACTUAL.format(trace.depends))
            yield {
                "policy": contender.name,
                "recorded": is_recorded,
                "capacity": capacity.mean_samples(trace),
                "setting": capacity.text,
                "hit_ratio": hit_ratio,
                "byte_hit_ratio": counts.hit_bytes / counts.served_bytes,
                "substituted_ratio": counts.substituted / requests,
                "written_bytes": counts.written_bytes,
                "requests": requests,
                **bounds[capacity],
                "regret": bounds[capacity]["bound"] - hit_ratio,
                "counterfactual": counterfactual,
                "caveats": caveats,
            }


def _caveats(trace: Trace, contender: Contender, counts: Counts) -> list[str]:
    """Return what must be known to read the figures of a policy."""
    streams = trace.streams
    caveats: list[str] = []
    if contender.is_theirs:
        if any(len(stream.batch_starts) < len(stream.requests) for stream in streams):
            caveats.append("libCacheSim knows no batches: newcomers count as used after all hits")
        if not counts.written_bytes:
            caveats.append("it let nothing in: its queues are shares of the capacity, this small")
        return caveats
    policy = contender.policy(1)
    if policy.learns and not any(len(stream.losses) for stream in streams):
        caveats.append("it learns from losses, and this trace has none")
    if isinstance(policy, NextUse) and max(len(stream.starts) for stream in streams) == 1:
        caveats.append("it was told the whole order, as no policy can know it")
    if counts.substituted:
        caveats.append("the losses of stand-ins are not known, so it learned from fewer")
    return caveats


def _bound(trace: Trace, capacity: Capacity, requests: int) -> Row:
    bounds = []
    for stream in trace.streams:
        charges, capacity_bytes = capacity.of(stream)
        bounds.append(hit_bound(stream, charges.cost(stream.size_bytes), capacity_bytes))
    return {
        "bound": sum(bound.hits for bound in bounds) / requests,
        "bound_is_exact": all(bound.is_exact for bound in bounds),
        "bound_method": "; ".join(sorted({bound.method for bound in bounds})),
    }


def _ours(trace: Trace, contender: Contender, capacity: Capacity) -> Counts:
    outcomes = [
        replay(stream, contender.policy(stream.samples), *capacity.of(stream))
        for stream in trace.streams
    ]
    return Counts(
        hits=sum(outcome.hits for outcome in outcomes),
        substituted=sum(outcome.substituted for outcome in outcomes),
        hit_bytes=sum(outcome.hit_bytes for outcome in outcomes),
        served_bytes=sum(outcome.served_bytes for outcome in outcomes),
        written_bytes=sum(outcome.written_bytes for outcome in outcomes),
    )


def _theirs(trace: Trace, contender: Contender, capacity: Capacity) -> Counts:
    rooms = []
    for stream in trace.streams:
        charges, capacity_bytes = capacity.of(stream)
        rooms.append(libcachesim.Room(charges.cost(stream.size_bytes), capacity_bytes))
    served_bytes = sum(int(stream.size_bytes[stream.requests].sum()) for stream in trace.streams)
    counted = libcachesim.replay(contender.spec.name, trace, rooms)
    return Counts(**counted, served_bytes=served_bytes)
