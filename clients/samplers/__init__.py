"""Samplers: which samples a participation trains on, in which order."""

from clients.samplers.effective_samples import effective_samples
from clients.samplers.fedbalancer import FedBalancer
from clients.samplers.pads import Pads
from clients.samplers.sampler import Sampler
from clients.samplers.unbiased import Unbiased
from clients.samplers.uniform import Uniform

SAMPLERS: dict[str, type[Sampler]] = {
    "uniform": Uniform,
    "pads": Pads,
    "fedbalancer": FedBalancer,
    "unbiased": Unbiased,
}

__all__ = [
    "SAMPLERS",
    "FedBalancer",
    "Pads",
    "Sampler",
    "Unbiased",
    "Uniform",
    "effective_samples",
]
