"""Replays: what the figures are, what is asked for, and what a user is told."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from experiments import replays
from experiments.cli import main
from experiments.replays.capacity import RECORDED, Capacity
from experiments.replays.curves import draw
from experiments.replays.sources import named_call, split
from fedio.config import Spec
from fedio.errors import InputError
from storage import Layout, usable_bytes
from storage.policies import POLICIES
from storage.replay import replay
from storage.synthetic import gaps, zipf
from storage.trace import Stream, Trace
from storage.trace_file import write_trace


def one_stream(requests: list[int], size_bytes: list[int], budget_bytes: int = 0) -> Stream:
    count = len(requests)
    return Stream(
        client=0,
        size_bytes=np.array(size_bytes),
        requests=np.array(requests),
        batch_starts=np.arange(count),
        starts=np.array([0]),
        rounds=np.array([1]),
        budget_bytes=budget_bytes,
    )


def rows_of(trace: Trace, policies: str, capacity: str) -> list[dict[str, object]]:
    capacities = replays.capacities_of([capacity], trace)
    return list(replays.rows(trace, replays.contenders_of([policies], trace), capacities))


def test_figures_by_hand() -> None:
    """LRU with room for two keeps 0, then 2 drives out 1; the best cache declines 2."""
    trace = Trace("x", (one_stream([0, 1, 0, 2, 1, 0], [10, 10, 10]),))
    (row,) = rows_of(trace, "lru", "2")
    assert row["hit_ratio"] == row["byte_hit_ratio"] == 1 / 6
    assert row["bound"] == 3 / 6
    assert row["bound_is_exact"]
    assert row["regret"] == pytest.approx(2 / 6)
    assert row["written_bytes"] == 50
    assert (row["capacity"], row["setting"], row["requests"]) == (2, "2", 6)
    assert row["substituted_ratio"] == 0
    assert not row["counterfactual"]


def test_bytes_and_hits_are_summed_over_caches() -> None:
    one, two = one_stream([0, 0, 0], [100]), one_stream([0, 1], [1, 1])
    two = Stream(1, two.size_bytes, two.requests, two.batch_starts, two.starts, two.rounds)
    (row,) = rows_of(Trace("x", (one, two)), "fifo", "100%")
    assert row["hit_ratio"] == 2 / 5
    assert row["byte_hit_ratio"] == 200 / 302
    assert row["written_bytes"] == 102
    assert row["capacity"] == 1.5


def test_capacities() -> None:
    stream = one_stream([0], [10, 30], budget_bytes=1 << 20)
    assert Capacity("1").of(stream)[1] == 20
    assert Capacity("29%").of(one_stream([0], [100]))[1] == 29
    assert Capacity("0").of(stream)[1] == 0
    charges, capacity_bytes = Capacity(RECORDED).of(stream)
    assert capacity_bytes == usable_bytes(1 << 20)
    assert charges.cost_of(30) == Layout.for_budget(1 << 20).cost_of(30)
    trace = Trace("x", (stream,))
    assert [c.text for c in replays.capacities_of([], trace)] == [RECORDED]
    assert [c.text for c in replays.capacities_of(["1,2", "5%", "2"], trace)] == ["1", "2", "5%"]
    synthetic = zipf(np.random.default_rng(0), samples=5, requests=5)
    assert len(replays.capacities_of([], synthetic)) > 2
    with pytest.raises(InputError, match="was not recorded"):
        replays.capacities_of([RECORDED], synthetic)
    for wrong in (
        "-1",
        "1.5",
        "101%",
        "x",
        "nan%",
        "1e3",
        "%",
        "",
        "1_000",
        "+5",
        "1e1%",
        "9" * 5000,
    ):
        with pytest.raises(InputError, match="give samples"):
            Capacity(wrong)


def test_contenders() -> None:
    trace = zipf(np.random.default_rng(0), samples=5, requests=5)
    everyone = [c.name for c in replays.contenders_of([], trace)]
    assert "lru" in everyone
    assert "importance" not in everyone, "it learns from losses, and there are none"
    named = replays.contenders_of(["lru,experience(frequency=penalise, victims=artifact)"], trace)
    assert named[0].name == "lru"
    assert named[1].spec.args == {"frequency": "penalise", "victims": "artifact"}
    assert replays.contenders_of(["storage.policies:LRU"], trace)[0].policy(3).samples == 3
    for wrong, said in (
        ("lrv", "did you mean 'lru'"),
        ("lru(x=1)", "does not take"),
        ("lru(1)", "write key=value"),
        ("lru(", "cannot read"),
        ("lru(a=1, a=2)", "gives a twice"),
    ):
        with pytest.raises(InputError, match=said):
            replays.contenders_of([wrong], trace)


def test_calls_and_lists_are_read() -> None:
    assert named_call("a(b=1, c=[1, 2], d=x)") == ("a", {"b": 1, "c": [1, 2], "d": "x"})
    assert split("a,b(c=1,d=2),,e") == ["a", "b(c=1,d=2)", "e"]


def test_a_trace_that_depended_on_the_cache_is_labelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = one_stream([0, 1, 0], [1, 1], budget_bytes=1 << 20)
    recorded = Spec(name="lru").model_dump_json()
    trace = Trace("x", (stream,), policy=recorded, depends="sampler pads looks at the cache")
    labels = {
        (row["policy"], row["setting"]): row["counterfactual"]
        for capacity in ("recorded", "1")
        for row in rows_of(trace, "lru,fifo", capacity)
    }
    assert labels == {
        ("lru", "recorded"): False,
        ("fifo", "recorded"): True,
        ("lru", "1"): True,
        ("fifo", "1"): True,
    }
    write_trace(tmp_path / "t.npz", trace)
    assert main(["replay", str(tmp_path / "t.npz"), "--policies", "fifo"]) == 0
    assert "counterfactual, for sampler pads looks at the cache" in capsys.readouterr().out


def test_a_recorded_run_is_replayed_hit_by_hit(tmp_path: Path) -> None:
    run = ["run", "smoke", "--record-trace", "--out", str(tmp_path / "run")]
    run += ["--set", "cache.share=0.4", "--set", "arms.x.policy=lru", "--arm", "x"]
    assert main(run) == 0
    trace = replays.find_trace(str(tmp_path / "run"), seed=0)
    assert sum(int(stream.hits.sum()) for stream in trace.streams) > 0
    for stream in trace.streams:
        outcome = replay(stream, POLICIES["lru"](stream.samples), *Capacity(RECORDED).of(stream))
        np.testing.assert_array_equal(outcome.hits_by_participation, stream.hits)


def test_no_policy_beats_the_bound() -> None:
    rng = np.random.default_rng(1)
    traces = (
        zipf(rng, samples=60, requests=600),
        zipf(rng, samples=60, requests=600, batch=16),
        zipf(rng, samples=60, requests=600, size_bytes=1000, sigma=1.0),
        gaps(rng, clients=3, samples=40, rounds=9, accesses=30, share=0.5, batch=8),
    )
    for trace in traces:
        rows = rows_of(trace, "all", "3,10,25%")
        assert {row["policy"] for row in rows} >= {"lru", "next_use", "arc"}
        for row in rows:
            assert row["regret"] >= -1e-12, row  # type: ignore[operator]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = "zipf(samples=50, requests=500)"
    arguments = ["replay", trace, "--capacity", "5,10", "--policies", "lru,static"]
    arguments += ["--json", str(tmp_path / "r.json"), "--out", str(tmp_path / "curves")]
    assert main(arguments) == 0
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["schema"] == 1
    assert written["trace"]["requests"] == 500
    keys = {"policy", "capacity", "hit_ratio", "byte_hit_ratio", "bound", "regret", "written_bytes"}
    assert all(keys <= row.keys() for row in written["rows"])
    assert [(r["policy"], r["capacity"]) for r in written["rows"]] == [
        ("lru", 5),
        ("lru", 10),
        ("static", 5),
        ("static", 10),
    ]
    assert {file.name for file in (tmp_path / "curves").iterdir()} == {
        "miss-ratio.png",
        "miss-ratio.svg",
    }
    assert "Belady with bypass" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such"], "no trace no-such"),
        (["zipf(samples=0)"], "trace zipf(samples=0)"),
        (["x" * 300], "no trace xxx"),
        (["zipf(samples={[]:1})"], "cannot read the value of samples"),
        (["zipf(samples=99999999999999)"], "too large"),
        (["zipf(samples=1, samples=2)"], "gives samples twice"),
        (["zipf(colour=1)"], "zipf takes samples, requests, exponent, batch"),
        (["zipf", "--out", "x", "--capacity", "5"], "need two values of --capacity"),
        (["zipf", "--capacity", "many"], "give samples"),
        (["zipf", "--policies", "lrv"], "did you mean 'lru'"),
        (["zipf", "--policies", "libcachesim:ARK"], "ARC"),
        ([".", "--policies", "lru"], "make the run with --record-trace"),
        (["Makefile"], "Makefile"),
        (["zipf", "--json", "/no/such/x.json"], "cannot write"),
    ],
)
def test_wrong_input(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("libcachesim")
    assert main(["replay", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_must_be_known_to_read_a_row() -> None:
    trace = zipf(np.random.default_rng(0), samples=20, requests=50, batch=5)
    rows = {row["policy"]: row["caveats"] for row in rows_of(trace, "lru,next_use,importance", "5")}
    assert rows == {
        "lru": [],
        "next_use": ["it was told the whole order, as no policy can know it"],
        "importance": ["it learns from losses, and this trace has none"],
    }
    pytest.importorskip("libcachesim")
    (row,) = rows_of(trace, "libcachesim:FIFO", "5")
    assert row["caveats"] == [
        "libCacheSim knows no batches: newcomers count as used after all hits"
    ]


def test_the_recorded_policy_is_replayed_even_if_it_is_not_in_the_table() -> None:
    stream = one_stream([0, 1, 0], [1, 1], budget_bytes=1 << 20)
    recorded = Spec(name="lfu", args={"admission": "more used"})
    trace = Trace("x", (stream,), policy=recorded.model_dump_json())
    rows = rows_of(trace, "all", "recorded")
    assert [row["policy"] for row in rows if row["recorded"]] == ["lfu(admission=more used)"]


def test_theirs_agree_with_ours_where_both_are_the_same_policy() -> None:
    pytest.importorskip("libcachesim")
    rng = np.random.default_rng(2)
    for batch in (1, 8):
        for sigma in (0.0, 1.0):
            trace = zipf(rng, samples=80, requests=800, batch=batch, size_bytes=1000, sigma=sigma)
            rows = rows_of(trace, "fifo,libcachesim:FIFO", "20")
            ours, theirs = ({**row, "policy": "", "caveats": []} for row in rows)
            assert ours == theirs


def test_what_theirs_cannot_do_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("libcachesim")
    trace = zipf(np.random.default_rng(0), samples=20, requests=50)
    rows = rows_of(trace, "lru,libcachesim:WTinyLFU", "1")
    assert [row["policy"] for row in rows] == ["lru"]
    assert "libcachesim:WTinyLFU at capacity 1: libCacheSim ended its process" in caplog.text


@pytest.mark.slow
def test_all_of_theirs_can_be_replayed() -> None:
    pytest.importorskip("libcachesim")
    trace = zipf(np.random.default_rng(0), samples=400, requests=3000)
    rows = rows_of(trace, "libcachesim", "100")
    assert len(rows) >= 20
    for row in rows:
        assert 0 < row["hit_ratio"] <= row["bound"], row  # type: ignore[operator]


def test_every_policy_has_a_first_line_to_list() -> None:
    assert all((policy.__doc__ or "").strip() for policy in POLICIES.values())


def test_a_plug_in_that_a_trace_names_is_imported_only_if_the_user_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "evil_plug.py").write_text(
        "open(__file__ + '.ran', 'w').close(); raise OSError('no')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for recorded in (Spec(name="evil_plug:P"), Spec(name="lru", args={"colour": 1})):
        trace = Trace("x", (one_stream([0, 1], [1, 1]),), policy=recorded.model_dump_json())
        names = {contender.spec.name for contender in replays.contenders_of([], trace)}
        assert names <= POLICIES.keys()
        assert "left out the recorded" in caplog.text
        caplog.clear()
    ran = tmp_path / "evil_plug.py.ran"
    assert not ran.exists()
    with pytest.raises(InputError, match="cannot load policy"):
        replays.contenders_of(["evil_plug:P"], trace)
    assert ran.exists()


def test_the_trace_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, link = tmp_path / "t.npz", tmp_path / "link"
    write_trace(path, zipf(np.random.default_rng(0), samples=5, requests=5))
    link.symlink_to(path)
    before = path.read_bytes()
    for trace, file in ((path, path), (path, link), (link, path)):
        assert main(["replay", str(trace), "--json", str(file)]) == 2
        assert "is the trace" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_folder_that_takes_no_curves_is_found_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/fedio")):
        assert main(["replay", "zipf(requests=9)", "--out", str(folder)]) == 2
        captured = capsys.readouterr()
        assert not captured.out
        assert "replaying" not in captured.err


def test_curves_that_cannot_be_written_leave_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "miss-ratio.png").mkdir()
    arguments = ["replay", "zipf(requests=9)", "--policies", "lru", "--capacity", "1,2"]
    arguments += ["--out", str(tmp_path), "--json", str(tmp_path / "r.json")]
    assert main(arguments) == 1
    assert "cannot write plots" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"miss-ratio.png", "r.json"}


def test_names_are_drawn_as_they_are_written(tmp_path: Path) -> None:
    trace = zipf(np.random.default_rng(0), samples=5, requests=9)
    rows = [
        {**row, "policy": f"{row['policy']}$_$\\frac{{"} for row in rows_of(trace, "lru", "1,2")
    ]
    rows += [{**row, "policy": "_hidden"} for row in rows]
    for file in replays.write_curves(rows, "$\\no$", tmp_path):
        assert file.stat().st_size
    (legend,) = draw(rows, "$x$").legends
    assert {text.get_text() for text in legend.get_texts()} > {"_hidden", "lru$_$\\frac{"}


def test_a_client_without_samples_does_not_count() -> None:
    none = np.empty(0, np.int64)
    nobody = Stream(1, none, none, none, none, none)
    (row,) = rows_of(Trace("x", (one_stream([0, 1, 0], [1, 1]), nobody)), "lru", "50%")
    assert row["capacity"] == 1


def test_a_trace_that_cannot_be_looked_at_is_the_users_to_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(InputError, match="cannot read locked/trace: Permission denied"):
        replays.find_trace("locked/trace", seed=0)
