"""Bits flipped anywhere, disks that are full, thousands of caches: right bytes or a typed error."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from storage import POLICIES, StoreFull, open_cache

SAMPLES = 150
SIZES = np.random.default_rng(0).choice([300, 785, 3073, 4096, 9000, 40_000], SAMPLES)
PAYLOADS = [np.random.default_rng(s).bytes(int(n)) for s, n in enumerate(SIZES)]


def use(folder: Path, budget_bytes: int, rounds: int) -> None:
    """Open a cache, check every payload that it gives, and change it for a while."""
    rng = np.random.default_rng(0)
    with open_cache(folder, budget_bytes, POLICIES["lru"](SAMPLES)) as cache:
        for tag in range(rounds):
            for sample in rng.permutation(SAMPLES).tolist():
                payload = cache.get(sample)
                assert payload in {None, PAYLOADS[sample]}
                if payload is None:
                    cache.put(sample, PAYLOADS[sample])
            cache.save(tag)


def _use_damaged(folder: Path, budget_bytes: int, seed: int, trials: int) -> None:
    rng = np.random.default_rng(seed)
    copy = folder.with_name(f"{folder.name}-{seed}")
    for _ in range(trials):
        shutil.copytree(folder, copy)
        path = copy / ("index" if rng.random() < 0.1 else "data.mdb")
        content = np.frombuffer(bytearray(path.read_bytes()), np.uint8)
        near = rng.choice([len(content), 4096, 16384])  # the first pages are where it hurts
        for at in rng.integers(0, min(near, len(content)), rng.integers(1, 9)):
            content[at] ^= 1 << rng.integers(8)
        path.write_bytes(content.tobytes())
        use(copy, budget_bytes, 2)
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    "trials", [15, pytest.param(200, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("budget_bytes", [1 << 20, 9 << 20])
def test_bits_flipped_anywhere_end_no_process_and_give_no_wrong_byte(
    tmp_path: Path, budget_bytes: int, trials: int
) -> None:
    folder = tmp_path / "cache"
    use(folder, budget_bytes, 3)
    fork = multiprocessing.get_context("fork")
    children = [
        fork.Process(target=_use_damaged, args=(folder, budget_bytes, seed, trials))
        for seed in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * len(children)


FULL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.storage.test_damage import fill_the_disk
fill_the_disk(Path(sys.argv[1]))
"""


def fill_the_disk(disk: Path) -> None:
    """On a disk of 2 MiB: others make room, or the error is typed; what is there can be read."""
    samples, payloads = 4 * SAMPLES, PAYLOADS * 4
    with open_cache(disk / "lru", 16 << 20, POLICIES["lru"](samples)) as cache:
        for sample in range(samples):
            assert cache.put(sample, payloads[sample])
        assert cache.stats.evicted_for_room > 0
        kept = cache.residents.tolist()
        assert len(kept) > 20
        assert all(cache.get(sample) == payloads[sample] for sample in kept)
    shutil.rmtree(disk / "lru")
    with open_cache(disk / "static", 16 << 20, POLICIES["static"](samples)) as cache:
        failed = 0
        for sample in range(samples):
            try:
                cache.put(sample, payloads[sample])
            except StoreFull:
                failed += 1
        assert failed > 100
        kept = cache.residents.tolist()
        assert len(kept) > 20
        assert all(cache.get(sample) == payloads[sample] for sample in kept)
        with pytest.raises(StoreFull):
            cache.save(1, {"note": np.ones(1 << 20)})
        cache.delete(np.array(kept[:3]))
        assert len(cache) == len(kept) - 3
        assert all(cache.get(sample) == payloads[sample] for sample in kept[3:])
    with pytest.raises(StoreFull, match="took no more"):
        open_cache(disk / "another", 16 << 20, POLICIES["lru"](samples))
    print("survived")  # noqa: T201 - to the process that started this one


def in_own_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script where mounts are its own; without `unshare` it fails."""
    unshare = shutil.which("unshare") or "false"
    return subprocess.run(  # noqa: S603 - ours
        [unshare, "-Urm", "sh", "-c", script], capture_output=True, text=True, check=False
    )


def test_a_disk_of_two_mebibytes_fills_up(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m none {disk}"
    if in_own_namespace(mount).returncode:
        pytest.skip("this system lets no user mount a tmpfs")
    root = Path(__file__).parents[2]
    done = in_own_namespace(f"{mount} && exec {sys.executable} -c '{FULL_DISK}' {disk} {root}")
    assert done.stdout == "survived\n", done.stderr


def _open_many(folder: Path, caches: int, descriptors: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    opened = [
        open_cache(folder / str(n), 100_000, POLICIES["lru"](4), durable=False)
        for n in range(caches)
    ]
    for number, cache in enumerate(opened):
        assert cache.put(number % 4, PAYLOADS[number % SAMPLES][:1000])
        cache.save(1)
    for number, cache in enumerate(opened):
        assert cache.get(number % 4) == PAYLOADS[number % SAMPLES][:1000]
        cache.close()


@pytest.mark.parametrize(
    ("caches", "descriptors"), [(150, 256), pytest.param(5000, 1024, marks=pytest.mark.slow)]
)
def test_many_caches_are_open_on_few_descriptors(
    tmp_path: Path, caches: int, descriptors: int
) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=_open_many, args=(tmp_path, caches, descriptors)
    )
    child.start()
    child.join()
    assert child.exitcode == 0
