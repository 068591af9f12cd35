from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from fedio.profiles import Speeds
from strategies.fleet import Fleet
from strategies.selector import View

# Seconds per sample, bytes/s and so on of an ordinary device.
ORDINARY = {
    "compute_s": 0.01,
    "step_s": 0.0,
    "decode_sample_s": 0.002,
    "decode_bytes_per_s": np.inf,
    "readers": 1.0,
    "depth": 1.0,
    "buffer_bytes": 1e9,
    "slowdown": 1.0,
    "download_bytes_per_s": 1e6,
    "upload_bytes_per_s": 0.5e6,
    "memory_bytes": 4e9,
    "origin_read_latency_s": 0.01,
    "origin_read_bytes_per_s": 1e6,
    "cache_read_latency_s": 0.001,
    "cache_read_bytes_per_s": 1e8,
    "cache_write_latency_s": 0.001,
    "cache_write_bytes_per_s": 5e7,
}

ViewOf = Callable[..., View]


@pytest.fixture(scope="session")
def view_of() -> ViewOf:
    """Make a view of round 10 over clients that all look alike, but for the columns given."""

    def make(
        clients: int,
        count: int,
        *,
        server_round: int = 10,
        feasible: np.ndarray | None = None,
        staging: bool = False,
        **columns: object,
    ) -> View:
        fleet = Fleet.unknown(clients)
        for field in fields(Speeds):
            getattr(fleet.speeds, field.name)[:] = columns.pop(field.name, ORDINARY[field.name])
        alike = {"samples": 200, "resident_samples": 0}
        alike |= {"mean_size_bytes": 1e5, "mean_cached_bytes": 1e5}
        alike |= {"decoded_share": 1.0, "cached_decoded_share": 1.0}
        for name, values in (alike | columns).items():
            getattr(fleet, name)[:] = values
        if feasible is None:
            feasible = fleet.feasible(0.0)
        return View(
            fleet=fleet.read_only(),
            round=server_round,
            now_s=0.0,
            feasible=feasible,
            wanted=count,
            count=count,
            local_steps=8,
            batch_size=20,
            model_bytes=1e6,
            staging=staging,
        )

    return make
