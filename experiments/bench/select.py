"""Selectors: what choosing a cohort takes and needs beside sorting as many numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from statistics import median

import numpy as np

from experiments.bench.measure import Row, in_turns
from fedio.profiles import Speeds, draw_fleet, known_profiles
from strategies.fleet import Fleet
from strategies.selector import Selector, State, View
from strategies.selectors import SELECTORS

ARGSORT = "argsort"
_ROUND = 30
_ROUND_S = 300.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        clients: sizes of the fleet.
        count: clients to select.
        warm_rounds: rounds that every selector has seen before.
        turn_clients: a turn selects so often that it goes through so many clients at least.
    """

    clients: tuple[int, ...]
    count: int
    warm_rounds: int
    turn_clients: int


FULL = Scale(
    clients=(1000, 10_000, 100_000, 1_000_000), count=100, warm_rounds=6, turn_clients=5000
)


def rows(scale: Scale = FULL) -> Iterator[Row]:
    """Measure every selector of the table at every size; takes a minute or two."""
    for clients in scale.clients:
        yield from _beside_argsort(clients, scale)


def _beside_argsort(clients: int, scale: Scale) -> Iterator[Row]:
    """Yield two rows per selector at one size, of time and of memory."""
    rng = np.random.default_rng(clients)
    fleet, numbers = drawn_fleet(clients, rng), rng.random(clients)
    selectors = {name: selector() for name, selector in SELECTORS.items()}
    states = _warm(selectors, fleet, scale, rng)
    view = _view(fleet, _ROUND + scale.warm_rounds, scale.count)
    calls = max(1, scale.turn_clients // clients)

    def select(name: str) -> Callable[[], object]:
        return lambda: selectors[name].select(view, states[name], rng)

    def argsort() -> object:
        return np.argsort(numbers)

    selections = [select(name) for name in selectors]
    reference_s, *ours_s = in_turns(*(_often(one, calls) for one in (argsort, *selections)))
    setting = {"clients": clients, "count": scale.count}
    table_mb = sum(column.nbytes for column in fleet.arrays().values()) / 1e6
    reference_mb = _peak_mb(argsort)
    for name, one, turns_s in zip(selectors, selections, ours_s, strict=True):
        ratio = median(ref / own for ref, own in zip(reference_s, turns_s, strict=True))
        value_ms = median(turns_s) / calls * 1e3
        yield Row(f"select.{name}", value_ms, "ms/selection", ARGSORT, ratio, setting)
        peak_mb = _peak_mb(one)
        yield Row(
            name=f"memory.select.{name}",
            value=peak_mb,
            unit="MB/selection",
            reference=ARGSORT,
            ratio=reference_mb / peak_mb,
            setting=setting | {"table_mb": round(table_mb, 3)},
        )


def _often(action: Callable[[], object], calls: int) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(calls):
            action()

    return turn


def _peak_mb(action: Callable[[], object]) -> float:
    """Return what an action allocates at its peak, beyond what is there before, by tracemalloc."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def _view(fleet: Fleet, server_round: int, count: int) -> View:
    """Return the view of a round."""
    now_s = server_round * _ROUND_S
    return View(
        fleet=fleet.read_only(),
        round=server_round,
        now_s=now_s,
        feasible=fleet.feasible(now_s),
        wanted=count,
        count=count,
        local_steps=8,
        batch_size=20,
        model_bytes=1e7,
    )


def _warm(
    selectors: dict[str, Selector], fleet: Fleet, scale: Scale, rng: np.random.Generator
) -> dict[str, State]:
    """Let every selector choose for some rounds, the chosen answer, and return the states."""
    states = {name: one.initial_state(len(fleet)) for name, one in selectors.items()}
    for server_round in range(_ROUND, _ROUND + scale.warm_rounds):
        for name, selector in selectors.items():
            view = _view(fleet, server_round, scale.count)
            cohort, states[name] = selector.select(view, states[name], rng)
            _answer(fleet, cohort.clients, server_round, rng)
    return states


def _answer(fleet: Fleet, clients: np.ndarray, server_round: int, rng: np.random.Generator) -> None:
    """Write into the table what participations of clients bring, all of them by the next round."""
    samples = fleet.samples[clients]
    fleet.selected(clients, server_round)
    fleet.observed(clients, server_round, rng.uniform(1.0, _ROUND_S, len(clients)))
    fleet.claimed(
        clients,
        server_round,
        utility=samples * rng.lognormal(0.0, 0.5, len(clients)),
        loss=rng.lognormal(0.0, 0.5, len(clients)),
        resident_samples=samples // 4,
    )
    fleet.trained(clients)


def drawn_fleet(clients: int, rng: np.random.Generator) -> Fleet:
    """Draw a table as it may be in round 30.

    All shipped device classes; caches of 10 to 50 % of the samples, a quarter of them empty; a
    third of the clients caches decoded images. A tenth was never tried, 1 in 50 is not known at
    all, 1 in 20 is away and 1 in 20 at work.
    """
    fleet = Fleet.unknown(clients)
    _, speeds = draw_fleet(dict.fromkeys(known_profiles(), 1.0), clients, rng, spread=0.3)
    for field in fields(Speeds):
        getattr(fleet.speeds, field.name)[:] = getattr(speeds, field.name)
    samples = np.clip(rng.lognormal(4.7, 0.7, clients), 20, 5000).astype(np.int64)
    size_bytes = rng.lognormal(11.5, 0.5, clients)
    held = np.where(rng.random(clients) < 0.25, 0.0, rng.uniform(0.1, 0.5, clients))
    prepared = rng.random(clients) < 1 / 3
    _write(
        fleet,
        rng.random(clients) >= 0.02,
        samples=samples,
        mean_size_bytes=size_bytes,
        mean_cached_bytes=np.where(prepared, 150_528.0, size_bytes),
        decoded_share=np.ones(clients),
        cached_decoded_share=np.where(prepared, 0.0, 1.0),
        resident_samples=held * samples,
        available_later=rng.random(clients),
        available=rng.random(clients) >= 0.05,
        busy_until_s=np.where(rng.random(clients) < 0.05, 1e9, 0.0),
    )
    trained_round = rng.integers(1, _ROUND, clients)
    _write(
        fleet,
        fleet.known & (rng.random(clients) >= 0.1),
        utility=samples * rng.lognormal(0.0, 0.5, clients),
        loss=rng.lognormal(0.0, 0.5, clients),
        duration_s=rng.lognormal(4.0, 1.0, clients),
        last_round=trained_round,
        claimed_round=trained_round,
        selected_round=trained_round,
        times_selected=rng.integers(1, 5, clients),
    )
    return fleet


def _write(fleet: Fleet, who: np.ndarray, **columns: np.ndarray) -> None:
    """Write columns of all clients into the rows of some, bool [clients]."""
    for name, values in columns.items():
        np.copyto(getattr(fleet, name), values, where=who, casting="unsafe")
