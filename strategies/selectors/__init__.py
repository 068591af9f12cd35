"""The selectors, by name."""

from strategies.selector import Selector
from strategies.selectors.fedcase import FedCaSe
from strategies.selectors.io_aware import IOAware
from strategies.selectors.oort import Oort
from strategies.selectors.uniform import Uniform

SELECTORS: dict[str, type[Selector]] = {
    "uniform": Uniform,
    "oort": Oort,
    "io_aware": IOAware,
    "fedcase": FedCaSe,
}

__all__ = ["SELECTORS", "FedCaSe", "IOAware", "Oort", "Uniform"]
