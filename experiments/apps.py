"""The two Flower apps of fedio, put together; every engine runs these unchanged."""

from clients.central import Central
from clients.client_app import app as client_app
from strategies.server_app import build

server_app = build(Central)

__all__ = ["client_app", "server_app"]
