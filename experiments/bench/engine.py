"""The engine: what a client-round costs beside bare PyTorch and beside Flower's own runtime."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from flwr.app import ConfigRecord, Message, RecordDict, UserConfig
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own convention

from clients.accelerator import one_thread
from clients.central import Central
from clients.device import Host
from clients.hosts import forget
from clients.models import build
from experiments.bench.measure import Row, in_turns
from experiments.engines.flower import COMPLETED, check, failure, federation_config
from experiments.engines.inline import InlineGrid, node_ids
from experiments.engines.pools import RUN_ID, SERVER_NODE, ThisProcess
from experiments.engines.superlink import superlink
from fedio.arrays import unpack
from fedio.config import Experiment
from fedio.flower_internals import assume_identity
from fedio.loading import find, load
from fedio.protocol import ARRAYS, CONFIG, LOCAL_STEPS, SERVER_ROUND
from fedio.runs import CONFIG_FILE, RunFolder

WORKERS = 2
TRAINING_CLIENTS = 20
OVERHEAD = {"clients": 1000, "cohort": 100, "parameters": 50_000}
MODELS = ("cnn", "mlp")
# A full static cache only reads; LRU under shuffled epochs also writes nearly every sample.
CACHES = (("lmdb", "static"), ("memory", "static"), ("lmdb", "lru"))


def rows() -> list[Row]:
    """Measure everything; takes a few minutes."""
    work = [_experiment(model, *cache) for model in MODELS for cache in CACHES]
    return [*map(_beside_pytorch, work), *_beside_flower()]


def _experiment(model: str, store: str = "lmdb", policy: str = "static") -> Experiment:
    """Return the quickstart's work, 8 steps of 20 samples, on fewer clients."""
    overrides = [
        f"model={model}",
        f"cache.store={store}",
        f"data.clients={TRAINING_CLIENTS}",
        "rounds.cohort=10",
        "training.accelerator=cpu",
        f"engine.workers={WORKERS}",
    ]
    return load(find("quickstart"), overrides).for_arm(f"oort+{policy}")


def _setting(experiment: Experiment, **more: object) -> dict[str, Any]:
    training = experiment.training
    return {
        "model": experiment.model.name,
        "batch": training.batch_size,
        "local_steps": training.local_steps,
        "clients": TRAINING_CLIENTS,
        "store": experiment.cache.store,
        "policy": experiment.chosen.policy.name,
        **more,
    }


def _beside_pytorch(experiment: Experiment) -> Row:
    """One process, one core: client-rounds through Flower's messages beside a bare loop."""
    with tempfile.TemporaryDirectory() as folder:
        RunFolder.create(Path(folder), experiment)
        config: UserConfig = {
            "experiment": str(Path(folder) / CONFIG_FILE),
            "overrides": "",
        }
        assume_identity(RUN_ID, SERVER_NODE)
        nodes = node_ids(TRAINING_CLIENTS)
        grid = InlineGrid(list(nodes), ThisProcess(nodes, config))
        arrays = Central(experiment).initial_arrays
        steps = experiment.training.local_steps
        rounds = count(1)

        def ours() -> None:
            request = ConfigRecord({SERVER_ROUND: next(rounds), LOCAL_STEPS: steps})
            content = RecordDict({ARRAYS: arrays, CONFIG: request})
            replies = grid.send_and_receive([Message(content, node, "train") for node in nodes])
            if any(reply.has_error() for reply in replies):
                raise RuntimeError("a client failed")

        weights = {name: torch.tensor(unpack(array)) for name, array in arrays.items()}
        bare = _bare_loop(experiment, Host(experiment, Path(folder) / "bare"), weights)
        try:
            with one_thread():
                ours_s, bare_s = in_turns(ours, bare)
        finally:
            forget()
    names = ("engine.training", "pytorch-loop")
    return Row.of_seconds(names, ours_s, bare_s, TRAINING_CLIENTS, _setting(experiment, workers=0))


def _bare_loop(
    experiment: Experiment, host: Host, weights: dict[str, torch.Tensor]
) -> Callable[[], None]:
    """Return plain training of every client on as many batches, whose samples are in memory."""
    training, data = experiment.training, host.data.train
    model: nn.Module = build(experiment.model, data.shape, data.classes, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    held = []
    for client in range(TRAINING_CLIENTS):
        own = host.data.samples_of(client)
        order = np.resize(rng.permutation(own), training.accesses)
        held.append((torch.from_numpy(data.images(order)), torch.tensor(data.labels[order])))

    def loop() -> None:
        for images, labels in held:
            model.load_state_dict(weights)
            sgd = torch.optim.SGD(
                model.parameters(), training.lr, training.momentum, weight_decay=0.0
            )
            for first in range(0, training.accesses, training.batch_size):
                batch = slice(first, first + training.batch_size)
                pixels = images[batch].float().div_(127.5).sub_(1.0)
                sgd.zero_grad()
                F.cross_entropy(model(pixels), labels[batch]).backward()  # type: ignore[no-untyped-call]
                sgd.step()

    return loop


def _beside_flower() -> list[Row]:
    """Flower's Ray runtime and our workers, as many actors as workers, in turns in one run."""
    measured: list[Row] = []
    with superlink() as link:

        def measure(name: str, experiment: Experiment, plan: dict[str, Any], client: str) -> Any:
            check(experiment)
            folder = link.folder / name
            ours, theirs = folder / "inline", folder / "flower"
            for path in (ours, theirs):
                RunFolder.create(path, experiment)
            plan |= {
                "workers": WORKERS,
                "app": client,
                "experiment": str(ours / CONFIG_FILE),
                "local_steps": experiment.training.local_steps,
                "result": str(folder / "result.json"),
            }
            app = _write_app(folder / "app", client, plan, theirs / CONFIG_FILE)
            federation = federation_config(
                experiment.model_copy(
                    update={"data": experiment.data.model_copy(update={"clients": plan["clients"]})}
                )
            )
            status, details, log = link.wait(link.start(app, federation))
            if status != COMPLETED:
                raise failure(status, details, log)
            return json.loads(Path(plan["result"]).read_text())

        model = link.folder / "overhead.npz"
        np.savez(model, w=np.zeros(OVERHEAD["parameters"], np.float32))
        plan = {"clients": OVERHEAD["clients"], "cohort": OVERHEAD["cohort"], "arrays": str(model)}
        noop = "experiments.bench.engine_apps:noop_client"
        found = measure("overhead", _experiment("mlp"), plan, noop)
        names = ("engine.overhead", "flower-ray")
        setting = OVERHEAD | {"workers": WORKERS, "client": "no-op"}
        measured.append(
            Row.of_seconds(names, found["ours"], found["flower"], OVERHEAD["cohort"], setting)
        )
        for name in MODELS:
            experiment = _experiment(name)
            model = link.folder / f"{name}.npz"
            initial = Central(experiment).initial_arrays
            np.savez(model, **{key: unpack(array) for key, array in initial.items()})  # type: ignore[arg-type]
            everyone = {"clients": TRAINING_CLIENTS, "cohort": TRAINING_CLIENTS}
            plan = everyone | {"arrays": str(model)}
            found = measure(f"training-{name}", experiment, plan, "experiments.apps:client_app")
            measured.append(
                Row.of_seconds(
                    ("engine.training", "flower-ray"),
                    found["ours"],
                    found["flower"],
                    TRAINING_CLIENTS,
                    _setting(experiment, workers=WORKERS),
                )
            )
    return measured


def _write_app(path: Path, client: str, plan: dict[str, Any], experiment_file: Path) -> Path:
    """Write the Flower app that measures, and return its folder."""
    path.mkdir()
    components = {"serverapp": "experiments.bench.engine_apps:server_app", "clientapp": client}
    config = {"experiment": str(experiment_file), "overrides": "", "plan": json.dumps(plan)}
    app = {"publisher": "fedio", "components": components, "config": config}
    project = {"name": "fedio-bench", "version": "1.0.0", "license": "Apache-2.0"}
    (path / "pyproject.toml").write_text(
        tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    )
    return path
