"""Synthetic traces: patterns of requests in their purest form, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict, Unpack

import numpy as np

from storage.trace import Stream, Trace

_MOST_EXPONENT = 100
_MOST_SIGMA = 10
_MOST_BYTES = 2**32 - 1


class Layout(TypedDict, total=False):
    """What any pattern may be laid out in.

    Attributes:
        batch: requests in each batch, 1 where not given; the last of a participation may be short.
        size_bytes: of each sample, int64[samples], or of all, from 1 to 2^32 - 1: 1 where not
            given.
        sigma: spreads sizes around `size_bytes`, which is then their median: log-normal, with
            this standard deviation of the logarithm, 0 to 10, rounded, and kept within 1 to
            2^32 - 1 bytes.
    """

    batch: int
    size_bytes: int | np.ndarray
    sigma: float


def epochs(
    rng: np.random.Generator, *, samples: int = 1_000, epochs: int = 100, **layout: Unpack[Layout]
) -> Trace:
    """Every sample once in random order, again and again; a participation is an epoch.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(samples=samples, epochs=epochs)
    stream = _stream(_epochs(rng, samples, epochs).ravel(), samples, samples, rng, layout)
    return Trace(f"epochs of {samples} samples", (stream,))


def zipf(
    rng: np.random.Generator,
    *,
    samples: int = 1_000,
    requests: int = 100_000,
    exponent: float = 0.9,
    **layout: Unpack[Layout],
) -> Trace:
    """Requests independent of each other, where the k-th most popular sample has k^-exponent.

    Who is how popular is drawn. It is one participation.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(samples=samples, requests=requests)
    if not 0 <= exponent <= _MOST_EXPONENT:
        raise ValueError(f"exponent is 0 to {_MOST_EXPONENT}, got {exponent}")
    popularity = np.cumsum(np.arange(1.0, samples + 1) ** -exponent)
    drawn = np.searchsorted(popularity, rng.random(requests) * popularity[-1], side="right")
    # Rounding could take the largest draw beyond the end.
    asked = rng.permutation(samples)[np.minimum(drawn, samples - 1)]
    stream = _stream(asked, requests, samples, rng, layout)
    return Trace(f"Zipf {exponent:g} over {samples} samples", (stream,))


def repetition(
    rng: np.random.Generator,
    *,
    samples: int = 1_000,
    requests: int = 100_000,
    working_set: int = 50,
    repeats: int = 4,
    **layout: Unpack[Layout],
) -> Trace:
    """Participations that each repeat a random few of the samples, shuffled, as PADS does.

    The last one is cut where there are enough requests.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(samples=samples, requests=requests, working_set=working_set, repeats=repeats)
    if working_set > samples:
        raise ValueError(f"a working set of {working_set} of {samples} samples cannot be")
    each = working_set * repeats
    blocks = [
        rng.permutation(np.tile(rng.choice(samples, working_set, replace=False), repeats))
        for _ in range(-(-requests // each))
    ]
    stream = _stream(np.concatenate(blocks)[:requests], each, samples, rng, layout)
    return Trace(f"{repeats} repetitions of {working_set} of {samples} samples", (stream,))


def gaps(
    rng: np.random.Generator,
    *,
    clients: int = 100,
    samples: int = 500,
    rounds: int = 100,
    accesses: int = 160,
    share: float = 0.1,
    **layout: Unpack[Layout],
) -> Trace:
    """Many caches, of which a random share is used in each round: what federated clients see.

    A participation reads the first `accesses` of epochs that start afresh, as the uniform sampler
    does. A client that is never drawn has no stream.

    Args:
        rng: draws who takes part, what is read, and sizes.
        clients: how many caches.
        samples: of each client.
        rounds: counted from 1.
        accesses: of a participation.
        share: of the clients, above 0 to 1; at least one takes part.
        layout: batches and sizes.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(clients=clients, samples=samples, rounds=rounds, accesses=accesses)
    if not 0 < share <= 1:
        raise ValueError(f"share is above 0 to 1, got {share}")
    chosen = max(1, round(share * clients))
    cohorts = rng.random((rounds, clients)).argsort(axis=1)[:, :chosen]
    members = cohorts.ravel()
    by_client = members.argsort(kind="stable")
    streams = []
    for places in np.split(by_client, np.flatnonzero(np.diff(members[by_client])) + 1):
        passes = -(-accesses // samples)
        orders = _epochs(rng, samples, passes * len(places)).reshape(len(places), -1)
        stream = _stream(orders[:, :accesses].ravel(), accesses, samples, rng, layout)
        client, own_rounds = int(members[places[0]]), places // chosen + 1
        streams.append(replace(stream, client=client, rounds=own_rounds))
    return Trace(f"{chosen} of {clients} clients a round", tuple(streams))


SYNTHETIC: dict[str, Callable[..., Trace]] = {
    "zipf": zipf,
    "epochs": epochs,
    "repetition": repetition,
    "gaps": gaps,
}


def _epochs(rng: np.random.Generator, samples: int, epochs: int) -> np.ndarray:
    """Return permutations, int64[epochs, samples]."""
    return rng.permuted(np.tile(np.arange(samples), (epochs, 1)), axis=1)


def _stream(
    requests: np.ndarray, each: int, samples: int, rng: np.random.Generator, layout: Layout
) -> Stream:
    """Return a stream of participations of `each` requests, laid out in batches and with sizes."""
    if unknown := layout.keys() - Layout.__annotations__.keys():
        raise TypeError(f"unknown argument {min(unknown)}")
    batch = layout.get("batch", 1)
    _check(batch=batch)
    sizes = _sizes(rng, samples, layout)
    positions = np.arange(len(requests)) % each
    starts = np.flatnonzero(positions == 0)
    return Stream(
        client=0,
        size_bytes=sizes,
        requests=requests,
        batch_starts=np.flatnonzero(positions % batch == 0),
        starts=starts,
        rounds=np.arange(1, len(starts) + 1),
    )


def _sizes(rng: np.random.Generator, samples: int, layout: Layout) -> np.ndarray:
    """Return the bytes of each sample, int64[samples]."""
    given = np.asarray(layout.get("size_bytes", 1))
    if given.dtype.kind not in "iu" or not np.all((given >= 1) & (given <= _MOST_BYTES)):
        raise ValueError("size_bytes are whole numbers from 1 to 2^32 - 1")
    sizes = np.array(np.broadcast_to(given, samples), np.int64)
    sigma = layout.get("sigma", 0.0)
    if not 0 <= sigma <= _MOST_SIGMA:
        raise ValueError(f"sigma is 0 to {_MOST_SIGMA}, got {sigma}")
    if sigma:
        drawn = sizes * np.exp(sigma * rng.standard_normal(samples))
        sizes = np.clip(drawn.round(), 1, _MOST_BYTES).astype(np.int64)
    return sizes


def _check(**counts: int) -> None:
    """Check that there is at least one of each, in whole numbers.

    Raises:
        ValueError: there is not.
    """
    for name, count in counts.items():
        if not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"{name} is a whole number from 1 on, got {count}")
