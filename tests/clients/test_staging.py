"""Staging: what is coming is there when it is asked for, at a cost that is counted and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients import datapath
from clients.central import Central
from clients.client_cache import staged_tag
from clients.client_data import Slow
from clients.datapath import Ahead, Buffers, DataPath
from clients.device import Device, Host
from clients.samplers import SAMPLERS, Uniform
from clients.staging import AT_ONCE, Filling, Kept, Limits
from fedio.config import Experiment
from fedio.costs import staging_s
from fedio.profiles import Speeds
from fedio.protocol import Staged
from fedio.runs import hash_arrays
from storage import (
    POLICIES,
    Origin,
    SampleCache,
    StallError,
    StoreFull,
    ThrottledOrigin,
    Tier,
    index_file,
)
from storage.policies import LRU
from tests.clients.faults import Faulty, cut_short
from tests.clients.participations import (
    Listened,
    drawn,
    participate,
    prepared,
    state_of,
    threads_of_ours,
)
from tests.clients.test_forms import speeds

Small = Callable[..., Experiment]
Make = Callable[..., Host]
SAMPLES = 40
DATA = drawn(SAMPLES)
TOTAL = int(DATA.size_bytes.sum())
DEVICE = speeds(
    origin_read_latency_s=0.01,
    origin_read_bytes_per_s=1e6,
    decode_sample_s=0.003,
    decode_bytes_per_s=7e6,
    cache_write_latency_s=0.001,
    cache_write_bytes_per_s=3e7,
)
WIDE = Limits()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not threads_of_ours()


def seconds(staged: Staged, of: Speeds = DEVICE) -> float:
    """What the server's clock says that staging took."""
    return float(
        staging_s(
            (staged.origin_samples, staged.origin_bytes),
            (staged.decoded_samples, staged.decoded_bytes),
            (staged.written_samples, staged.written_bytes),
            of,
        )
    )


def warm(budget_bytes: int, policy: str = "lru", data: Any = DATA, seed: int = 0) -> Listened:
    """A cache after a participation."""
    cache = Listened(budget_bytes, POLICIES[policy](SAMPLES))
    order = np.random.default_rng(seed).permutation(SAMPLES)[:24]
    cache.plan(order)
    participate(DataPath(order, 8, data, cache, Buffers(), Ahead()), cache)
    return cache


def fill(
    cache: SampleCache, order: np.ndarray, limits: Limits = WIDE, data: Any = DATA
) -> tuple[Staged, Kept]:
    filling = Filling(order, data, cache, DEVICE)
    filling.fill(limits)
    assert not cache._index.has_pins
    staged = filling.staged(3, 7)
    staged.check()
    assert (staged.partition, staged.server_round) == (3, 7)
    return staged, filling.kept(7)


@settings(max_examples=150)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    budget_share=st.sampled_from([0.0, 0.2, 0.6, 3.0]),
    window=st.floats(0, 1.2),
    written=st.one_of(st.none(), st.floats(0, 1.2)),
    form=st.sampled_from(["encoded", "prepared"]),
    seed=st.integers(0, 5),
)
def test_limits_are_kept_and_used(
    policy: str,
    budget_share: float,
    window: float,
    written: float | None,
    form: str,
    seed: int,
) -> None:
    data = DATA if form == "encoded" else prepared(DATA, 4000)
    order = np.random.default_rng(100 + seed).integers(0, SAMPLES, 30)
    budget = int(budget_share * data.form.size_bytes.sum())
    needed = np.unique(order)
    cold_s = float(
        staging_s(
            (len(needed), data.size_bytes[needed].sum()),
            (len(needed), data.size_bytes[needed].sum()),
            (len(needed), data.form.size_bytes[needed].sum()),
            DEVICE,
        )
    )
    window_s = window * cold_s
    write_bytes = INFINITE if written is None else int(written * data.form.size_bytes.sum())
    cache = warm(budget, policy, data)
    before = cache.residents
    staged, kept = fill(cache, order, Limits(window_s, write_bytes), data)
    assert seconds(staged) <= window_s
    assert staged.written_bytes <= write_bytes
    assert staged.needed_samples == len(needed)
    assert staged.held_samples == np.count_nonzero(np.isin(needed, before))
    there = needed[np.isin(needed, cache.residents)]
    assert sorted(kept.samples.tolist()) == there.tolist()
    assert staged.held_samples + staged.staged_samples == len(there)
    assert kept.residents.tolist() == before.tolist()
    assert cache._index.staged.nonzero()[0].tolist() == np.setdiff1d(there, before).tolist()
    assert staged.written_samples == staged.staged_samples <= staged.origin_samples
    assert staged.decoded_samples == (staged.origin_samples if form == "prepared" else 0)
    if form == "prepared":
        assert staged.decoded_bytes == staged.origin_bytes
    if policy == "static":
        assert staged.evicted_samples == 0
        assert set(before.tolist()) <= set(cache.residents.tolist())
    if budget_share == 3.0 and window > 1 and written is None:
        assert len(there) == len(needed)


INFINITE = float("inf")


def test_a_window_is_used_to_the_last_sample_that_fits() -> None:
    order = np.arange(20)
    each_s = [
        float(staging_s((1, size), (0, 0), (1, size), DEVICE)) for size in DATA.size_bytes[:20]
    ]
    for count in (0, 1, 7, 8, 9, 16, 19, 20):
        for slack, expected in ((1e-9, count), (-1e-9, count - 1)):
            cache = Listened(3 * TOTAL, LRU(SAMPLES))
            staged, kept = fill(cache, order, Limits(window_s=sum(each_s[:count]) + slack))
            assert kept.samples.tolist() == list(range(max(expected, 0)))
            assert staged.origin_bytes == DATA.size_bytes[: max(expected, 0)].sum()


def test_what_is_needed_first_comes_first_and_what_is_held_stays() -> None:
    """A cache for about six samples holds 0..5, the last of which are needed again."""
    sizes = np.full(SAMPLES, 3000)
    data = replace(DATA, size_bytes=sizes, form=replace(DATA.form, size_bytes=sizes))
    cache = Listened(23_500, LRU(SAMPLES))
    participate(DataPath(np.arange(6), 3, data, cache, Buffers(), Ahead()), cache)
    assert cache.residents.tolist() == [0, 1, 2, 3, 4, 5]
    # 0 was used longest ago: LRU would have it leave first.
    staged, kept = fill(cache, np.array([35, 31, 0, 32, 1, 33, 34, 30]), WIDE, data)
    assert cache.residents.tolist() == [0, 1, 31, 32, 33, 35]
    assert kept.samples.tolist() == [35, 31, 0, 32, 1, 33]
    assert (staged.held_samples, staged.staged_samples, staged.evicted_samples) == (2, 4, 4)
    # For the others there is no room without those; so they are not read.
    assert staged.origin_samples == 4


def test_room_that_is_too_small_for_the_next_is_used_for_a_smaller_one() -> None:
    sizes = np.full(SAMPLES, 3000)
    sizes[[7, 9]] = 14_000, 500
    data = replace(DATA, size_bytes=sizes, form=replace(DATA.form, size_bytes=sizes))
    cache = Listened(20_800, LRU(SAMPLES))
    staged, kept = fill(cache, np.array([1, 2, 3, 4, 7, 8, 9, 10]), WIDE, data)
    assert kept.samples.tolist() == [1, 2, 3, 4, 8, 9]
    assert staged.origin_samples == 6


def test_a_policy_that_rejects_is_not_asked_for_ever() -> None:
    class Shut(LRU):
        def admit(self, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:
            del sizes
            return np.zeros(len(samples), dtype=bool)

    cache = Listened(3 * TOTAL, Shut(SAMPLES))
    staged, kept = fill(cache, np.arange(30))
    assert (staged.staged_samples, len(kept.samples)) == (0, 0)
    assert staged.origin_samples == AT_ONCE


def test_a_full_store_ends_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> np.ndarray:
        raise StoreFull("the disk is full")

    cache = Listened(3 * TOTAL, LRU(SAMPLES))
    monkeypatch.setattr(cache, "offer", full)
    staged, _ = fill(cache, np.arange(30))
    assert (staged.staged_samples, staged.origin_samples) == (0, AT_ONCE)


def test_what_does_not_read_is_not_staged() -> None:
    origin = Faulty(DATA.origin)
    data = replace(DATA, origin=origin)
    origin.failures = {3: INFINITE, 12: INFINITE}
    staged, kept = fill(Listened(3 * TOTAL, LRU(SAMPLES)), np.arange(20), WIDE, data)
    assert kept.samples.tolist() == [s for s in range(20) if s not in {3, 12}]
    assert (staged.staged_samples, staged.origin_samples) == (18, 20)
    origin.gone_after = 0
    staged, kept = fill(Listened(3 * TOTAL, LRU(SAMPLES)), np.arange(20), WIDE, data)
    assert (staged.staged_samples, len(kept.samples)) == (0, 0)


# What a device does.


@pytest.fixture
def make(small: Small, tmp_path: Path) -> Iterator[Make]:
    """Return hosts of one client with 72 photos, an arm that stages, closed at the end."""
    hosts: list[Host] = []

    def one(
        name: str = "host",
        slow: Slow | None = None,
        threads: bool | None = None,
        arm: dict[str, Any] | None = None,
        **sections: Any,
    ) -> Host:
        sections = {"data": {"clients": 1}, "rounds": {"cohort": 1}} | sections
        chosen = {"policy": "lru", "staging": True} | (arm or {})
        experiment = small(arms={"a": chosen}, **sections)
        hosts.append(Host(experiment, tmp_path / name, slow, threads))
        return hosts[-1]

    yield one
    for host in hosts:
        host.close()


def arrays_of(host: Host) -> Any:
    return Central(host.experiment).initial_arrays


def snapshot(device: Device) -> object:
    """All that lies in a device's cache, and beside it."""
    with device._cache.before(1000) as cache:
        notes = {name: note.tolist() for name, note in cache.notes.items()}
        marks = cache._index.staged.nonzero()[0].tolist()
        payloads = [cache.store.get_one(*row) for row in _rows(cache)]
        return cache.tag, state_of(cache), marks, notes, payloads


def _rows(cache: SampleCache) -> list[tuple[int, int, int]]:
    residents, index = cache.residents, cache._index
    columns = residents, index.length_bytes[residents], index.checksums[residents]
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("policy", ["lru", "next_use"])
@pytest.mark.parametrize("form", ["encoded", "prepared"])
def test_what_was_staged_is_served(make: Make, policy: str, sampler: str, form: str) -> None:
    """On a realistic device: nine tenths of what is needed, or of what the cache holds."""
    arm = {"policy": policy, "sampler": sampler, "form": form}
    host = make(arm=arm, cache={"share": 0.3})
    device, arrays, brought = host.device(0), arrays_of(host), 0
    for server_round in range(1, 5):
        staged = device.stage(server_round, 4, WIDE)
        staged.check()
        brought += staged.staged_samples
        with device._cache.newest() as cache:
            holds = int(cache.usable_bytes / (cache.used_bytes / len(cache)))
        meter = device.train(arrays, server_round, 4).meter
        meter.check()
        least = 0.9 * min(staged.needed_samples, holds)
        assert meter.hits >= least
        assert meter.staged >= staged.staged_samples
        assert meter.hits >= staged.held_samples + staged.staged_samples
    assert brought > 0


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_where_all_fits_nothing_is_left_to_read(
    make: Make, sampler: str, policy: str, *, threads: bool
) -> None:
    """So what was staged is what is asked for, also by samplers that look at the cache."""
    arm = {"policy": policy, "sampler": sampler}
    host = make(threads=threads, arm=arm, cache={"share": 4.0})
    device, arrays = host.device(0), arrays_of(host)
    device.train(arrays, 1, 2)
    staged = device.stage(3, 4, WIDE)
    # Once something is cached, pads asks for nothing else while that suffices.
    assert (staged.staged_samples > 0) == (sampler != "pads")
    meter = device.train(arrays, 3, 4).meter
    assert (meter.misses, meter.origin_bytes, meter.written_samples) == (0, 0, 0)
    assert meter.unique_samples == staged.needed_samples
    assert meter.staged >= staged.staged_samples
    assert meter.hits == meter.requests


@pytest.mark.parametrize("window_s", [0.0, INFINITE])
@pytest.mark.parametrize("share", [0.0, 0.3, 4.0])
def test_staging_does_not_change_what_is_trained(make: Make, share: float, window_s: float) -> None:
    """Uniform sampling asks for the same whatever is cached: the model is the same, hits or not."""
    hashes = set()
    for name, stages in (("plain", False), ("staging", True)):
        host = make(name, cache={"share": share})
        device, arrays = host.device(0), arrays_of(host)
        for server_round in (1, 2, 3):
            if stages:
                staged = device.stage(server_round, 3, Limits(window_s=window_s))
                if not window_s or not share:
                    assert (staged.origin_samples, staged.written_bytes) == (0, 0)
            arrays = device.train(arrays, server_round, 3).arrays
        hashes.add(hash_arrays({key: array.numpy() for key, array in arrays.items()}))
    assert len(hashes) == 1


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_order_is_that_for_which_it_was_staged(make: Make, sampler: str) -> None:
    """An order drawn anew from the staged cache would favour what chance had drawn before."""
    host = make(arm={"sampler": sampler})
    device, arrays = host.device(0), arrays_of(host)
    device.train(arrays, 1, 4)
    with device._cache.newest() as cache:
        before = device._order(cache, None, 2, 4)
    device.stage(2, 4, WIDE)
    with device._cache.newest() as cache:
        after = device._order(cache, Kept.of(cache.notes), 2, 4)
    np.testing.assert_array_equal(before[1], after[1])
    weights = before[0].checked_weights(before[1]), after[0].checked_weights(after[1])
    assert (weights[0] is None) == (weights[1] is None)
    if weights[0] is not None and weights[1] is not None:
        np.testing.assert_array_equal(weights[0], weights[1])


def test_the_sampler_hears_nothing_of_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[set[str]] = []

    def heard(sampler: Uniform, columns: dict[str, np.ndarray]) -> None:
        del sampler
        given.append(set(columns))

    monkeypatch.setattr(Uniform, "restore", heard)
    monkeypatch.setattr(Uniform, "columns", lambda _: {"mine": np.ones(2)})
    device = make().device(0)
    arrays = arrays_of(device._host)
    device.train(arrays, 1, 3)
    device.stage(2, 3, WIDE)
    device.train(arrays, 2, 3)
    device.stage(5, 3, WIDE)
    assert given == [set(), {"mine"}, {"mine"}, {"mine"}]


def test_marks_and_notes_are_gone_afterwards(make: Make) -> None:
    device = make().device(0)
    arrays = arrays_of(device._host)
    staged = device.stage(1, 4, WIDE)
    with device._cache.newest() as cache:
        assert np.count_nonzero(cache._index.staged) == staged.staged_samples > 0
        assert cache.notes
    device.train(arrays, 1, 4)
    with device._cache.newest() as cache:
        assert not cache._index.staged.any()
        assert not cache._index.has_pins
        assert not cache.notes
    assert device.train(arrays, 2, 4).meter.staged == 0


@pytest.mark.parametrize("renew", [False, True])
def test_what_was_staged_for_another_round_is_outdated(make: Make, *, renew: bool) -> None:
    host = make(cache={"share": 4.0})
    arrays = arrays_of(host)
    host.device(0).stage(2, 4, WIDE)
    if renew:
        host.close()
        host = make(cache={"share": 4.0})
    meter = host.device(0).train(arrays, 3, 4).meter
    assert meter.hits > 0
    assert meter.staged == 0
    with host.device(0)._cache.newest() as cache:
        assert not cache._index.staged.any()
        assert not cache._index.has_pins


def test_only_what_was_staged_last_is_counted_as_staged(make: Make) -> None:
    """What was staged for a round that the client did not take part in is just there."""
    host = make(cache={"share": 4.0})
    device, arrays = host.device(0), arrays_of(host)
    device.stage(2, 4, WIDE)
    staged = device.stage(3, 4, WIDE)
    assert staged.held_samples > 0
    with device._cache.newest() as cache:
        assert np.count_nonzero(cache._index.staged) == staged.staged_samples
    assert device.train(arrays, 3, 4).meter.staged == staged.staged_samples


@pytest.mark.parametrize(("store", "renew"), [("lmdb", False), ("lmdb", True), ("memory", False)])
@pytest.mark.parametrize("policy", ["lru", "static", "importance", "next_use", "icache"])
def test_staged_again_for_the_same_round_is_the_same(
    make: Make, policy: str, store: str, *, renew: bool
) -> None:
    """As a server asks that was restored; the client may have trained just before or not."""
    arm, cache = {"policy": policy}, {"share": 0.4, "store": store}
    host = make(arm=arm, cache=cache)
    arrays = arrays_of(host)
    for trained in (None, 1, 2):
        if trained is not None:
            host.device(0).train(arrays, trained, 3)
        first = host.device(0).stage(3, 4, WIDE), snapshot(host.device(0))
        for _ in range(2):
            if renew:
                host.close()
                host = make(arm=arm, cache=cache)
            again = host.device(0).stage(3, 4, WIDE), snapshot(host.device(0))
            assert again == first


@pytest.mark.parametrize("store", ["lmdb", "memory"])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("policy", ["lru", "importance", "next_use"])
def test_rounds_before_and_after_staging_can_be_trained_again(
    make: Make, policy: str, store: str, monkeypatch: pytest.MonkeyPatch, *, short: bool
) -> None:
    """The server may have been restored before it, in mid-round, or after it.

    Also where only as many states are kept as have to be.
    """
    if short:
        monkeypatch.setattr(index_file, "LIMIT_BYTES", 1)
    arm, cache = {"policy": policy}, {"share": 0.4, "store": store}

    def trained(device: Device, arrays: Any, server_round: int) -> tuple[Any, object]:
        done = device.train(arrays, server_round, 4)
        return done.arrays, (done.meter, done.claims, snapshot(device))

    straight, restored = make("a", arm=arm, cache=cache), make("b", arm=arm, cache=cache)
    first, other = straight.device(0), restored.device(0)
    arrays = [arrays_of(straight)]
    expected: list[object] = [None]
    for server_round in (1, 2, 3):
        arrays.append(Any)
        before = asdict(first.stage(server_round, 4, WIDE))
        arrays[-1], result = trained(first, arrays[-2], server_round)
        expected.append((before, result))

    def replayed(server_round: int, *, stages: bool) -> None:
        staged, result = expected[server_round]
        if stages:
            assert asdict(other.stage(server_round, 4, WIDE)) == staged
        assert trained(other, arrays[server_round - 1], server_round)[1] == result

    replayed(1, stages=True)
    replayed(1, stages=False)
    other.stage(2, 4, WIDE)
    # Restored to before round 1 had ended: it is trained again, from what was staged for it.
    replayed(1, stages=False)
    replayed(2, stages=True)
    replayed(2, stages=False)
    other.stage(3, 4, WIDE)
    replayed(2, stages=False)
    replayed(3, stages=True)
    replayed(3, stages=True)


def test_staging_that_fails_leaves_what_was(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    device = make().device(0)
    arrays = arrays_of(device._host)
    device.train(arrays, 1, 4)
    before = snapshot(device)

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(SampleCache, "mark_staged", fails)
        with pytest.raises(ZeroDivisionError):
            device.stage(2, 4, WIDE)
    assert snapshot(device) == before
    twin = make("twin").device(0)
    twin.train(arrays, 1, 4)
    assert device.train(arrays, 2, 4).meter == twin.train(arrays, 2, 4).meter


def test_files_that_are_no_images_are_trained_around(make: Make) -> None:
    """Staged encoded nobody looks at them; staged prepared they do not come in."""
    for form in ("encoded", "prepared"):
        origins: list[Faulty] = []

        def slow(_: int, origin: Origin, __: np.ndarray, made: list[Faulty] = origins) -> Origin:
            made.append(Faulty(origin))
            return made[0]

        host = make(form, slow, arm={"form": form}, cache={"share": 4.0})
        device, arrays = host.device(0), arrays_of(host)
        with device._cache.newest() as cache:
            bad = int(device._order(cache, None, 1, 4)[1][9])
        origins[0].spoilt[bad] = cut_short, INFINITE
        staged = device.stage(1, 4, WIDE)
        assert staged.staged_samples == staged.needed_samples - (form == "prepared")
        meter = device.train(arrays, 1, 4).meter
        meter.check()
        assert (meter.skipped, meter.trained_samples) == (1, 31)
        with device._cache.newest() as cache:
            assert bad not in cache


# In the background.


class Counted(Origin):
    """Says when so many samples have been read."""

    def __init__(self, origin: Origin, enough: int) -> None:
        self._origin, self._left = origin, enough
        self.enough = threading.Event()

    @property
    def size_bytes(self) -> np.ndarray:
        return self._origin.size_bytes

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        starts = self._origin.read(samples, buffer, at)
        self._left -= len(samples)
        if self._left <= 0:
            self.enough.set()
        return starts


def test_it_goes_on_beside_what_others_do(make: Make) -> None:
    """One client stages from slow storage while another trains, which then stages no more."""
    counted: dict[int, Counted] = {}

    def slow(partition: int, origin: Origin, sizes: np.ndarray) -> Origin:
        tier = Tier(0.0005, 1e9, INFINITE, INFINITE)
        counted[partition] = Counted(ThrottledOrigin(origin, tier, sizes), 2 * AT_ONCE)
        return counted[partition]

    host = make(slow=slow, data={"clients": 2}, cache={"share": 4.0})
    arrays = arrays_of(host)
    host.device(1).stage_in_background(2, 50)
    assert threads_of_ours()
    host.device(0).train(arrays, 1, 3)
    assert counted[1].enough.wait(60)
    staged = host.device(1).end_staging()
    assert staged is not None
    assert staged.staged_samples >= 2 * AT_ONCE
    assert not threads_of_ours()
    assert host.device(1).end_staging() is None
    meter = host.device(1).train(arrays, 2, 50).meter
    assert meter.staged >= staged.staged_samples


def test_in_the_background_is_the_same_as_in_the_window(make: Make) -> None:
    devices = [make(name, cache={"share": 0.4}).device(0) for name in ("one", "other")]
    arrays = arrays_of(devices[0]._host)
    for device in devices:
        device.train(arrays, 1, 4)
    there = devices[0].stage(2, 4, Limits(write_bytes=20_000))
    counted = threading.Event()
    fill_ = Filling.fill

    def told(filling: Filling, limits: Limits) -> None:
        fill_(filling, limits)
        counted.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Filling, "fill", told)
        devices[1].stage_in_background(2, 4, write_bytes=20_000)
        assert counted.wait(60)
        assert devices[1].end_staging() == there
    assert there.written_bytes <= 20_000
    assert snapshot(devices[0]) == snapshot(devices[1])


@pytest.mark.parametrize("ends", ["train", "stage", "profile", "close", "again"])
def test_whatever_needs_the_cache_ends_it(make: Make, ends: str) -> None:
    origins: list[Faulty] = []

    def slow(_: int, origin: Origin, __: np.ndarray) -> Origin:
        origins.append(Faulty(origin))
        return origins[0]

    host = make(slow=slow, cache={"share": 4.0})
    device, arrays = host.device(0), arrays_of(host)
    origin = origins[0]
    origin.hangs_at = 1
    device.stage_in_background(1, 4)
    assert origin.hanging.wait(60)
    # Somebody ends it: only then does the read it is in come to an end.
    over = device._staging
    assert over is not None
    end = over.end

    def released(limit_s: float) -> Staged:
        over._over.set()
        origin.released.set()
        return end(limit_s)

    over.end = released  # type: ignore[method-assign]
    if ends == "train":
        assert device.train(arrays, 1, 4).meter.staged == 2 * AT_ONCE
    elif ends == "stage":
        assert device.stage(1, 4, WIDE).staged_samples == 32
    elif ends == "profile":
        assert device.profile().resident_samples == 2 * AT_ONCE
    elif ends == "close":
        host.close()
    else:
        device.stage_in_background(1, 4)
        device.end_staging()
    assert not threads_of_ours()
    assert device.end_staging() is None


def test_what_it_failed_with_is_raised_at_its_end(make: Make) -> None:
    class Broken(Faulty):
        def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
            if self.gone_after == 0:
                self.hanging.set()
                raise ZeroDivisionError("a bug")
            return super().read(samples, buffer, at)

    origins: list[Broken] = []

    def slow(_: int, origin: Origin, __: np.ndarray) -> Origin:
        origins.append(Broken(origin))
        return origins[-1]

    host = make(slow=slow, data={"clients": 2}, rounds={"cohort": 2})
    device, arrays = host.device(0), arrays_of(host)

    def begun(partition: int) -> None:
        """Let a client begin to stage, and wait until it has failed."""
        origins[partition].gone_after = 0
        origins[partition].hanging.clear()
        host.device(partition).stage_in_background(1, 4)
        assert origins[partition].hanging.wait(60)

    begun(0)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        device.end_staging()
    assert device.end_staging() is None
    begun(0)
    with pytest.raises(ZeroDivisionError):
        device.train(arrays, 1, 4)
    origins[0].gone_after = INFINITE
    assert device.train(arrays, 1, 4).meter.skipped == 0
    # Closing ends and closes everything all the same.
    host.device(1).profile()
    origins[1].hangs_at = len(origins[1].asked)
    host.device(1).stage_in_background(2, 4)
    origins[1].released.set()
    begun(0)
    with pytest.raises(ZeroDivisionError):
        host.close()
    assert host.device(1)._staging is None
    assert not host.shelf._caches


def test_staging_that_hangs_is_said_to_and_waited_for_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins: list[Faulty] = []

    def slow(_: int, origin: Origin, __: np.ndarray) -> Origin:
        origins.append(Faulty(origin))
        return origins[0]

    device = make(slow=slow).device(0)
    arrays = arrays_of(device._host)
    origins[0].hangs_at = 0
    device.stage_in_background(1, 4)
    assert origins[0].hanging.wait(60)
    monkeypatch.setattr(datapath, "STALL_LIMIT_S", 0.01)
    for _ in range(2):
        with pytest.raises(StallError, match=r"staging has not ended for 0\.01 s"):
            device.train(arrays, 1, 4)
    monkeypatch.setattr(datapath, "STALL_LIMIT_S", 60.0)
    origins[0].released.set()
    assert device.train(arrays, 1, 4).meter.staged == AT_ONCE


def test_tags_put_staging_before_its_round_and_after_all_others(make: Make) -> None:
    device = make().device(0)
    arrays = arrays_of(device._host)
    device.train(arrays, 4, 3)
    device.stage(5, 3, WIDE)
    with device._cache.newest() as cache:
        assert cache.tag == staged_tag(5)
        assert Kept.of(cache.notes).server_round == 5
    device.train(arrays, 5, 3)
    with device._cache.newest() as cache:
        assert cache.tag == staged_tag(5) + 1
