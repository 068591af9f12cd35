"""A run that records leaves one trace, the same whatever runs it, and never half of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from clients.prepare import prepare
from clients.recorder import Recorder
from clients.samplers import Uniform
from experiments import compare as comparison
from experiments.cli import main
from experiments.engines import flower, inline
from experiments.replays.capacity import RECORDED, Capacity
from fedio.config import Experiment
from fedio.errors import RunError
from fedio.home import open_home, run_name
from fedio.runs import TRACE_FILE, TRACE_FOLDER, Row, Run, RunFolder, read_run
from fedio.seeds import Purpose, rng
from fedio.traces import collect, part_file
from storage import POLICIES
from storage.replay import replay
from storage.trace import Stream, Trace
from storage.trace_file import read_trace, write_trace
from tests.storage.traces import assert_same

Tiny = Callable[..., Experiment]

RECORD = "engine.record_trace=true"


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Where a run goes, beside the experiment's file."""
    return tmp_path / "run"


def play(experiment: Experiment, path: Path) -> Run:
    inline.run(experiment, RunFolder.create(path, experiment))
    return read_run(path)


def has_trace(path: Path) -> bool:
    assert not (path / TRACE_FOLDER).exists()
    return (path / TRACE_FILE).exists()


def test_the_trace_holds_what_every_participation_asked_for(tiny: Tiny, run_path: Path) -> None:
    experiment = tiny(RECORD, "seed=2")
    run = play(experiment, run_path)
    trace = read_trace(run_path / TRACE_FILE)
    assert (trace.name, trace.depends) == ("tiny, one, seed 2", "")
    assert trace.policy == '{"name":"lru","args":{}}'

    rows = sorted((row["client"], row["round"]) for row in run.clients)
    streams = trace.streams
    assert rows == [(stream.client, server) for stream in streams for server in stream.rounds]
    assert any(len(stream.rounds) > 2 for stream in streams)

    data = prepare(experiment)
    by_row = {(row["client"], row["round"]): row for row in run.clients}
    for stream in streams:
        sizes = data.size_bytes[data.samples_of(stream.client)]
        assert stream.size_bytes.tolist() == sizes.tolist()
        assert stream.budget_bytes == int(0.7 * sizes.sum())
        assert stream.batch_starts.tolist() == list(range(0, len(stream.requests), 8))
        depths = [by_row[stream.client, server_round]["depth"] for server_round in stream.rounds]
        assert stream.depth.tolist() == depths
        assert stream.served.tolist() == []
        pieces = zip(stream.rounds.tolist(), stream.starts, stream.ends, stream.hits, strict=True)
        for server_round, start, end, hits in pieces:
            sampling = rng(2, Purpose.SAMPLING, stream.client, server_round)
            order = Uniform(len(sizes), 8).order(np.zeros(len(sizes), bool), 40, sampling)
            assert stream.requests[start:end].tolist() == order.tolist()
            row = by_row[stream.client, server_round]
            assert hits == row["hits"]
            assert stream.losses[start:end].mean() == pytest.approx(row["train_loss"], rel=1e-5)
    assert sum(int(stream.hits.sum()) for stream in streams) == run.summary["demand_hits"] > 0


@pytest.mark.parametrize("form", ["encoded", "prepared"])
@pytest.mark.parametrize("prefetch", [False, True])
def test_a_policy_that_learns_is_replayed_hit_by_hit_however_far_reading_ran_ahead(
    tiny: Tiny, run_path: Path, prefetch: bool, form: str
) -> None:
    arm = ["arms.one.policy='importance'", f"arms.one.form='{form}'", "cache.share=0.4"]
    arm += [f"arms.one.prefetch={str(prefetch).lower()}"]
    play(tiny(RECORD, *arm), run_path)
    streams = read_trace(run_path / TRACE_FILE).streams
    assert {bool((stream.depth > 1).all()) for stream in streams} == {prefetch}
    assert sum(int(stream.hits.sum()) for stream in streams) > 0
    for stream in streams:
        policy = POLICIES["importance"](stream.samples)
        outcome = replay(stream, policy, *Capacity(RECORDED).of(stream))
        assert outcome.hits_by_participation.tolist() == stream.hits.tolist()


def test_workers_and_stores_make_no_difference(tiny: Tiny, tmp_path: Path) -> None:
    ways = {"0": [], "2": ["engine.workers=2"], "memory": ["cache.store='memory'"]}
    pads = ["arms.one.sampler='pads'", "rounds.rounds=3"]
    contents = set()
    for name, way in ways.items():
        play(tiny(RECORD, *pads, *way), tmp_path / name)
        assert has_trace(tmp_path / name)
        contents.add((tmp_path / name / TRACE_FILE).read_bytes())
    assert len(contents) == 1
    trace = read_trace(tmp_path / "2" / TRACE_FILE)
    assert trace.depends == "sampler pads may order by what is cached"


@pytest.mark.slow
def test_the_flower_engine_leaves_the_same_trace(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(RECORD, "engine.workers=2")
    flower.run(experiment, RunFolder.create(tmp_path / "flower", experiment))
    play(tiny(RECORD), tmp_path / "inline")
    there, here = (tmp_path / name / TRACE_FILE for name in ("flower", "inline"))
    assert has_trace(tmp_path / "flower")
    assert there.read_bytes() == here.read_bytes()


def test_recording_changes_nothing_else(tiny: Tiny, tmp_path: Path) -> None:
    with_trace, without = play(tiny(RECORD), tmp_path / "with"), play(tiny(), tmp_path / "without")
    assert has_trace(with_trace.path)
    assert not has_trace(without.path)
    assert with_trace.summary["model_hash"] == without.summary["model_hash"]
    assert with_trace.clients == without.clients
    assert with_trace.env["digest"] == without.env["digest"]


def test_a_run_begins_without_what_an_earlier_one_left(tiny: Tiny, run_path: Path) -> None:
    experiment = tiny(RECORD, "rounds.rounds=2")
    play(experiment, run_path)
    before = (run_path / TRACE_FILE).read_bytes()
    # As a run leaves it that is ended by force.
    parts = RunFolder.create(run_path, experiment).path / TRACE_FOLDER
    assert not (run_path / TRACE_FILE).exists()
    write_part(parts, client=5, server_round=9)
    play(experiment, run_path)
    assert (run_path / TRACE_FILE).read_bytes() == before
    write_part(run_path / TRACE_FOLDER, client=5, server_round=9)
    play(tiny("rounds.rounds=2"), run_path)
    assert not has_trace(run_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_fails_keeps_what_it_takes_to_go_on(
    tiny: Tiny, run_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def fail(folder: RunFolder, summary: Row) -> None:
        found.extend((folder.path / TRACE_FOLDER).iterdir())
        raise RunError(f"no room for {len(summary)} keys")

    monkeypatch.setattr(RunFolder, "finish", fail)
    with pytest.raises(RunError, match="no room"):
        play(tiny(RECORD, "rounds.rounds=2", f"engine.workers={workers}"), run_path)
    assert len(found) == 6
    assert not (run_path / TRACE_FILE).exists()
    assert set(found) == set((run_path / TRACE_FOLDER).iterdir())


def test_a_trace_that_would_not_be_whole_fails_the_run(
    tiny: Tiny, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "write", lambda *_: None)
    with pytest.raises(RunError, match=r"lacks the part of client \d in round 1"):
        play(tiny(RECORD, "rounds.rounds=1"), run_path)
    assert not (run_path / TRACE_FILE).exists()
    assert not (run_path / "summary.json").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_part_that_cannot_be_written_ends_the_run(
    tiny: Tiny, run_path: Path, workers: int
) -> None:
    experiment = tiny(RECORD, "rounds.rounds=3", f"engine.workers={workers}")
    folder = RunFolder.create(run_path, experiment)
    for client in range(5):
        # What replaces a file cannot replace a folder.
        part_file(run_path / TRACE_FOLDER, client, 2).mkdir()
    with pytest.raises(RunError, match=r"cannot record a trace: cannot write the trace .*-2\.npz"):
        inline.run(experiment, folder)
    assert not (run_path / TRACE_FILE).exists()
    assert not (run_path / "summary.json").exists()
    rows = (run_path / "clients.jsonl").read_text().splitlines()
    assert {json.loads(row)["round"] for row in rows} == {1, 2}


def write_part(folder: Path, client: int, server_round: int, served: bool = False) -> Stream:
    folder.mkdir(exist_ok=True)
    order = np.array([1, 0, 1, server_round % 2])
    stream = Stream(
        client=client,
        size_bytes=np.array([5, 6]),
        requests=order,
        batch_starts=np.array([0, 3]),
        starts=np.array([0]),
        rounds=np.array([server_round]),
        losses=order.astype(np.float32),
        served=1 - order if served else np.empty(0, np.int64),
        hits=np.array([server_round % 3]),
        depth=np.array([server_round % 4 + 1]),
        budget_bytes=7,
    )
    write_trace(part_file(folder, client, server_round), Trace("t", (stream,), "p", "d"))
    return stream


def test_parts_are_joined_by_client_and_round(tmp_path: Path) -> None:
    for client, server_round, served in ((11, 3, False), (2, 10, True), (2, 9, False)):
        write_part(tmp_path / "parts", client, server_round, served)
    collect(tmp_path / "parts", {(2, 9), (2, 10)}, tmp_path / "t.npz")
    two = Stream(
        client=2,
        size_bytes=np.array([5, 6]),
        requests=np.array([1, 0, 1, 1, 1, 0, 1, 0]),
        batch_starts=np.array([0, 3, 4, 7]),
        starts=np.array([0, 4]),
        rounds=np.array([9, 10]),
        losses=np.array([1, 0, 1, 1, 1, 0, 1, 0], np.float32),
        served=np.array([1, 0, 1, 1, 0, 1, 0, 1]),
        hits=np.array([0, 1]),
        depth=np.array([2, 3]),
        budget_bytes=7,
    )
    eleven = write_part(tmp_path / "again", 11, 3)
    assert_same(read_trace(tmp_path / "t.npz"), Trace("t", (two, eleven), "p", "d"))


def test_a_part_that_is_damaged_fails_the_run_by_name(tmp_path: Path) -> None:
    write_part(tmp_path / "parts", 1, 2)
    part_file(tmp_path / "parts", 1, 2).write_bytes(b"PK")
    with pytest.raises(RunError, match=r"1-2\.npz is no trace that can be read"):
        collect(tmp_path / "parts", {(1, 2)}, tmp_path / "t.npz")
    assert not (tmp_path / "t.npz").exists()


def test_a_run_by_hand_clears_up_as_well(
    tiny: Tiny, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "runs" / run_name(tiny())
    with open_home(str(tiny_file), tiny(RECORD)) as folder:
        assert folder.path == home
        write_part(home / TRACE_FOLDER, 1, 2)
    assert not has_trace(home)


def test_the_command_line_says_where_the_trace_is(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    short = ["run", str(tiny_file), "--set", "rounds.rounds=1", "--out", str(out)]
    assert main([*short, "--record-trace"]) == 0
    assert f"\nTrace: {out / TRACE_FILE}\n" in capsys.readouterr().out
    assert len(read_trace(out / TRACE_FILE).streams) == 3
    assert main([*short, "--record-trace", "--json", str(out / TRACE_FILE)]) == 2
    assert "is a file of a run" in capsys.readouterr().err
    assert has_trace(out)
    assert main(short) == 0
    assert "Trace" not in capsys.readouterr().out
    assert not has_trace(out)


def test_what_an_engine_cannot_run_leaves_no_folder(tiny_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    memory = ["--engine", "flower", "--set", "cache.store=memory", "--out", str(out)]
    assert main(["run", str(tiny_file), "--record-trace", *memory]) == 2
    assert not out.exists()


def test_a_comparison_runs_again_what_has_no_trace(tiny: Tiny, run_path: Path) -> None:
    def compare(*overrides: str) -> str:
        plan = comparison.plan(
            tiny("rounds.rounds=1", *overrides), run_path, quick=False, seeds=None
        )
        said = StringIO()
        run_path.mkdir(exist_ok=True)
        comparison.execute(plan, Console(file=said), workers=1, reuse=True)
        return said.getvalue()

    traces = [run_path / arm / "seed-0" / TRACE_FILE for arm in ("one", "two")]
    compare()
    assert "are there already" not in compare(RECORD)
    assert all(trace.exists() for trace in traces)
    traces[0].unlink()
    assert "1 of 2 runs are there already" in compare(RECORD)
    assert "2 of 2 runs are there already" in compare(RECORD)
    assert "2 of 2 runs are there already" in compare()
    assert all(trace.exists() for trace in traces)
