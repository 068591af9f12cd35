"""Measuring this machine: storage, decoding and training, as a device profile holds them.

counts = {16_384: 100, 1_048_576: 20}
measure_writes(folder, counts, rng)
line = fit(measure_reads(folder, counts, rng))
line.latency_s, line.bytes_per_s, line.residual
"""

from __future__ import annotations

from experiments.probe.cached import measure_cache
from experiments.probe.decoding import measure_decoding
from experiments.probe.files import measure_reads, measure_writes
from experiments.probe.fitting import Fit, fit
from experiments.probe.inference import measure_inference
from experiments.probe.points import Points
from experiments.probe.profile import to_toml
from experiments.probe.run import Probed, probe
from experiments.probe.scratch_folder import scratch
from experiments.probe.slowdown import measure_slowdown
from experiments.probe.table import print_probe
from experiments.probe.training import measure_training, trainer_of
from experiments.probe.verification import Amount, verify
from experiments.probe.verification_table import print_verification
from experiments.probe.wanted import Wanted

__all__ = [
    "Amount",
    "Fit",
    "Points",
    "Probed",
    "Wanted",
    "fit",
    "measure_cache",
    "measure_decoding",
    "measure_inference",
    "measure_reads",
    "measure_slowdown",
    "measure_training",
    "measure_writes",
    "print_probe",
    "print_verification",
    "probe",
    "scratch",
    "to_toml",
    "trainer_of",
    "verify",
]
