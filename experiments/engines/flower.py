"""The flower engine: both apps on Flower's own simulation runtime (Ray), virtual time.

The apps and the results are those of the inline engine. A client has no worker of its own: its next
message may go to any of Ray's, so its cache is on disk, in the run folder.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import tomli_w

from experiments.engines.superlink import superlink
from fedio.config import Experiment
from fedio.errors import FruitlessError, InputError, RunError
from fedio.flower_internals import check_version
from fedio.home import cleared
from fedio.runs import CONFIG_FILE, RunFolder

COMPLETED = "finished:completed"
SERVER_APP, CLIENT_APP = "experiments.apps:server_app", "experiments.apps:client_app"
WRAPPERS = ("Simulation failed with exception: ", "ServerApp failed with exception: ")
SILENCE = "No heartbeat received"
LOG_LINES = 30


def run(experiment: Experiment, folder: RunFolder) -> None:
    """Flower's own simulation runtime (Ray), in virtual time; the results are in the run folder.

    Raises:
        InputError: the experiment asks for something that is not here.
        RunError: the run failed.
    """
    check(experiment)
    with cleared(folder, keep_caches=experiment.cache.keep):
        with superlink([] if folder.lock is None else [folder.lock]) as link:
            app = write_app(link.folder / "app", folder.path / CONFIG_FILE)
            run_id = link.start(app, federation_config(experiment))
            status, details, log = link.wait(run_id)
        if status != COMPLETED:
            raise failure(status, details, log)


def check(experiment: Experiment) -> None:
    """Check that this engine can run the experiment.

    Raises:
        InputError: Ray is not installed, or caches are to be in memory.
        RunError: Flower is of another release than this engine knows.
    """
    if experiment.cache.store == "memory":
        raise InputError(
            "cache.store is memory, but in the flower engine a client has no fixed worker to keep "
            "it in; use cache.store=lmdb or --engine inline"
        )
    if importlib.util.find_spec("ray") is None:
        raise InputError(
            "the flower engine needs Ray, which is not installed: pip install 'fedio[simulation]'"
        )
    check_version()


def federation_config(experiment: Experiment) -> str:
    """Return Flower's federation config: a node for each client, one core for each Ray actor.

    `engine.workers` is the number of actors; 0 means one for each core.
    """
    clients = experiment.data.clients
    actors = min(experiment.engine.workers or _cores(), clients)
    return (
        f"num-supernodes={clients} client-resources-num-cpus=1 client-resources-num-gpus=0 "
        f"init-args-num-cpus={actors}"
    )


def write_app(path: Path, experiment_file: Path, client_app: str = CLIENT_APP) -> Path:
    """Write the Flower app of a run, which only names what is installed, and return its folder."""
    path.mkdir()
    components = {"serverapp": SERVER_APP, "clientapp": client_app}
    config = {"experiment": str(experiment_file.absolute()), "overrides": ""}
    app = {"publisher": "fedio", "components": components, "config": config}
    project = {"name": "fedio-run", "version": "1.0.0", "license": "Apache-2.0"}
    pyproject = {"project": project, "tool": {"flwr": {"app": app}}}
    (path / "pyproject.toml").write_text(tomli_w.dumps(pyproject))
    return path


def failure(status: str, details: str, log: str) -> InputError | RunError:
    """Return the error of a run that did not complete: the app's own where it has one.

    Args:
        status: Flower's status of the run.
        details: Flower's words on it, which hold the message of the app's exception.
        log: what the run's processes printed.
    """
    if details.startswith(SILENCE):
        return RunError("the process of the ServerApp ended before the run did, or stood still")
    said = details
    for wrapper in WRAPPERS:
        said = said.removeprefix(wrapper)
    first_line = said.partition("\n")[0]
    for kind in (InputError, FruitlessError, RunError):
        if f"{kind.__module__}.{kind.__qualname__}: {first_line}" in log:
            return kind(said)
    tail = "\n".join(log.strip().splitlines()[-LOG_LINES:])
    return RunError(f"Flower's run ended as {status}: {said}\n{tail}")


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
