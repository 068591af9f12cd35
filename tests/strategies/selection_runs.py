"""Runs of a selector over a small model of clients: they take time and report, none trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from fedio.costs import Work, phases
from fedio.profiles import Speeds, draw_fleet
from strategies.fleet import Fleet
from strategies.selector import Cohort, Selector, View
from strategies.selectors.claims import predicted_s

STEPS, BATCH = 8, 20
SIZE_BYTES = 7.5e6
Claims = dict[str, np.ndarray]
# What clients say in the place of the truth: (clients, the truth) -> claims.
Says = Callable[[np.ndarray, Claims], Claims]


@dataclass(frozen=True)
class Run:
    """What became of a run: bool [rounds, clients], and seconds per round.

    `picked` are those selected without those that stood by. `expected_s` is what the cost model
    says of the same cohort's round from the true state of the caches before it.
    """

    cohorts: list[Cohort]
    selected: np.ndarray
    picked: np.ndarray
    round_s: np.ndarray
    expected_s: np.ndarray


class Clients:
    """Clients as they are: devices, samples, and caches that keep a share of what they read first.

    With `noise` their batches hit and weigh what they happen to, else exactly what is expected.
    Losses fall with a client's own training, and less with that of the others.
    """

    def __init__(
        self,
        speeds: Speeds,
        samples: np.ndarray,
        seed: int,
        cache_share: float = 0.3,
        noise: bool = True,
    ) -> None:
        self.count, self.seed, self.noise = len(samples), seed, noise
        self.kept = np.floor(cache_share * samples).astype(np.int64)
        self.truth = Fleet.unknown(self.count)
        for field in fields(Speeds):
            getattr(self.truth.speeds, field.name)[:] = getattr(speeds, field.name)
        alike = {"decoded_share": 1.0, "cached_decoded_share": 1.0, "resident_samples": 0}
        alike |= {"mean_size_bytes": SIZE_BYTES, "mean_cached_bytes": SIZE_BYTES}
        for name, value in alike.items():
            getattr(self.truth, name)[:] = value
        self.truth.samples[:] = samples
        self.truth.budget_bytes[:] = self.kept * SIZE_BYTES
        rng = np.random.default_rng([seed, 1])
        self.hardness = rng.lognormal(0.0, 0.3, self.count)
        self.truth.available_later[:] = rng.random(self.count)
        self.trained = np.zeros(self.count)

    def train(self, view: View, clients: np.ndarray) -> np.ndarray:
        """Return the seconds that clients take, by what they really read, and fill their caches."""
        rng = np.random.default_rng([self.seed, 2, view.round])
        hits = np.repeat(BATCH * self.truth.resident_share[clients][:, None], STEPS, axis=1)
        misses_bytes = (BATCH - hits) * SIZE_BYTES
        if self.noise:
            hits = rng.binomial(BATCH, hits / BATCH).astype(np.float64)
            misses_bytes = (BATCH - hits) * SIZE_BYTES * rng.lognormal(-0.005, 0.1, hits.shape)
        nothing, model = np.zeros_like(hits), np.full(len(clients), view.model_bytes)
        speeds = self.truth.speeds.take(clients)
        work = Work(
            steps=STEPS,
            samples=np.full_like(hits, BATCH),
            hits=hits,
            hit_bytes=hits * SIZE_BYTES,
            misses=BATCH - hits,
            origin_bytes=misses_bytes,
            decodes=np.full_like(hits, BATCH),
            decoded_bytes=hits * SIZE_BYTES + misses_bytes,
            writes=nothing,
            written_bytes=nothing,
            download_bytes=model,
            upload_bytes=model,
            depth=speeds.depth,
            readers=speeds.readers,
        )
        self.trained[clients] += 1
        self.truth.resident_samples[clients] = self.kept[clients]
        return phases(work, speeds).total_s

    def report(self, clients: np.ndarray) -> Claims:
        """Return what is so of clients that have trained."""
        elsewhere = self.trained.sum() / self.count
        own = np.exp(-0.15 * self.trained[clients] - 0.1 * elsewhere)
        loss = self.hardness[clients] * (0.1 + own)
        return {
            "loss": loss,
            "utility": loss * np.minimum(self.truth.samples[clients], STEPS * BATCH),
            "resident_samples": self.truth.resident_samples[clients].astype(np.float64),
        }


def phones(count: int, seed: int) -> Clients:
    """Make clients like those of the quickstart: phones and boards of many kinds."""
    rng = np.random.default_rng([seed, 0])
    kinds = {"phone-low": 3, "phone-mid": 3, "phone-mid-sd": 2, "phone-high-sd": 3, "board": 1}
    _, speeds = draw_fleet(kinds, count, rng, decode_bytes_per_s=100e6, spread=0.2)
    samples = np.clip(rng.lognormal(math.log(120), 0.5, count), 24, 600).astype(np.int64)
    return Clients(speeds, samples, seed)


def honest(clients: np.ndarray, truth: Claims) -> Claims:
    """Everybody says what is so."""
    del clients
    return truth


def run(
    selector: Selector,
    clients: Clients,
    rounds: int,
    wanted: int,
    says: Says = honest,
    over_commitment: float = 1.3,
) -> Run:
    """Run rounds of which the `wanted` fastest count; the late stay busy, and are heard later."""
    fleet = Fleet.from_arrays({name: a.copy() for name, a in clients.truth.arrays().items()})
    everyone = np.arange(clients.count)
    fleet.claimed(everyone, 0, **says(everyone, {"resident_samples": np.zeros(clients.count)}))
    state, now_s = selector.initial_state(clients.count), 0.0
    on_the_way: list[tuple[float, int, int, float]] = []
    cohorts, round_s, expected_s = [], np.zeros(rounds), np.zeros(rounds)
    selected = np.zeros((rounds, clients.count), dtype=np.bool_)
    picked = selected.copy()
    for at in range(rounds):
        view = View(
            fleet=fleet.read_only(),
            round=at + 1,
            now_s=now_s,
            feasible=fleet.feasible(now_s),
            wanted=wanted,
            count=math.ceil(wanted * over_commitment),
            local_steps=STEPS,
            batch_size=BATCH,
            model_bytes=1e6,
        )
        cohort, state = selector.select(view, state, np.random.default_rng([clients.seed, 4, at]))
        chosen = cohort.clients
        truly = replace(view, fleet=clients.truth.read_only())
        expected_s[at] = np.sort(predicted_s(truly, chosen))[:wanted].max()
        took_s = clients.train(view, chosen)
        round_s[at] = np.sort(took_s)[:wanted].max()
        fleet.selected(chosen, view.round)
        fleet.busy(chosen, now_s + took_s)
        for client, seconds in zip(chosen.tolist(), took_s.tolist(), strict=True):
            on_the_way.append((now_s + seconds, client, view.round, seconds))
        now_s += round_s[at]
        for _, client, begun, seconds in sorted(one for one in on_the_way if one[0] <= now_s):
            who = np.array([client])
            fleet.observed(who, begun, seconds)
            fleet.claimed(who, begun, **says(who, clients.report(who)))
        on_the_way = [one for one in on_the_way if one[0] > now_s]
        cohorts.append(cohort)
        selected[at, chosen] = True
        picked[at, chosen[np.array(cohort.reasons.why) != "spare"]] = True
    return Run(cohorts, selected, picked, round_s, expected_s)


def jain_index(times: np.ndarray) -> float:
    """Return (sum x)^2 / (n sum x^2): 1 where all are alike, 1 / n where one has all."""
    return float(times.sum() ** 2 / (len(times) * (times**2).sum()))
