"""Prepare an experiment's data once: who has which samples, and what each of them weighs."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from clients.datasets import DATASETS, Dataset, Split, stored
from clients.partition import dealt_by_speed, draw_sizes, partition
from fedio.config import Data, Experiment, Spec
from fedio.errors import InputError
from fedio.plugins import resolve
from fedio.profiles import fleet_of
from fedio.seeds import Purpose, rng

LAYOUT = 1
"""Part of the hash: raise it when the same experiment is to be divided otherwise."""


@dataclass(frozen=True, slots=True)
class Federation:
    """The data of all clients.

    Attributes:
        train: the samples that the clients have.
        test: the samples of the central test.
        clients: number of clients.
        hash: of all that determines this data.
        inflated: whether sizes are declared (nominal) instead of real.
        size_bytes: int64 [N], a training sample's bytes at the origin.
        prepared_bytes: int64 [N], its bytes after decoding and resizing.
        is_timed: whether decoding takes time: payloads are encoded, or sizes declared.
        decode_s: float64 [N], seconds to decode it at the declared rate; 0 for pixels.
        sample_counts: int64 [clients], how many samples each client trains on.
    """

    train: Dataset
    test: Dataset
    clients: int
    hash: str
    inflated: bool
    size_bytes: np.ndarray
    prepared_bytes: np.ndarray
    is_timed: bool
    decode_s: np.ndarray
    sample_counts: np.ndarray
    _training: Parts
    _holdout: Parts

    def samples_of(self, client: int) -> np.ndarray:
        """Return the samples of `train` that a client trains on: int64, ascending."""
        return self._training.of(client)

    def holdout_of(self, client: int) -> np.ndarray:
        """Return the samples of `train` that a client only evaluates on: int64, ascending."""
        return self._holdout.of(client)


@dataclass(frozen=True, slots=True)
class Parts:
    """Each client's samples, one after the other in `samples`; client i's end at `ends[i]`."""

    samples: np.ndarray
    ends: np.ndarray

    def of(self, client: int) -> np.ndarray:
        """Return one client's samples.

        Raises:
            IndexError: there is no such client.
        """
        if not 0 <= client < len(self.ends):
            raise IndexError(f"client {client} of {len(self.ends)}")
        return self.samples[self.ends[client - 1] if client else 0 : self.ends[client]]


def prepare(experiment: Experiment) -> Federation:
    """Return the data of an experiment, made and saved the first time, mapped from then on.

    Raises:
        InputError: the data set is unknown or cannot be had, too few samples for the partition,
            or the data folder cannot be written.
    """
    data = experiment.data
    split = load_split(data.dataset, data.home)
    by_speed = _by_speed(experiment) if data.partition.slow_labels else None
    key = _hash(data, experiment.seed, split, by_speed)
    return stored.once(
        data.home / "prepared" / key,
        partial(_build, data, experiment.seed, split.train, by_speed),
        partial(_open, data, key, split),
    )


def load_split(spec: Spec, home: Path) -> Split:
    """Return the data set that `spec` names, kept under `home`.

    Raises:
        InputError: unknown name, arguments it does not take, or it cannot be had.
    """
    load = resolve(spec, DATASETS, "data set")
    try:
        inspect.signature(load).bind(home, **spec.args)
    except TypeError as error:
        raise InputError(f"data set {spec.name!r} does not take {spec.args}: {error}") from error
    try:
        return load(home, **spec.args)
    except ValidationError as error:
        found = error.errors()[0]
        key = ".".join(["data.dataset.args", *(str(part) for part in found["loc"])])
        given = f", got {found['input']!r}" if found["loc"] else ""
        raise InputError(f"{key}: {found['msg'].removeprefix('Value error, ')}{given}") from error


def _by_speed(experiment: Experiment) -> np.ndarray:
    """Return the clients, int64, those whose devices compute fastest first."""
    return np.argsort(fleet_of(experiment)[1].compute_s, kind="stable")


def _hash(data: Data, seed: int, split: Split, by_speed: np.ndarray | None) -> str:
    """Return a hash of what determines who has which samples and what they weigh."""
    values = data.model_dump(mode="json", exclude={"folder", "dataset"})
    if by_speed is None:
        del values["partition"]["slow_labels"]
    else:
        values["by_speed"] = by_speed.tolist()
    values |= {"dataset": data.dataset.name, "content": split.digest, "shape": split.train.shape}
    values |= {"seed": seed, "layout": LAYOUT}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _build(
    data: Data, seed: int, train: Dataset, by_speed: np.ndarray | None, folder: Path
) -> None:
    generator = rng(seed, Purpose.PARTITION)
    training, holdout = [], []
    parts = partition(train.labels, data, generator)
    if by_speed is not None:
        slow_labels = data.partition.slow_labels
        parts = dealt_by_speed(parts, train.labels, slow_labels, by_speed, generator)
    for samples in parts:
        shuffled = generator.permutation(samples)
        held_out = min(int(data.holdout * len(samples) + 0.5), len(samples) - 1)
        holdout.append(np.sort(shuffled[:held_out]))
        training.append(np.sort(shuffled[held_out:]))
    _save_parts(folder, "training", training)
    _save_parts(folder, "holdout", holdout)
    if data.nominal is not None:
        nominal = draw_sizes(data.nominal.size_bytes, len(train), rng(seed, Purpose.SIZES))
        np.save(folder / "nominal-bytes.npy", nominal)
    facts = {"dataset": train.name, "seed": seed, "data": data.model_dump(mode="json")}
    stored.seal(folder, facts)


def _open(data: Data, key: str, split: Split, folder: Path) -> Federation:
    stored.check(folder)
    training = _parts(folder, "training")
    size_bytes = split.train.origin.size_bytes
    prepared_bytes = int(np.prod(split.train.shape))
    if data.nominal is not None:
        size_bytes = stored.array(folder / "nominal-bytes.npy")
        prepared_bytes = data.nominal.prepared_bytes
    timed = data.nominal is not None or split.train.decoder.encoded
    return Federation(
        train=split.train,
        test=split.test,
        clients=data.clients,
        hash=key,
        inflated=data.nominal is not None,
        size_bytes=size_bytes,
        prepared_bytes=np.full(len(split.train), prepared_bytes, np.int64),
        is_timed=timed,
        decode_s=size_bytes / data.decode_bytes_per_s if timed else np.zeros(len(split.train)),
        sample_counts=np.diff(training.ends, prepend=0),
        _training=training,
        _holdout=_parts(folder, "holdout"),
    )


def _save_parts(folder: Path, name: str, parts: list[np.ndarray]) -> None:
    np.save(folder / f"{name}.npy", np.concatenate(parts).astype(np.int64))
    np.save(folder / f"{name}-ends.npy", np.cumsum([len(part) for part in parts], dtype=np.int64))


def _parts(folder: Path, name: str) -> Parts:
    return Parts(stored.array(folder / f"{name}.npy"), stored.array(folder / f"{name}-ends.npy"))


def describe(federation: Federation) -> dict[str, Any]:
    """Return what there is to know about the data, as plain values for a table or JSON.

    `label_skew.total_variation` is half the sum over classes of |a client's share - the share
    among all clients' samples|, averaged over clients: 0 for equal mixes, towards 1 for disjoint.
    """
    train, counts = federation.train, federation.sample_counts
    owners = np.repeat(np.arange(federation.clients), counts)
    held = np.concatenate([federation.samples_of(i) for i in range(federation.clients)])
    cells = owners * train.classes + train.labels[held]
    by_label = np.bincount(cells, minlength=federation.clients * train.classes)
    by_label = by_label.reshape(federation.clients, train.classes)
    distance = abs(by_label / counts[:, None] - by_label.sum(0) / counts.sum()).sum(1) / 2
    held_out = sum(len(federation.holdout_of(i)) for i in range(federation.clients))
    return {
        "dataset": train.name,
        "hash": federation.hash,
        "classes": train.classes,
        "shape": list(train.shape),
        "train_samples": len(train),
        "test_samples": len(federation.test),
        "clients": federation.clients,
        "samples_per_client": _summary(counts),
        "held_out_samples": held_out,
        "label_skew": {
            "classes_per_client": float((by_label > 0).sum(1).mean()),
            "total_variation": float(distance.mean()),
        },
        "nominal": federation.inflated,
        "size_bytes": _summary(federation.size_bytes[held]),
        "prepared_bytes": _summary(federation.prepared_bytes[held]),
        "decode_s": _summary(federation.decode_s[held]),
    }


def _summary(values: np.ndarray) -> dict[str, float]:
    """Return smallest, median, 90th percentile, largest and sum."""
    return {
        "min": values.min().item(),
        "median": float(np.median(values)),
        "p90": float(np.quantile(values, 0.9)),
        "max": values.max().item(),
        "total": values.sum().item(),
    }
