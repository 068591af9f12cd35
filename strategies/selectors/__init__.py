"""The selectors, by name."""

from strategies.selector import Selector
from strategies.selectors.fast_share import FastShare
from strategies.selectors.fedcase import FedCaSe
from strategies.selectors.io_aware import IOAware
from strategies.selectors.oort import Oort
from strategies.selectors.power_of_choice import PowerOfChoice
from strategies.selectors.refl import REFL
from strategies.selectors.tifl import TiFL
from strategies.selectors.uniform import Uniform

SELECTORS: dict[str, type[Selector]] = {
    "uniform": Uniform,
    "power_of_choice": PowerOfChoice,
    "oort": Oort,
    "tifl": TiFL,
    "refl": REFL,
    "fedcase": FedCaSe,
    "io_aware": IOAware,
    "fast_share": FastShare,
}

__all__ = [
    "REFL",
    "SELECTORS",
    "FastShare",
    "FedCaSe",
    "IOAware",
    "Oort",
    "PowerOfChoice",
    "TiFL",
    "Uniform",
]
