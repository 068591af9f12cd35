"""A program that registers many nodes at a SuperLink in one process: `flwr` takes one at a time.

`python registration.py CONNECTION PUBLIC_KEY_FILE...` is `flwr supernode register` for each file.
Starting `flwr` takes almost two seconds of a core, of which registering is a hundredth part.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points


def main() -> None:
    """Register each public key; the first failure ends it with Flower's words."""
    connection, *public_keys = sys.argv[1:]
    (program,) = entry_points(group="console_scripts", name="flwr")
    flwr = program.load()
    for public_key in public_keys:
        flwr(["supernode", "register", public_key, connection], standalone_mode=False)


if __name__ == "__main__":
    main()
