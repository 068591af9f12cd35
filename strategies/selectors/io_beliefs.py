"""What is believed of clients' I/O: what they claim, that all are alike, or that it is free."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedio.expected_hits import expected_hit_share
from strategies.fleet import Fleet
from strategies.selector import View
from strategies.selectors.claims import predicted_s, quantile

BELIEFS = ("claimed", "alike", "free")
_TIERS = ("origin_read", "cache_read", "cache_write")
IO_COLUMNS = (
    "mean_size_bytes",
    "mean_cached_bytes",
    "decoded_share",
    "cached_decoded_share",
    "speeds.decode_sample_s",
    "speeds.decode_bytes_per_s",
    *(f"speeds.{tier}_{figure}" for tier in _TIERS for figure in ("latency_s", "bytes_per_s")),
)


def believed_s(view: View, clients: np.ndarray, staged: np.ndarray, io: str) -> np.ndarray:
    """Return predicted seconds of participations, float64 [k]: anything, where claims are.

    Compute, network and how far reading runs ahead are as claimed in any case.

    Args:
        view: the round.
        clients: partition-ids, [k].
        staged: which of all clients fill their caches before it, partition-ids.
        io: of samples, caches, tiers and decoding, "claimed" takes what is claimed, "alike" takes
            everybody for what is in the middle, figure by figure, and "free" costs no time.
    """
    if io == "claimed" and not len(staged):
        return predicted_s(view, clients)
    return predicted_s(_believed(view, io), clients, _hit_share(view, clients, staged, io))


def _hit_share(view: View, clients: np.ndarray, staged: np.ndarray, io: str) -> np.ndarray:
    """Return the share of hits to reckon with, float64 [k]: staging fills what a cache can hold."""
    fleet = view.fleet
    samples, held = np.maximum(fleet.samples[clients], 1), fleet.resident_share[clients]
    with np.errstate(all="ignore"):
        room = fleet.budget_bytes[clients] / (fleet.mean_cached_bytes[clients] * samples)
    filled = np.isin(clients, staged)
    held[filled] = np.fmax(held, np.clip(room, 0.0, 1.0))[filled]
    if io == "alike":
        held[:] = quantile(held, 0.5, 0.0)
    return expected_hit_share(view.sampler, held, samples, view.accesses, view.batch_size)


def _believed(view: View, io: str) -> View:
    """Return the view with what is believed in the place of claims."""
    if io == "claimed":
        return view
    columns, known = view.fleet.arrays(), view.fleet.known
    for name in IO_COLUMNS:
        claimed = columns[name][known]
        free = np.inf if name.endswith("bytes_per_s") else 0.0
        alike = quantile(claimed[~np.isnan(claimed)], 0.5, np.nan)
        columns[name] = np.broadcast_to(free if io == "free" else alike, known.shape)
    return replace(view, fleet=Fleet.from_arrays(columns))
