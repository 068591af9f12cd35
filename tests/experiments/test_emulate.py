"""The emulate engine: real processes, the results of the inline engine, and nothing left."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from experiments import terminal
from experiments.cli import main
from experiments.engines import emulate, inline, supernodes
from experiments.engines.certificates import make_certificates, make_node_key
from experiments.engines.hermetic import HOST
from experiments.engines.kept import Kept, keeping
from experiments.engines.superlink import SuperLink
from experiments.engines.supernodes import SuperNodes
from experiments.fitting import fit
from experiments.telemetry import read
from fedio.config import Experiment
from fedio.errors import InputError, RunError
from fedio.loading import find, load
from fedio.runs import CACHES_FOLDER, TELEMETRY_FILE, Run, RunFolder, read_run
from tests.experiments.emulations import (
    PATIENCE_S,
    client_apps,
    emulating,
    rounds_written,
    wait_for,
)

Tiny = Callable[..., Experiment]

# One round after the other, with nobody left out: nothing depends on who is faster.
TIMELESS = ("rounds.over_commitment=1.0", "arms.one.selector='uniform'", "emulation.pace='none'")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; in the end none is there, nor a process that was not before."""
    assert tmp_path.is_dir()  # made before: it is not to land in there
    path = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    before = set(psutil.Process().children(recursive=True))
    yield path
    assert not list(path.iterdir())
    assert set(psutil.Process().children(recursive=True)) <= before
    shutil.rmtree(path)


def hits(run: Run) -> list[tuple[int, int, int, int]]:
    """Return by participation what does not depend on time."""
    keys = ("round", "client", "requests", "hits")
    return sorted(tuple(row[key] for key in keys) for row in run.clients)  # type: ignore[misc]


@pytest.mark.slow
def test_smoke_with_four_clients_ends_well_and_leaves_nothing(
    tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures = tmp_path / "run", tmp_path / "figures.json"
    given = ["--clients", "4", "--pace", "none", "--set", "rounds.rounds=2"]
    assert main(["emulate", "smoke", *given, "--out", str(out), "--json", str(figures)]) == 0
    said = capsys.readouterr()
    assert "rounds.over_commitment 1.25 -> 1" in said.err
    assert "device time" in said.out
    assert "virtual" not in said.out
    run = read_run(out)
    assert run.clock == "wall"
    assert json.loads(figures.read_text()) == run.summary
    assert run.summary["clients_trained"] == 4
    assert not (out / CACHES_FOLDER).exists()
    started = [row for row in read(out) if row["what"] == "started"]
    clients = [(kind, client) for kind in ("device", "supernode") for client in range(4)]
    assert sorted((row["kind"], row["client"]) for row in started if row["client"] is not None) == (
        clients
    )
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_results_that_do_not_depend_on_time_are_those_of_the_inline_engine(
    tiny: Tiny, tmp_path: Path, temporary: Path
) -> None:
    virtual = tiny(*TIMELESS, "rounds.rounds=3", "data.clients=3")
    wall = emulate.timed(virtual)
    phases: list[str] = []
    emulate.run(wall, RunFolder.create(tmp_path / "emulate", wall), say=phases.append)
    inline.run(virtual, RunFolder.create(tmp_path / "inline", virtual))
    there, here = read_run(tmp_path / "emulate"), read_run(tmp_path / "inline")
    assert there.summary["model_hash"] == here.summary["model_hash"]
    assert hits(there) == hits(here)
    assert there.summary["demand_hits"] > 0
    assert there.summary["evictions"] > 0
    assert len(phases) == 3
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_with_tls_eight_clients_listen_on_loopback_only_and_their_keys_are_theirs(
    tmp_path: Path, temporary: Path
) -> None:
    out = tmp_path / "run"
    options = ["--pace", "none", "--set", "rounds.rounds=2", "--out", str(out)]
    with emulating(temporary, "smoke", "--clients", "8", "--tls", *options) as process:
        wait_for(lambda: rounds_written(out), process)
        family = psutil.Process(process.pid).children(recursive=True)
        listening = listeners(family)
        (keys,) = temporary.glob("fedio-*/tls")
        modes = {stat.S_IMODE(file.stat().st_mode) for file in [keys, *keys.iterdir()]}
        sockets = {stat.S_IMODE(file.stat().st_mode) for file in keys.parent.glob("sockets/*")}
        assert process.wait(PATIENCE_S) == 0
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not alive
    assert len(listening) == 9  # a SuperLink and eight SuperNodes
    assert {address for address, _ in listening} == {HOST}
    assert modes == {0o700, 0o600}
    assert sockets == {0o600}
    assert read_run(out).summary["rounds"] == 2


def listeners(family: list[psutil.Process]) -> set[tuple[str, int]]:
    """Return the addresses and ports that processes listen on; some may end meanwhile."""
    found = set()
    for process in family:
        try:
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        found |= {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_in_mid_round_leaves_nothing_and_it_can_go_on(
    tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    # Small batches, but at the pace of phones: a participation takes some seconds.
    given = ["smoke", "--clients", "2", "--set", "rounds.rounds=3", "--set"]
    given += ["training.batch_size=4", "--out", str(out)]
    with emulating(temporary, *given) as process:
        wait_for(lambda: rounds_written(out) == 2, process)
        wait_for(lambda: are_relaying(process), process)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) > 8
        process.send_signal(number)
        process.wait(PATIENCE_S)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not alive
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert not list(temporary.iterdir())
    # That devices ended with it is nobody's failure.
    assert rounds_written(out) == 2
    assert '"failed"' not in (out / "clients.jsonl").read_text()
    if number == signal.SIGKILL:
        assert main(["emulate", *given, "--resume"]) == 0
        run = read_run(out)
        assert [row["round"] for row in run.rounds] == [0, 1, 2, 3]
        assert (out / TELEMETRY_FILE).is_file()


def are_relaying(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether both ClientApps have imported what they need, and wait for their devices."""
    apps = client_apps(process).values()
    try:
        return len(apps) == 2 and all(sum(app.cpu_times()[:2]) > 1.0 for app in apps)
    except psutil.Error:
        return False


@pytest.mark.slow
def test_what_the_user_has_to_put_right_is_an_input_error(
    tiny: Tiny, tmp_path: Path, temporary: Path
) -> None:
    wrong = emulate.timed(tiny("arms.one.selector='nobody'", "data.clients=3"))
    with pytest.raises(InputError, match="unknown selector 'nobody'"):
        emulate.run(wrong, RunFolder.create(tmp_path / "run", wrong))
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_a_node_with_a_key_that_is_not_registered_is_refused(temporary: Path) -> None:
    with keeping() as kept:
        link = SuperLink(kept, make_certificates(kept.folder / "tls"))
        link.open(simulation=False)
        nodes = SuperNodes(link, [kept.folder / "0.sock"], nice=0)
        other = make_node_key(kept.folder / "tls", "other")
        supernodes.register(kept, [other.public])
        nodes.start(0)
        ended = wait_for_end(kept)
        assert ended == "supernode-0"
        assert "Exit Code: 305" in kept.printed(ended)
        with pytest.raises(RunError, match="already in use"):
            supernodes.register(kept, [other.public])
    assert not list(temporary.iterdir())


def wait_for_end(kept: Kept) -> str:
    """Return the name of the command that ends next."""
    deadline = time.monotonic() + PATIENCE_S
    while not (ended := kept.ended()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return ended[0].name


def test_caches_in_memory_and_virtual_time_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    memory, virtual = emulate.timed(tiny("cache.store='memory'")), tiny()
    with pytest.raises(InputError, match=r"cache\.store=lmdb"):
        emulate.run(memory, RunFolder.create(tmp_path / "memory", memory))
    with pytest.raises(InputError, match=r"engine\.clock=wall"):
        emulate.run(virtual, RunFolder.create(tmp_path / "virtual", virtual))


def test_more_clients_than_memory_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    many = emulate.timed(tiny("data.clients=1000000"))
    with pytest.raises(InputError, match=r"1000000 clients .* take about 250 TB of memory"):
        emulate.run(many, RunFolder.create(tmp_path / "run", many))


@pytest.mark.parametrize(
    "command", [["run"], ["run", "--engine", "flower"], ["compare"]], ids=" ".join
)
def test_nothing_else_goes_by_the_wall_clock(
    command: list[str], tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = [*command, str(tiny_file), "--set", "engine.clock=wall", "--out", str(out)]
    assert main(given) == 2
    assert capsys.readouterr().err.startswith("error: engine.clock is wall, which only emulation")
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--clients", "1000001"], "there can be at most 1000000"),
        (["--clients", "0"], "needs a whole number from 1 on"),
        (["--clients", "2", "--pace", "fast"], "invalid choice: 'fast'"),
        (["--clients", "2", "--engine", "inline"], "unrecognized arguments: --engine"),
        (["--clients", "2", "--set", "cache.store=memory"], "use cache.store=lmdb"),
    ],
)
def test_wrong_arguments_are_one_line(
    given: list[str], said: str, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["emulate", str(tiny_file), *given, "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert not out.exists()


def test_the_command_hands_the_engine_what_was_asked_for(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Experiment, bool]] = []

    def run(experiment: Experiment, folder: RunFolder, *, tls: bool, say: object) -> None:
        assert say is terminal.say
        asked.append((load(folder.path / "config.toml"), tls))
        assert asked[-1][0].digest == experiment.digest
        raise KeyboardInterrupt

    monkeypatch.setattr(emulate, "run", run)
    file, out = str(tiny_file), str(tmp_path / "a")
    assert main(["emulate", file, "--clients", "8", "--tls", "--pace", "none", "--out", out]) == 130
    out = str(tmp_path / "b")
    assert main(["run", file, "--engine", "emulate", "--out", out]) == 130
    (first, first_tls), (second, second_tls) = asked
    assert (first_tls, second_tls) == (True, False)
    assert (first.data.clients, second.data.clients) == (8, 6)
    assert (first.emulation.pace, second.emulation.pace) == ("none", "profile")
    assert first.engine.clock == second.engine.clock == "wall"


def test_fewer_clients_make_smaller_cohorts() -> None:
    smoke = load(find("smoke"), ["rounds.minimum=3"])
    fitting, changes = fit(smoke, 2)
    assert fitting.data.clients == fitting.rounds.cohort == fitting.rounds.minimum == 2
    assert fitting.rounds.over_commitment == 1.0
    assert changes == [
        "rounds.cohort 4 -> 2",
        "rounds.minimum 3 -> 2",
        "rounds.over_commitment 1.25 -> 1",
    ]


def test_who_fits_is_not_changed() -> None:
    smoke = load(find("smoke"))
    assert fit(smoke, 10) == (smoke, [])
    more, changes = fit(smoke, 20)
    assert more.rounds == smoke.rounds
    assert changes == []
