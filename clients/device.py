"""What a client is: its samples, its cache, its model, and what it does when asked."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord

from clients.background import InBackground
from clients.client_cache import ClientCache, staged_tag, trained_tag
from clients.client_data import ClientData, Slow, client_data
from clients.datapath import Ahead, Buffers, DataPath, largest_batch_bytes, stall_limit_s
from clients.injection import Injection
from clients.models import build
from clients.pace import OWN_PACE, Pace, ProfilePace
from clients.prepare import Federation, prepare
from clients.reading import Reading
from clients.recorder import Participated, Recorder
from clients.samplers import SAMPLERS, Sampler
from clients.shelf import Shelf
from clients.staging import AT_ONCE, Filling, Kept, Limits, staged_for, without_staging
from clients.trainer import Evaluation, Trained, Trainer
from clients.wall import ParticipationWall
from fedio.config import Experiment
from fedio.faults import struck
from fedio.plugins import create
from fedio.profiles import Speeds, fleet_of
from fedio.protocol import Claims, Meter, ProfileClaims, Staged
from fedio.seeds import Purpose, rng
from storage import Clock, SampleCache, WallClock
from storage.errors import StallError, StoreFull

logger = logging.getLogger(__name__)

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
    wall: ParticipationWall


class Host:
    """What the devices in one process share: the experiment, its data, one model."""

    def __init__(
        self,
        experiment: Experiment,
        home: Path,
        slow: Slow | None = None,
        threads: bool | None = None,
        alone: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the data (a look-up when it is prepared already) and build the model.

        Args:
            experiment: the experiment, of one arm.
            home: the folder under which the devices keep their caches.
            slow: what stands between the clients and their samples.
            threads: whether to prefetch in threads; where samples need no decoding and nothing
                slows their reading, there is nothing to gain by it.
            alone: whether this process is that of one device and of nothing else, so that what
                strikes the device may strike the process.
            clock: real time when not given.
        """
        self.experiment = experiment
        self.home = home
        self.alone = alone
        self.slow = slow
        self.clock = clock or WallClock()
        self.in_real_time = experiment.engine.clock == "wall"
        self.is_paced = self.in_real_time and experiment.emulation.pace == "profile"
        self.data: Federation = prepare(experiment)
        weights = rng(experiment.seed, Purpose.WEIGHTS)
        train = self.data.train
        self.trainer = Trainer(
            build(experiment.model, train.shape, train.classes, weights),
            experiment.training,
            self.clock.now_s,
        )
        takes_time = train.decoder.encoded or slow is not None or self.is_paced
        self.threads = takes_time if threads is None else threads
        self.buffers = Buffers(self.trainer.accelerator.pinned)
        _, self.speeds = fleet_of(experiment)
        self.shelf = Shelf(_open_caches())
        self._devices: dict[int, Device] = {}

    def device(self, partition: int) -> Device:
        """Return the device with that partition-id."""
        if partition not in self._devices:
            self._devices[partition] = Device(self, partition)
        return self._devices[partition]

    def close(self) -> None:
        """End staging that is under way, and close the devices' caches, whatever fails."""
        with ExitStack() as stack:
            stack.callback(self.shelf.close)
            for device in self._devices.values():
                stack.callback(device.end_staging)


class Device:
    """One client. Its cache lives on disk (or in memory) from one participation to the next.

    Attributes:
        data: its samples.
        in_real_time: whether the run's clock is the wall clock.
    """

    def __init__(self, host: Host, partition: int) -> None:
        experiment, federation = host.experiment, host.data
        self._host, self._partition = host, partition
        self.in_real_time = host.in_real_time
        self._speeds = host.speeds.take(partition)
        self.data: ClientData = client_data(
            experiment, federation, partition, self._speeds, host.slow
        )
        self._cache = ClientCache(
            experiment, host.home, federation, host.shelf, partition, self.data
        )
        self._staging: InBackground | None = None
        self._recorder: Recorder | None = None
        if experiment.engine.record_trace:
            sizes, budget_bytes = self.data.form.size_bytes, self.data.budget_bytes
            self._recorder = Recorder(experiment, host.home, partition, sizes, budget_bytes)

    def profile(self) -> ProfileClaims:
        """Return what the device says of itself before its first round."""
        self.end_staging()
        data = self.data
        batch_bytes = self._host.experiment.training.batch_size * data.size_bytes.mean()
        ahead = self._ahead(float(batch_bytes))
        speeds = {name: float(getattr(self._speeds, name)) for name in Speeds.__dataclass_fields__}
        speeds |= {"depth": float(ahead.depth), "readers": float(ahead.readers)}
        with self._cache.newest() as cache:
            return ProfileClaims(
                partition=self._partition,
                samples=len(data),
                mean_size_bytes=float(data.size_bytes.mean()),
                mean_cached_bytes=float(data.form.size_bytes.mean()),
                decoded_share=float(data.is_timed),
                cached_decoded_share=float((data.is_timed & ~data.form.prepared).mean()),
                budget_bytes=data.budget_bytes,
                resident_samples=len(cache),
                resident_bytes=cache.resident_bytes,
                **speeds,
            )

    def train(
        self,
        arrays: ArrayRecord,
        server_round: int,
        local_steps: int,
        proximal_mu: float = 0.0,
    ) -> Participation:
        """Train `local_steps` batches from `arrays`, reading through the cache.

        The cache is as it was before that round: training a round again, as a server does that was
        restored, goes back to the state from before, and what was evicted since is read again,
        uncounted. Staging that is under way ends here.

        Raises:
            DataPathError: too many samples cannot be read or decoded.
            OriginError: the origin gives nothing at all any more.
            KilledOnPurpose: the experiment asks for it.
        """
        began_s = self._host.clock.now_s()
        self.end_staging()
        training = self._host.experiment.training
        hit = struck(self._host.experiment, self._partition, server_round)
        injection = Injection(hit, own_process=self._host.alone)
        pace = self._pace(hit.storage_slowdown)
        download_s = pace.download(_size_bytes(arrays))
        injection.before(self._cache)
        with self._cache.before(trained_tag(server_round)) as cache:
            kept = staged_for(server_round, cache)
            sampler, order = self._order(cache, kept, server_round, local_steps)
            before = cache.stats.copy()
            path = self._path(injection.disk_of(cache), kept, sampler, order, pace)
            with closing(Reading(path, sampler)) as reading:
                lr = training.lr_of(server_round)
                batches = injection.in_the_middle(reading, local_steps)
                trained = self._host.trainer.train(
                    arrays, batches, lr, reading.feedback, proximal_mu, pace
                )
            path.finish()
            self._save(cache, server_round, sampler)
            meter = path.meter.result(cache.stats - before)
            claims = self._claims(cache, server_round, trained)
            if self._recorder is not None:
                of_accesses = reading.of_accesses(order, trained.losses)
                done = Participated(server_round, order, *of_accesses, meter.hits, meter.depth)
                self._recorder.write(done, sampler, cache.policy)
        upload_s = pace.upload(_size_bytes(trained.arrays))
        total_s = self._host.clock.now_s() - began_s
        wall = ParticipationWall(
            trained.wall, path.busy, total_s, download_s, upload_s, pace.behind_s
        )
        loss = float(trained.losses.mean())
        return Participation(trained.arrays, len(self.data), loss, meter, claims, wall)

    def stage(self, server_round: int, local_steps: int, limits: Limits) -> Staged:
        """Bring into the cache what the participation in a round to come will ask for.

        What it asks for is what its sampler says now. Staged again for the same round, as by a
        server that was restored, it starts from the state before.
        """
        self.end_staging()
        return self._stage(server_round, local_steps, limits)

    def stage_in_background(
        self,
        server_round: int,
        local_steps: int,
        write_bytes: float = float("inf"),
        window_s: float = float("inf"),
    ) -> InBackground:
        """Stage in real time until the device trains, or `end_staging`; returns what does it.

        At the pace of its profile it begins nothing that would not end within the window.
        """
        self.end_staging()
        pace = self._pace()

        def work(is_over: Callable[[], bool]) -> Staged:
            limits = Limits(pace.window_s(window_s), write_bytes, is_over)
            return self._stage(server_round, local_steps, limits, pace)

        self._staging = InBackground(work)
        return self._staging

    def stage_in_real_time(self, server_round: int, local_steps: int, limits: Limits) -> Staged:
        """Stage as long as the window is open, which now opens.

        Raises:
            StallError: it does not end, since the origin gives nothing any more.
        """
        within = limits.write_bytes, limits.window_s
        staging = self.stage_in_background(server_round, local_steps, *within)
        staging.wait(limits.window_s)
        return self._end(staging)

    def end_staging(self) -> Staged | None:
        """End staging that is under way, and return what it did.

        Raises:
            StallError: it does not end, since the origin gives nothing any more.
            Exception: what it failed with.
        """
        return None if self._staging is None else self._end(self._staging)

    def evaluate(self, arrays: ArrayRecord) -> Evaluation:
        """Return how good `arrays` are on the samples held out from training."""
        held_out = self._host.data.holdout_of(self._partition)
        train = self._host.data.train
        return self._host.trainer.evaluate(arrays, train.images(held_out), train.labels[held_out])

    def _end(self, staging: InBackground) -> Staged:
        try:
            staged = staging.end(stall_limit_s(AT_ONCE, self.data, self._pace()))
        except StallError:
            raise  # and it is still there
        except BaseException:
            self._staging = None
            raise
        self._staging = None
        return staged

    def _stage(
        self, server_round: int, local_steps: int, limits: Limits, pace: Pace = OWN_PACE
    ) -> Staged:
        with self._cache.before(staged_tag(server_round)) as cache:
            cache.unmark_staged(Kept.of(cache.notes).samples)
            _, order = self._order(cache, None, server_round, local_steps)
            filling = Filling(order, self.data, cache, self._speeds, pace)
            filling.fill(limits)
            notes = without_staging(cache.notes) | filling.kept(server_round).notes()
            cache.save(staged_tag(server_round), notes)
            return filling.staged(self._partition, server_round)

    def _order(
        self, cache: SampleCache, kept: Kept | None, server_round: int, local_steps: int
    ) -> tuple[Sampler, np.ndarray]:
        """Return the sampler, as it was after its last participation, and what it asks for now.

        That depends on what is cached, or was before it was staged for this round.
        """
        experiment, samples = self._host.experiment, len(self.data)
        given = (samples, experiment.training.batch_size)
        sampler: Sampler = create(experiment.chosen.sampler, SAMPLERS, Sampler, *given)  # type: ignore[type-abstract]
        sampler.restore(without_staging(cache.notes))
        sampling = rng(experiment.seed, Purpose.SAMPLING, self._partition, server_round)
        resident = np.zeros(samples, dtype=bool)
        resident[cache.residents if kept is None else kept.residents] = True
        accesses = local_steps * experiment.training.batch_size
        return sampler, sampler.checked_order(resident, accesses, sampling)

    def _path(
        self,
        cache: SampleCache,
        kept: Kept | None,
        sampler: Sampler,
        order: np.ndarray,
        pace: Pace,
    ) -> DataPath:
        """Return the data path of a participation; the policy hears of its order."""
        batch_size, data = self._host.experiment.training.batch_size, self.data
        cache.plan(order)
        return DataPath(
            order,
            batch_size,
            data,
            cache,
            self._host.buffers,
            self._ahead(largest_batch_bytes(order, batch_size, data.size_bytes)),
            weights=sampler.checked_weights(order),
            kept=None if kept is None else kept.samples,
            pace=pace,
        )

    def _pace(self, storage_slowdown: float = 1.0) -> Pace:
        """Return how long the device takes for what comes next."""
        host = self._host
        if host.is_paced:
            return ProfilePace(self._speeds, host.clock, storage_slowdown)
        return Pace(host.clock)

    def _save(self, cache: SampleCache, server_round: int, sampler: Sampler) -> None:
        """Keep the state of the cache after a round.

        If the disk has no room for it, training has been worth it all the same: the state that was
        saved last is still in force, and the next participation goes on from there. What that has
        lost since is read again, uncounted, as far as there is room for it.
        """
        try:
            cache.save(trained_tag(server_round), sampler.columns())
        except StoreFull as error:
            where = self._partition, server_round
            logger.warning("partition %d: its cache is not saved after round %d: %s", *where, error)

    def _ahead(self, batch_bytes: float) -> Ahead:
        """Return how reading runs ahead, where the largest batch has so many encoded bytes."""
        host, speeds = self._host, self._speeds
        if not host.experiment.chosen.prefetch:
            return Ahead()
        # What is cached prepared is decoded in turn: more readers would only wait. Those that slow
        # training down count as one on the clock.
        alone = self.data.form.some_prepared or speeds.slowdown > 1
        readers = 1 if alone else int(speeds.readers)
        prepared_bytes = int(host.data.prepared_bytes[0])
        images_bytes = host.experiment.training.batch_size * prepared_bytes
        room = (float(speeds.buffer_bytes) - readers * batch_bytes) // images_bytes
        return Ahead(int(np.clip(room, 1, speeds.depth)), readers, host.threads)

    def _claims(self, cache: SampleCache, server_round: int, trained: Trained) -> Claims:
        """Return what the device says of itself after training."""
        return Claims(
            partition=self._partition,
            server_round=server_round,
            utility=oort_utility(trained.losses, trained.step_samples, len(self.data)),
            resident_samples=len(cache),
            resident_bytes=cache.resident_bytes,
        )


def oort_utility(losses: np.ndarray, step_samples: np.ndarray, samples: int) -> float:
    """Return Oort's statistical utility: sqrt(sum over steps of mean(loss^2)) * min(n, q).

    Args:
        losses: float [q], the loss of every access.
        step_samples: int64 [steps], how many of them each step had, at least 1.
        samples: n, the client's number of samples.

    Source: Oort (OSDI'21), section 4.2, as its public client computes it.
    """
    first = np.cumsum(step_samples) - step_samples
    means = np.add.reduceat(np.square(losses), first) / step_samples
    return float(np.sqrt(means.sum()) * min(samples, len(losses)))


def _size_bytes(arrays: ArrayRecord) -> int:
    """Return what is sent of a model."""
    return sum(len(array.data) for array in arrays.values())


def _open_caches() -> int:
    """Return how many caches may stay open under this process's limit of descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MOST_OPEN_CACHES, (limit - OTHER_DESCRIPTORS) // DESCRIPTORS_EACH))
