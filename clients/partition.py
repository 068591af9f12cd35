"""Divide the training samples among the clients, through flwr-datasets."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from fedio.config import Data, LogNormal
from fedio.errors import InputError

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

TRIES = 10


def partition(labels: np.ndarray, data: Data, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the samples of each client, int64 and sorted; none twice, each client at least one.

    With `data.partition.samples`, client sizes are log-normal: exact for `iid` and `dirichlet`,
    an upper limit for `pathological`, where the classes bound them too. Without it all samples
    are divided, and a client that would go empty (Dirichlet) gets one from the largest.

    Args:
        labels: int64 [n], 0 .. classes - 1.
        data: number of clients and kind of partition.
        rng: of all random choices.

    Raises:
        InputError: there are too few samples for what is asked.
    """
    if data.clients > len(labels):
        raise InputError(
            f"data.clients is {data.clients} but there are {len(labels)} training samples: "
            "lower data.clients"
        )
    wanted = data.partition.samples
    sizes = None if wanted is None else draw_sizes(wanted, data.clients, rng)
    exact = data.partition.kind != "pathological"
    if sizes is not None and exact and sizes.sum() > len(labels):
        raise InputError(
            f"the clients' samples add up to {sizes.sum()} but there are {len(labels)}: "
            "lower data.clients or data.partition.samples"
        )
    order = rng.permutation(len(labels))
    parts = [order[part] for part in _divide(labels[order], data, sizes, rng)]
    if sizes is not None:
        parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    _fill_empty(parts)
    return [np.sort(part) for part in parts]


def dealt_by_speed(
    parts: list[np.ndarray],
    labels: np.ndarray,
    share: float,
    by_speed: np.ndarray,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Return the parts, of which a share is dealt out anew: the last classes to the slowest.

    Args:
        parts: each client's samples.
        labels: int64 [n].
        share: of the clients, who are drawn; to a whole number.
        by_speed: the clients, int64, the fastest first.
        rng: draws them.
    """
    drawn = rng.choice(len(parts), int(share * len(parts) + 0.5), replace=False)
    means = np.array([labels[part].mean() for part in parts])
    owners = np.sort(drawn)[np.argsort(means[np.sort(drawn)], kind="stable")]
    dealt = list(parts)
    for client, owner in zip(by_speed[np.isin(by_speed, drawn)], owners, strict=True):
        dealt[client] = parts[owner]
    return dealt


def draw_sizes(wanted: LogNormal, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return `count` whole numbers >= 1, log-normal around the median and clipped, int64."""
    drawn = wanted.median * np.exp(wanted.sigma * rng.standard_normal(count))
    clipped: np.ndarray = np.maximum(drawn.clip(wanted.min, wanted.max).round(), 1)
    return clipped.astype(np.int64)


def _divide(
    labels: np.ndarray, data: Data, sizes: np.ndarray | None, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the positions in `labels` (in random order) that each client gets."""
    try:  # slow to import, and needed only where a partition is made
        from datasets import Dataset  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InputError("partitions need flwr-datasets: pip install fedio[experiments]") from error

    present = np.unique(labels, return_inverse=True)[1]  # the Dirichlet one wants 0, 1, 2 ...
    table = Dataset.from_dict({"label": present, "position": np.arange(len(labels))})
    table = table.with_format("numpy")
    reason = ""
    for _ in range(TRIES):
        partitioner = _partitioner(data, sizes, int(rng.integers(2**31)))
        partitioner.dataset = table
        try:
            return _positions(partitioner, data.clients)
        except ValueError as error:  # small alpha can exhaust all the classes that a client has
            reason = str(error)
    raise InputError(
        f"no {data.partition.kind} partition into {data.clients} clients found ({reason}): "
        "raise alpha, or lower the clients, their samples or classes_per_client"
    )


def _positions(partitioner: Partitioner, clients: int) -> list[np.ndarray]:
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        # Said by flwr-datasets: the sizes leave samples over, a class goes unused. Both are meant.
        warnings.simplefilter("ignore", UserWarning)
        parts = [partitioner.load_partition(i) for i in range(clients)]
    return [np.asarray(part["position"][:], np.int64) for part in parts]


def _partitioner(data: Data, sizes: np.ndarray | None, seed: int) -> Partitioner:
    from flwr_datasets import partitioner as by  # noqa: PLC0415

    wanted = data.partition
    if wanted.kind == "pathological":
        return by.PathologicalPartitioner(
            data.clients,
            "label",
            wanted.classes_per_client,
            class_assignment_mode="first-deterministic",
            seed=seed,
        )
    if wanted.kind == "iid":
        return (
            by.IidPartitioner(data.clients) if sizes is None else by.SizePartitioner(sizes.tolist())
        )
    if sizes is not None:
        return by.InnerDirichletPartitioner(sizes, "label", wanted.alpha, seed=seed)
    # By default small parts are drawn again, and at small alpha never found.
    return by.DirichletPartitioner(
        data.clients, "label", wanted.alpha, min_partition_size=0, seed=seed
    )


def _fill_empty(parts: list[np.ndarray]) -> None:
    """Give each empty part the last sample of the part that is the largest then."""
    for empty in [i for i, part in enumerate(parts) if len(part) == 0]:
        largest = int(np.argmax([len(part) for part in parts]))
        parts[empty], parts[largest] = parts[largest][-1:], parts[largest][:-1]
