"""The form in which samples are cached: encoded, as at the origin, or prepared for training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fedio.profiles import Speeds
from storage.layout import Layout

FormName = Literal["encoded", "prepared", "best"]


@dataclass(frozen=True)
class Form:
    """How each of a client's n samples is cached.

    Attributes:
        prepared: bool [n], decoded and scaled; the others are as at the origin.
        size_bytes: int64 [n], what it weighs in the cache.
    """

    prepared: np.ndarray
    size_bytes: np.ndarray

    @cached_property
    def some_prepared(self) -> bool:
        """Whether any sample is cached prepared."""
        return bool(self.prepared.any())


@dataclass(frozen=True, slots=True)
class Weights:
    """What samples weigh.

    Attributes:
        size_bytes: int64 [n], at the origin.
        prepared_bytes: int64 [n], decoded and scaled.
        is_timed: whether decoding them takes time.
    """

    size_bytes: np.ndarray
    prepared_bytes: np.ndarray
    is_timed: bool


def form_of(name: FormName, weights: Weights, speeds: Speeds, layout: Layout) -> Form:
    """Return the form of each sample; where nothing is decoded, there is only one.

    The best form of a sample is the one that saves more seconds per byte of budget, each time it
    is read from the cache and not from the origin:

        encoded:  (origin_s - cache_s(size)) / cost(size)
        prepared: (origin_s + decode_s - cache_s(prepared)) / cost(prepared)

    Args:
        name: which form.
        weights: what the samples weigh.
        speeds: of the client's device.
        layout: says what a cached sample is charged.
    """
    encoded, ready = weights.size_bytes, weights.prepared_bytes
    if name == "encoded" or not weights.is_timed:
        prepared = np.zeros(len(encoded), dtype=bool)
    elif name == "prepared":
        prepared = np.ones(len(encoded), dtype=bool)
    else:
        origin_s = speeds.origin.read_s(1, encoded)
        decode_s = speeds.decode_s(1, encoded)
        saved_encoded_s = origin_s - speeds.cache.read_s(1, encoded)
        saved_prepared_s = origin_s + decode_s - speeds.cache.read_s(1, ready)
        prepared = saved_prepared_s / layout.cost(ready) > saved_encoded_s / layout.cost(encoded)
    return Form(prepared, np.where(prepared, ready, encoded))
