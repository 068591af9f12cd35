"""Samplers: which samples a participation trains on, in which order."""

from clients.samplers.pads import Pads
from clients.samplers.sampler import Sampler
from clients.samplers.uniform import Uniform

SAMPLERS: dict[str, type[Sampler]] = {"uniform": Uniform, "pads": Pads}

__all__ = ["SAMPLERS", "Pads", "Sampler", "Uniform"]
