"""What processes of the command line log: warnings of ours, errors of Flower."""

from __future__ import annotations

import logging


def quiet() -> None:
    """Set up logging in a process that fedio started; Flower reports every step at INFO."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("flwr").setLevel(logging.ERROR)
