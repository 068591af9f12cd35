"""A program that stops the process that started it, and has it go on after some seconds.

`python standstill.py SECONDS`: a process that is stopped cannot wake itself. When it ends meanwhile
this ends too. It is run as a file and imports nothing of fedio, so that it costs next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LOOKED_EVERY_S = 0.05


def main() -> None:
    """Stop the parent and wake it, if it is still there."""
    parent, until_s = os.getppid(), time.monotonic() + float(sys.argv[1])
    os.kill(parent, signal.SIGSTOP)
    while os.getppid() == parent and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, LOOKED_EVERY_S))
    if os.getppid() == parent:
        os.kill(parent, signal.SIGCONT)


if __name__ == "__main__":
    main()
