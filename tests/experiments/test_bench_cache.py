"""The cache benchmark: what it does is checked at a tiny scale; its times are nobody's test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments.bench import BENCHES, cache, cache_file
from experiments.bench.cache_references import Cache, DiskCache, PyLmdb
from experiments.bench.cache_sides import Work, filled
from experiments.bench.cache_stream import Stream
from experiments.bench.measure import Row
from experiments.cli import main

SMALL = Work(1 << 20, 5000, 5000)
MIXED = Work(1 << 20, 300, 9000)
TINY = cache.Scale(
    works=(SMALL,),
    transactions=(1, 8),
    hit_ratios=(0.0, 0.5, 1.0),
    read_samples=8,
    admit_samples=8,
    turn_bytes=1 << 20,
    file=cache_file.Scale(
        churned=(SMALL, MIXED),
        transactions=(1, 8),
        part_samples=8,
        part_bytes=1 << 20,
        share_samples=50,
        opened=SMALL,
        opened_samples=100,
    ),
)


@pytest.fixture(params=["py-lmdb", "diskcache"])
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    made: Cache = (
        PyLmdb(tmp_path / "lmdb", 1 << 24, residents=10)
        if request.param == "py-lmdb"
        else DiskCache(tmp_path / "diskcache", 1 << 24)
    )
    yield made
    made.close()


def offer(made: Cache, stream: Stream, samples: list[int]) -> None:
    batch = stream.batch(np.array(samples))
    made.offer(batch.samples, stream.noise, batch.starts, batch.lengths)


def test_every_setting_gives_a_row_for_each_reference() -> None:
    rows = list(cache.rows(TINY))
    assert Counter((row.name, row.reference) for row in rows) == {
        ("cache.read", "py-lmdb"): 6,
        ("cache.read", "diskcache"): 6,
        ("cache.admit", "py-lmdb"): 6,
        ("cache.admit", "diskcache"): 6,
        ("cache.write_amplification", "py-lmdb"): 4,
        ("cache.payload_share", "py-lmdb"): 2,
        ("cache.open", "py-lmdb"): 1,
    }
    assert all(row.ratio > 0 and row.value > 0 for row in rows)
    common = {"payload_bytes", "budget_bytes", "policy", "store"}
    assert all(common <= row.setting.keys() for row in rows)
    speeds = [row.setting for row in rows if row.unit == "us/sample"]
    assert all({"transaction", "hit_ratio"} <= setting.keys() for setting in speeds)
    shares = [row.value for row in rows if row.name == "cache.payload_share"]
    assert all(0.3 < share < 1 for share in shares)
    written = [row.value for row in rows if row.name == "cache.write_amplification"]
    assert all(value >= 1 for value in written)


def test_all_sides_are_full_of_the_samples_that_came_last() -> None:
    with filled(SMALL, 8, ("py-lmdb", "diskcache")) as sides:
        held = len(sides.ours)
        assert sides.ours.stats.evicted_samples > held
        assert len(sides.references["py-lmdb"]) == held
        buffer = np.zeros(SMALL.budget_bytes, np.uint8)
        newest = sides.stream.recent(held, held)
        assert sides.ours.read(newest, buffer).served.all()
        assert sides.references["py-lmdb"].read(newest, buffer).served.all()
        assert sides.references["diskcache"].read(newest, buffer).served.sum() > held // 2
        absent = sides.stream.absent(50)
        for side in sides.all:
            assert not side.read(absent, buffer).served.any()


def test_a_reference_copies_what_it_holds_back_to_back(reference: Cache) -> None:
    stream = Stream(20, 100, 200)
    offer(reference, stream, [3, 1, 2])
    buffer = np.zeros(1000, np.uint8)
    wanted = stream.batch(np.array([2, 9, 3]))
    read = reference.read(wanted.samples, buffer)
    assert read.served.tolist() == [True, False, True]
    held = stream.payloads(wanted, read.served)
    assert buffer[: len(held)].tobytes() == held
    assert not buffer[len(held) :].any()
    assert reference.get(3) == stream.payloads(wanted, np.array([False, False, True]))
    assert reference.get(9) is None


def test_a_reference_replaces_another_payload(reference: Cache) -> None:
    stream = Stream(20, 100, 200)
    offer(reference, stream, [3, 1])
    other = stream.noise[:50]
    reference.offer(np.array([3]), other, np.array([0]), np.array([50]))
    assert reference.get(3) == other.tobytes()
    assert len(reference) == 2


def test_a_full_py_lmdb_file_loses_its_oldest_samples(tmp_path: Path) -> None:
    stream = Stream(20, 100, 200)
    made = PyLmdb(tmp_path, 1 << 24, residents=3)
    offer(made, stream, [5, 4, 3])
    offer(made, stream, [4, 2, 1])
    assert made.samples().tolist() == [1, 2, 3]
    assert len(made) == 3
    made.close()


def test_a_batch_in_a_full_diskcache_leaves_it_full(tmp_path: Path) -> None:
    stream = Stream(400, 3000, 3000)
    made = DiskCache(tmp_path, 1 << 20)
    for first in range(0, 400, 200):
        offer(made, stream, list(range(first, first + 200)))
    assert len(made) > 150
    made.close()


def test_a_sample_comes_again_only_after_all_others() -> None:
    stream = Stream(30, 10, 10)
    came = stream.fresh(20).tolist()
    assert not set(stream.absent(10).tolist()) & set(came)
    assert set(stream.recent(10, 10).tolist()) == set(came[10:])
    came += stream.fresh(10).tolist()
    assert sorted(came) == list(range(30))
    assert stream.fresh(5).tolist() == came[:5]


def test_a_side_that_does_not_hold_what_it_should_ends_the_benchmark(reference: Cache) -> None:
    stream = Stream(20, 100, 200)
    offer(reference, stream, [1, 2])
    buffer = np.zeros(1000, np.uint8)
    asked = [stream.batch(np.array([1, 2, 3]))]
    cache._check(reference, stream, asked, buffer, hits=2)
    with pytest.raises(RuntimeError, match="served 2 samples instead of 3"):
        cache._check(reference, stream, asked, buffer, hits=3)
    reference.offer(np.array([2]), stream.noise, np.array([0]), np.array([50]))
    with pytest.raises(RuntimeError, match="served other bytes"):
        cache._check(reference, stream, asked, buffer, hits=2)


def test_a_bench_prints_its_rows_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("cache.read", 1.5, "us/sample", "py-lmdb", 2.0, {"transaction": 32})
    monkeypatch.setitem(BENCHES, "cache", lambda: iter([row]))
    assert main(["bench", "cache", "--json", str(tmp_path / "rows.json")]) == 0
    shown = capsys.readouterr()
    assert "cache.read (transaction 32): 2.00x py-lmdb" in shown.err
    assert "transaction 32" in shown.out
    assert '"ratio": 2.0' in (tmp_path / "rows.json").read_text()
