"""The two Flower apps of fedio, put together; every engine runs these unchanged."""

from clients.central import Central
from clients.client_app import app as client_app
from experiments.logs import quiet
from strategies.server_app import build

# Flower's runtime starts processes of its own for them, which are to log as all others do.
quiet()

server_app = build(Central)

__all__ = ["client_app", "server_app"]
