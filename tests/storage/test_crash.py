"""Whenever a process is killed, what it saved last comes back, and never a wrong byte."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from storage import POLICIES, SampleCache, open_cache

SAMPLES = 120
BUDGET = 1 << 20


def content(sample: int, version: int) -> bytes:
    """A payload that tells what it is."""
    rng = np.random.default_rng((sample, version))
    return bytes([sample, version]) + rng.bytes(int(rng.integers(300, 30_000)))


def reopen(folder: Path, *, durable: bool) -> SampleCache:
    return open_cache(folder, BUDGET, POLICIES["lru"](SAMPLES), durable=durable)


def _change_until_killed(folder: Path, seed: int, durable: bool, reports: Connection) -> None:
    rng = np.random.default_rng(seed)
    cache = reopen(folder, durable=durable)
    tag = cache.tag or 0
    while True:
        for _ in range(int(rng.integers(1, 6))):
            samples = rng.choice(SAMPLES, 6, replace=False)
            payloads = [content(s, int(rng.integers(3))) for s in samples.tolist()]
            lengths = np.array([len(payload) for payload in payloads])
            buffer = np.frombuffer(b"".join(payloads), np.uint8)
            cache.offer(samples, buffer, np.cumsum(lengths) - lengths, lengths)
            if rng.random() < 0.3:
                cache.delete(rng.choice(SAMPLES, 3))
            reports.send(None)
        tag += 1
        reports.send((tag, cache.residents.tolist()))
        cache.save(tag)


@pytest.mark.parametrize("durable", [True, False])
def test_a_kill_at_any_point_costs_nothing_that_was_saved_but_its_place(
    tmp_path: Path, durable: bool
) -> None:
    rng = np.random.default_rng(0)
    held: dict[int | None, list[int]] = {None: []}
    lost = 0
    for trial in range(25):
        mine, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=_change_until_killed, args=(tmp_path, trial, durable, theirs)
        )
        child.start()
        theirs.close()
        for _ in range(int(rng.integers(1, 25))):
            report = mine.recv()
            if report is not None:
                held[report[0]] = report[1]
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        while mine.poll():
            try:
                report = mine.recv()
            except (EOFError, OSError):
                break
            if report is not None:
                held[report[0]] = report[1]
        mine.close()
        with reopen(tmp_path, durable=durable) as cache:
            assert not cache.rebuilt
            missing = cache.missing.tolist()
            assert sorted([*cache.residents.tolist(), *missing]) == held[cache.tag]
            lost += len(missing)
            index = cache._index
            costs = index.layout.cost(index.size_bytes[cache.residents])
            assert cache.used_bytes == costs.sum() <= cache.usable_bytes
            assert cache.store.present().tolist() == cache.residents.tolist()
            for sample in cache.residents.tolist():
                payload = cache.get(sample)
                assert payload is not None
                assert payload == content(sample, payload[1])
            # It goes on from there, with what is left.
            cache.save((cache.tag or 0) + 1)
            held = {cache.tag: cache.residents.tolist()}
    assert lost > 0
