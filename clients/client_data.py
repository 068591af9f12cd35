"""One client's samples: where they are, what they weigh, how they are cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clients.budget import budget_of
from clients.datasets import Dataset
from clients.forms import Form, Weights, form_of
from clients.prepare import Federation
from fedio.config import Experiment
from fedio.profiles import Speeds
from storage import Layout, Origin

Slow = Callable[[int, Origin, np.ndarray], Origin]
"""Puts something between a client (its partition) and its samples of declared sizes: a throttle."""


@dataclass(frozen=True)
class ClientData:
    """One client's samples, numbered 0..n-1.

    Attributes:
        dataset: decodes payloads; its own numbering is not used.
        origin: the slow tier, with this client's payloads only.
        labels: int64 [n].
        size_bytes: int64 [n], what a sample weighs at the origin.
        form: how each is cached, and what it weighs there.
        is_timed: whether decoding takes time.
        budget_bytes: what the cache may take.
    """

    dataset: Dataset
    origin: Origin
    labels: np.ndarray
    size_bytes: np.ndarray
    form: Form
    is_timed: bool
    budget_bytes: int

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def image_bytes(self) -> int:
        """The bytes of a decoded sample in memory."""
        return int(np.prod(self.dataset.shape))

    @cached_property
    def is_converted(self) -> np.ndarray:
        """Which samples have another payload in the cache than at the origin, bool [n]."""
        decoded: np.ndarray = self.form.prepared & self.dataset.decoder.encoded
        return decoded

    @cached_property
    def cached_length_bytes(self) -> np.ndarray:
        """The length of each payload in the cache, int64 [n]."""
        return np.where(self.is_converted, self.image_bytes, self.origin.size_bytes)

    def scratch_bytes(self, samples: int) -> int:
        """How much memory the payloads of so many samples may take, in both forms."""
        converted = self.image_bytes if self.form.some_prepared else 0
        return samples * (self._largest_bytes + converted)

    @cached_property
    def _largest_bytes(self) -> int:
        return int(self.origin.size_bytes.max(initial=1))


def client_data(
    experiment: Experiment,
    federation: Federation,
    partition: int,
    speeds: Speeds,
    slow: Slow | None = None,
) -> ClientData:
    """Return the samples of one client, in the form in which its arm caches them.

    Args:
        experiment: the experiment, of one arm.
        federation: its data.
        partition: the client.
        speeds: of its device.
        slow: what stands between it and its samples.
    """
    train, indices = federation.train, federation.samples_of(partition)
    size_bytes, origin = federation.size_bytes[indices], train.origin.subset(indices)
    weights = Weights(size_bytes, federation.prepared_bytes[indices], federation.is_timed)
    budget_bytes = budget_of(experiment, weights)
    return ClientData(
        dataset=train,
        origin=origin if slow is None else slow(partition, origin, size_bytes),
        labels=train.labels[indices],
        size_bytes=size_bytes,
        form=form_of(experiment.chosen.form, weights, speeds, Layout.for_budget(budget_bytes)),
        is_timed=federation.is_timed,
        budget_bytes=budget_bytes,
    )
