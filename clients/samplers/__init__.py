"""Samplers: which samples a participation trains on, in which order."""

from clients.samplers.sampler import Sampler
from clients.samplers.uniform import Uniform

SAMPLERS: dict[str, type[Sampler]] = {"uniform": Uniform}

__all__ = ["SAMPLERS", "Sampler", "Uniform"]
