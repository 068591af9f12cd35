"""Whatever fails while samples are loaded: training goes on without them, or ends with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clients import datapath
from clients.client_data import ClientData
from clients.datapath import Ahead, Buffers, DataPath
from clients.device import Host
from clients.fetching import DataPathError
from clients.loading import UNREADABLE, Loader, load_for_cache
from fedio.config import Experiment
from storage import LRU, POLICIES, FileOrigin, SampleCache, StallError, Status, StoreFull
from tests.clients.faults import Faulty, Spoil, cut_short, emptied, flipped
from tests.clients.participations import (
    Listened,
    Seen,
    assert_same,
    participate,
    prepared,
    state_of,
    threads_of_ours,
)

Small = Callable[..., Experiment]
BATCH, STEPS = 4, 13
EVERY = [Ahead(1), Ahead(3), Ahead(2, 1, threads=True), Ahead(3, 2, threads=True)]
INFINITY = float("inf")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not threads_of_ours()


@pytest.fixture(params=EVERY, ids=lambda ahead: f"{ahead.depth}-{ahead.readers * ahead.threads}")
def ahead(request: pytest.FixtureRequest) -> Ahead:
    """In turns, and in threads."""
    chosen: Ahead = request.param
    return chosen


@pytest.fixture
def photos(small: Small, tmp_path: Path) -> ClientData:
    """72 real JPEG files."""
    experiment = small(data={"clients": 1}, rounds={"cohort": 1})
    host = Host(experiment, tmp_path / "host")
    host.close()
    return host.device(0).data


class Trial:
    """Participations of one client, whose origin fails as it is told to."""

    def __init__(self, data: ClientData, ahead: Ahead, policy: str = "lru") -> None:
        self.origin = Faulty(data.origin)
        self.data = replace(data, origin=self.origin)
        self.ahead, self.buffers = ahead, Buffers()
        self.budget_bytes = int(data.form.size_bytes.sum()) // 2
        self.cache = Listened(self.budget_bytes, POLICIES[policy](len(data)))

    def path(self, number: int) -> DataPath:
        """Each participation asks for 52 of 72 samples, and for none of them twice."""
        order = np.random.default_rng(number).permutation(len(self.data))[: BATCH * STEPS]
        return DataPath(order, BATCH, self.data, self.cache, self.buffers, self.ahead)

    def run(self, number: int = 0) -> Seen:
        return participate(self.path(number), self.cache)

    def check(self) -> None:
        """Nothing is lost, and nobody is there any more."""
        assert all(pool.free == pool.count for pool in self.buffers._pools.values())
        assert not threads_of_ours()
        assert self.cache.residents.tolist() == self.cache.store.present().tolist()


def order_of(trial: Trial, number: int = 0) -> np.ndarray:
    return trial.path(number)._fetcher._order


@pytest.mark.parametrize("policy", ["lru", "importance"])
def test_what_fails_once_is_read_again(photos: ClientData, ahead: Ahead, policy: str) -> None:
    trial, calm = Trial(photos, ahead, policy), Trial(photos, ahead, policy)
    for sample in order_of(trial)[[0, 17, 51]].tolist():
        trial.origin.failures[sample] = 1
    for number in range(3):
        assert_same(trial.run(number), calm.run(number))
    assert state_of(trial.cache) == state_of(calm.cache)
    assert not any(trial.origin.failures.values())
    trial.check()


@pytest.mark.parametrize("policy", ["lru", "importance"])
def test_a_sample_that_never_reads_is_skipped(
    photos: ClientData, ahead: Ahead, policy: str
) -> None:
    trial, calm = Trial(photos, ahead, policy), Trial(photos, ahead, policy)
    order, lost = order_of(trial), 5 * BATCH + 1
    bad = order.item(lost)
    trial.origin.failures[bad] = INFINITY
    seen, whole = trial.run(), calm.run()
    places = np.concatenate([batch.places for batch in seen.batches])
    np.testing.assert_array_equal(places, np.delete(np.arange(BATCH * STEPS), lost))
    np.testing.assert_array_equal(seen.samples, order[places])
    for batch, losses, full in zip(seen.batches, seen.losses, whole.batches, strict=True):
        rows = np.isin(full.samples, batch.samples)
        np.testing.assert_array_equal(batch.images, full.images[rows])
        np.testing.assert_array_equal(batch.labels, full.labels[rows])
        assert len(losses) == len(batch.samples)
    meter, size = seen.meter, photos.size_bytes.item(bad)
    assert (meter.skipped, meter.trained_samples, meter.unique_samples) == (1, 51, 51)
    assert (meter.requests, meter.misses) == (52, 52)
    assert meter.step_samples == [BATCH - (step == 5) for step in range(STEPS)]
    assert meter.origin_bytes == whole.meter.origin_bytes - size
    assert meter.decoded_bytes == whole.meter.decoded_bytes - size
    assert bad not in trial.cache
    trial.origin.failures.clear()
    assert trial.run(1).meter.skipped == 0
    trial.check()


def test_losses_and_weights_stay_with_their_samples(photos: ClientData, ahead: Ahead) -> None:
    trial = Trial(photos, ahead, "importance")
    order = order_of(trial)
    bad = order[9].item()
    trial.origin.failures[bad] = INFINITY
    weights = np.random.default_rng(0).random(len(order))
    path = DataPath(order, BATCH, trial.data, trial.cache, trial.buffers, ahead, weights=weights)
    seen = participate(path, trial.cache)
    for batch in seen.batches:
        assert batch.weights is not None
        np.testing.assert_array_equal(batch.weights, weights[batch.places])
    told = [samples for event, samples in trial.cache.events if event == "told"]
    assert told == [batch.samples.tolist() for batch in seen.batches]


def test_a_batch_of_which_nothing_reads_is_left_out(photos: ClientData, ahead: Ahead) -> None:
    """The others are told as late as ever: one of them has nothing to tell."""
    trial = Trial(photos, ahead, "importance")
    batches = [batch.tolist() for batch in np.split(order_of(trial), STEPS)]
    trial.origin.failures = dict.fromkeys(batches[4], INFINITY)
    seen = trial.run()
    assert [batch.samples.tolist() for batch in seen.batches] == batches[:4] + batches[5:]
    expected = []
    for step, batch in enumerate(batches):
        if step >= ahead.depth and step - ahead.depth != 4:
            expected.append(("told", batches[step - ahead.depth]))
        expected.append(("read", batch))
    expected += [("told", batch) for batch in batches[STEPS - ahead.depth :]]
    assert trial.cache.events == expected
    assert seen.meter.step_samples == [BATCH * (step != 4) for step in range(STEPS)]
    assert seen.meter.skipped == BATCH
    trial.check()


def test_more_than_a_tenth_lost_ends_the_participation(photos: ClientData, ahead: Ahead) -> None:
    trial, calm = Trial(photos, ahead), Trial(photos, ahead)
    order = order_of(trial)
    trial.origin.failures = dict.fromkeys(order[::10][:6].tolist(), INFINITY)
    with pytest.raises(DataPathError, match=r"6 of 52 samples cannot be read: sample \d+ does"):
        trial.run()
    trial.check()
    trial.origin.failures.clear()
    trial.cache = Listened(trial.budget_bytes, LRU(len(photos)))
    assert_same(trial.run(), calm.run())
    trial.origin.failures = dict.fromkeys(order[::10][:5].tolist(), INFINITY)
    trial.cache = Listened(trial.budget_bytes, LRU(len(photos)))
    assert trial.run().meter.skipped == 5


@pytest.mark.parametrize("after", [0, 6])
def test_an_origin_that_vanishes_ends_the_participation(
    photos: ClientData, ahead: Ahead, after: int
) -> None:
    trial, calm = Trial(photos, ahead), Trial(photos, ahead)
    trial.origin.gone_after = after
    with pytest.raises(DataPathError, match="of 52 samples cannot be read: nobody is there"):
        trial.run()
    trial.check()
    trial.origin.gone_after = INFINITY
    trial.cache = Listened(trial.budget_bytes, LRU(len(photos)))
    assert_same(trial.run(), calm.run())


@pytest.mark.parametrize("at", [0, 4])
def test_an_origin_that_hangs_counts_as_gone(
    photos: ClientData, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datapath, "STALL_LIMIT_S", 1.0)
    ahead = Ahead(3, 2, threads=True)
    trial, calm = Trial(photos, ahead), Trial(photos, ahead)
    trial.origin.hangs_at = at
    taken = []
    path = trial.path(0)
    with pytest.raises(StallError, match=r"nothing came for 1 s"):
        taken.extend(batch.samples.tolist() for batch in path.batches())
    assert len(taken) == at
    monkeypatch.setattr(datapath, "STALL_LIMIT_S", 60.0)
    # Another participation goes on beside the reader that hangs, in memory of its own.
    trial.cache.close()
    trial.cache = Listened(trial.budget_bytes, LRU(len(photos)))
    assert_same(trial.run(), calm.run())
    (hanging,) = threads_of_ours()
    trial.origin.released.set()
    hanging.join(60)
    trial.check()
    assert_same(trial.run(1), calm.run(1))


SPOILS = [cut_short, emptied, flipped]


@pytest.mark.parametrize("form", ["encoded", "prepared"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_no_image_for_good_is_skipped_and_not_left_in_the_cache(
    photos: ClientData, ahead: Ahead, spoil: Spoil, form: str
) -> None:
    data = photos if form == "encoded" else prepared(photos, photos.image_bytes)
    trial, calm = Trial(data, ahead), Trial(data, ahead)
    bad = order_of(trial).item(50)
    trial.origin.spoilt[bad] = spoil, INFINITY
    seen, whole = trial.run(), calm.run()
    assert bad not in seen.samples
    assert (seen.meter.skipped, seen.meter.misses) == (1, whole.meter.misses)
    # Its bytes were read, all the same.
    assert seen.meter.origin_bytes == whole.meter.origin_bytes
    assert bad in calm.cache
    assert bad not in trial.cache
    trial.check()
    trial.origin.spoilt.clear()
    again = trial.run()
    assert again.meter.skipped == 0
    for batch, expected in zip(again.batches, whole.batches, strict=True):
        np.testing.assert_array_equal(batch.images, expected.images)


@pytest.mark.parametrize("form", ["encoded", "prepared"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_no_image_once_is_read_again(
    photos: ClientData, ahead: Ahead, spoil: Spoil, form: str
) -> None:
    data = photos if form == "encoded" else prepared(photos, photos.image_bytes)
    trial, calm = Trial(data, ahead), Trial(data, ahead)
    bad = order_of(trial).item(50)
    trial.origin.spoilt[bad] = spoil, 1
    assert_same(trial.run(), calm.run())
    # What is cached encoded came before anybody looked at it.
    assert (bad in trial.cache) == (form == "prepared")
    assert bad in calm.cache
    again, expected = trial.run(1), calm.run(1)
    np.testing.assert_array_equal(again.samples, expected.samples)
    for batch, full in zip(again.batches, expected.batches, strict=True):
        np.testing.assert_array_equal(batch.images, full.images)
    if form == "prepared":
        assert_same(again, expected)
    trial.check()


def test_a_bad_payload_is_not_used_twice_in_a_participation(
    photos: ClientData, ahead: Ahead
) -> None:
    """It comes from the cache the second time, and is read again."""
    trial = Trial(photos, ahead)
    trial.origin.spoilt[3] = cut_short, 1
    order = np.array([3, 1, 2, 4, 3, 5, 6, 7])
    path = DataPath(order, 4, trial.data, trial.cache, trial.buffers, ahead)
    seen = participate(path, trial.cache)
    np.testing.assert_array_equal(seen.batches[0].images[0], seen.batches[1].images[0])
    assert seen.samples.tolist() == order.tolist()
    assert trial.cache.residents.tolist() == [1, 2, 4, 5, 6, 7]


def test_damaged_files_are_skipped(photos: ClientData, tmp_path: Path, ahead: Ahead) -> None:
    """Real files: cut short, empty, with flipped bits, and one that changes its size later."""
    paths = [tmp_path / f"{sample}.jpg" for sample in range(len(photos))]
    for sample, path in enumerate(paths):
        content = np.empty(photos.size_bytes[sample], np.uint8)
        photos.origin.read(np.array([sample]), content, 0)
        path.write_bytes(content.tobytes())
    for sample, spoil in enumerate(SPOILS):
        paths[sample].write_bytes(spoil(paths[sample].read_bytes()))
    origin = FileOrigin(paths)
    paths[3].write_bytes(b"longer" + paths[3].read_bytes())
    sizes = origin.size_bytes
    data = replace(
        photos, origin=origin, size_bytes=sizes, form=replace(photos.form, size_bytes=sizes)
    )
    trial = Trial(data, ahead)
    order = np.arange(len(data))
    seen = participate(
        DataPath(order, 8, trial.data, trial.cache, trial.buffers, ahead), trial.cache
    )
    assert seen.samples.tolist() == order[4:].tolist()
    assert seen.meter.skipped == 4
    assert seen.meter.origin_bytes == sizes.sum() - sizes[3]
    assert set(range(4)).isdisjoint(trial.cache.residents.tolist())
    trial.check()


def test_a_full_store_is_no_reason_not_to_train(
    photos: ClientData, ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, calm = Trial(photos, ahead), Trial(photos, ahead)
    offer, refusing = SampleCache.offer, [True]

    def full(cache: SampleCache, *payloads: np.ndarray) -> np.ndarray:
        if cache is trial.cache and refusing[0]:
            raise StoreFull("the disk is full")
        return offer(cache, *payloads)

    monkeypatch.setattr(SampleCache, "offer", full)
    seen, whole = trial.run(), calm.run()
    assert seen.meter.refused == BATCH * STEPS
    assert (seen.meter.written_samples, len(trial.cache)) == (0, 0)
    for batch, expected in zip(seen.batches, whole.batches, strict=True):
        np.testing.assert_array_equal(batch.images, expected.images)
    refusing[0] = False
    again = trial.run()
    assert (again.meter.refused, again.meter.written_samples) == (0, BATCH * STEPS)
    trial.check()


def test_statuses_of_the_cache_are_as_ever_when_the_origin_fails(
    photos: ClientData, ahead: Ahead
) -> None:
    """What is cached needs no origin."""
    trial = Trial(photos, ahead)
    trial.cache = Listened(10 * trial.budget_bytes, LRU(len(photos)))
    first = trial.run()
    trial.origin.gone_after = 0
    again = trial.run()
    assert again.meter.hits == BATCH * STEPS
    assert all((read.status == Status.HIT).all() for read in trial.cache.reads[STEPS:])
    for batch, expected in zip(again.batches, first.batches, strict=True):
        np.testing.assert_array_equal(batch.images, expected.images)


def test_a_loader_says_what_failed_and_where_the_rest_is(photos: ClientData) -> None:
    origin = Faulty(photos.origin)
    data = replace(photos, origin=origin)
    origin.failures[5] = INFINITY
    loader, samples = Loader(data), np.array([4, 5, 6])
    scratch = np.empty(data.scratch_bytes(3), np.uint8)
    payloads = load_for_cache(samples, data, loader, scratch)
    assert (payloads.starts == UNREADABLE).tolist() == [False, True, False]
    assert loader.trouble == "sample 5 does not read"
    # Twice together, then each alone, and twice if need be.
    assert origin.asked == [[4, 5, 6], [4, 5, 6], [4], [5], [5], [6]]
    for row in (0, 2):
        start, length = payloads.starts[row], payloads.lengths[row]
        alone = np.empty(length, np.uint8)
        photos.origin.read(samples[row : row + 1], alone, 0)
        np.testing.assert_array_equal(scratch[start : start + length], alone)
