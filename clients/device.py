"""What a client is: its samples, its cache, its model, and what it does when asked."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord

from clients.datapath import Batch, ClientData, ahead, batches
from clients.meter import MeterReading
from clients.models import build
from clients.prepare import Federation, prepare
from clients.recorder import Participated, Recorder
from clients.samplers import SAMPLERS, Sampler
from clients.shelf import Shelf
from clients.trainer import Evaluation, Trainer
from fedio.config import Experiment
from fedio.plugins import create
from fedio.profiles import Speeds, fleet_of
from fedio.protocol import Claims, Meter, ProfileClaims
from fedio.runs import CACHES_FOLDER
from fedio.seeds import Purpose, rng
from storage import MemoryStore, Policy, SampleCache, open_cache
from storage.policies import POLICIES

AHEAD_BYTES = 32 << 20

# An open LMDB file takes three descriptors; the rest of the process keeps some too.
MOST_OPEN_CACHES, DESCRIPTORS_EACH, OTHER_DESCRIPTORS = 128, 3, 128


@dataclass(frozen=True, slots=True)
class Participation:
    """What a device brings back from training."""

    arrays: ArrayRecord
    samples: int
    train_loss: float
    meter: Meter
    claims: Claims


class Host:
    """What the devices in one process share: the experiment, its data, one model."""

    def __init__(self, experiment: Experiment, home: Path) -> None:
        """Prepare the data (a look-up when it is prepared already) and build the model.

        Args:
            experiment: the experiment, of one arm.
            home: the folder under which the devices keep their caches.
        """
        self.experiment = experiment
        self.home = home
        self.data: Federation = prepare(experiment)
        weights = rng(experiment.seed, Purpose.WEIGHTS)
        train = self.data.train
        self.trainer = Trainer(
            build(experiment.model, train.shape, train.classes, weights), experiment.training
        )
        _, self.speeds = fleet_of(experiment)
        self.shelf = Shelf(_open_caches())
        self._devices: dict[int, Device] = {}

    def device(self, partition: int) -> Device:
        """Return the device with that partition-id."""
        if partition not in self._devices:
            self._devices[partition] = Device(self, partition)
        return self._devices[partition]

    def close(self) -> None:
        """Close the devices' caches."""
        self.shelf.close()


class Device:
    """One client. Its cache lives on disk (or in memory) from one participation to the next."""

    def __init__(self, host: Host, partition: int) -> None:
        self._host = host
        self._partition = partition
        indices = host.data.samples_of(partition)
        self._data = _client_data(host.data, indices)
        self._budget_bytes = host.experiment.cache.budget_of(int(self._data.size_bytes.sum()))
        self._memory: MemoryStore | None = None
        self._recorder: Recorder | None = None
        if host.experiment.engine.record_trace:
            self._recorder = Recorder(
                host.experiment, host.home, partition, self._data.size_bytes, self._budget_bytes
            )

    def profile(self) -> ProfileClaims:
        """Return what the device says of itself before its first round."""
        speeds: Speeds = self._host.speeds.take(self._partition)
        with self._cache() as cache:
            return ProfileClaims(
                partition=self._partition,
                samples=len(self._data.labels),
                mean_size_bytes=float(self._data.size_bytes.mean()),
                mean_decode_s=float(self._data.decode_s.mean()),
                budget_bytes=self._budget_bytes,
                resident_samples=len(cache),
                resident_bytes=cache.resident_bytes,
                **{name: float(getattr(speeds, name)) for name in Speeds.__dataclass_fields__},
            )

    def train(self, arrays: ArrayRecord, server_round: int, local_steps: int) -> Participation:
        """Train `local_steps` batches from `arrays`, reading through the cache.

        The cache is as it was before that round: training a round again, as a server does that was
        restored, goes back to the state from before, and what was evicted since is read again,
        uncounted.
        """
        experiment, data = self._host.experiment, self._data
        training = experiment.training
        sampling = rng(experiment.seed, Purpose.SAMPLING, self._partition, server_round)
        with self._cache(server_round) as cache:
            self._refill(cache)
            resident = np.zeros(len(data.labels), dtype=bool)
            resident[cache.residents] = True
            sampler = self._sampler(cache.notes)
            order = sampler.checked_order(resident, local_steps * training.batch_size, sampling)
            cache.plan(order)
            meter = MeterReading(cache.stats.copy(), data.size_bytes, data.decode_s)
            source = batches(order, training.batch_size, data, cache, meter)
            # What a policy learns from a step decides about the next reads; otherwise they may
            # as well come first.
            reading = _LastBatch(source if cache.policy.learns else ahead(source, AHEAD_BYTES))

            def feedback(losses: np.ndarray) -> None:
                cache.feedback(reading.samples, losses)
                sampler.feedback(reading.samples, losses)

            learns = cache.policy.learns or sampler.learns
            trained = self._host.trainer.train(
                arrays, reading, training.lr_of(server_round), feedback if learns else None
            )
            cache.save(server_round, sampler.columns())
            claims = Claims(
                partition=self._partition,
                server_round=server_round,
                utility=oort_utility(trained.losses, len(data.labels)),
                resident_samples=len(cache),
                resident_bytes=cache.resident_bytes,
            )
            counts = meter.result(cache.stats)
            if self._recorder is not None:
                done = Participated(server_round, order, meter.served, trained.losses, counts.hits)
                self._recorder.write(done, sampler, cache.policy)
        return Participation(
            trained.arrays, len(data.labels), float(trained.losses.mean()), counts, claims
        )

    def evaluate(self, arrays: ArrayRecord) -> Evaluation:
        """Return how good `arrays` are on the samples held out from training."""
        held_out = self._host.data.holdout_of(self._partition)
        train = self._host.data.train
        return self._host.trainer.evaluate(arrays, train.images(held_out), train.labels[held_out])

    def _sampler(self, columns: dict[str, np.ndarray]) -> Sampler:
        """Return the sampler as it was at the end of the last participation."""
        experiment, samples = self._host.experiment, len(self._data.labels)
        given = (samples, experiment.training.batch_size)
        sampler: Sampler = create(experiment.chosen.sampler, SAMPLERS, Sampler, *given)  # type: ignore[type-abstract]
        sampler.restore(columns)
        return sampler

    def _cache(self, before: int | None = None) -> AbstractContextManager[SampleCache]:
        """Lend the device's cache for one participation, in a state from before that round."""
        return self._host.shelf.take(self._partition, partial(self._open_cache, before), before)

    def _open_cache(self, before: int | None) -> SampleCache:
        experiment, data = self._host.experiment, self._data
        policy = create(experiment.chosen.policy, POLICIES, Policy, len(data.labels))  # type: ignore[type-abstract]
        if experiment.cache.store == "memory":
            self._memory = self._memory or MemoryStore()
            return SampleCache(self._memory, self._budget_bytes, policy, before)
        return open_cache(
            self._host.home / CACHES_FOLDER / str(self._partition),
            self._budget_bytes,
            policy,
            payload_bytes=data.origin.size_bytes if self._host.data.inflated else None,
            identity=f"{self._host.data.hash}/{self._partition}",
            durable=experiment.cache.durable,
            before=before,
        )

    def _refill(self, cache: SampleCache) -> None:
        """Bring back what the state of the cache names and its data lack."""
        missing, origin = cache.missing, self._data.origin
        if len(missing):
            lengths = origin.size_bytes[missing]
            buffer = np.empty(int(lengths.sum()), np.uint8)
            cache.refill(missing, buffer, origin.read(missing, buffer, 0), lengths)


class _LastBatch:
    """Hands batches to the trainer and remembers whose losses come next."""

    def __init__(self, source: Iterator[Batch]) -> None:
        self._source = source
        self.samples = np.empty(0, dtype=np.int64)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in self._source:
            self.samples = batch.samples
            yield batch.images, batch.labels


def oort_utility(losses: np.ndarray, samples: int) -> float:
    """Return Oort's statistical utility: sqrt(sum over steps of mean(loss^2)) * min(n, q).

    Args:
        losses: float [steps, batch], the loss of every access.
        samples: n, the client's number of samples.

    Source: Oort (OSDI'21), section 4.2, as its public client computes it.
    """
    return float(np.sqrt(np.square(losses).mean(axis=1).sum()) * min(samples, losses.size))


def _client_data(data: Federation, indices: np.ndarray) -> ClientData:
    return ClientData(
        dataset=data.train,
        origin=data.train.origin.subset(indices),
        labels=data.train.labels[indices],
        size_bytes=data.size_bytes[indices],
        decode_s=data.decode_s[indices],
    )


def _open_caches() -> int:
    """Return how many caches may stay open under this process's limit of descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MOST_OPEN_CACHES, (limit - OTHER_DESCRIPTORS) // DESCRIPTORS_EACH))
