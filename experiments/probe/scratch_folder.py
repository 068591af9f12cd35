"""A folder of one's own for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from experiments.interrupts import held_back
from fedio.errors import InputError

PREFIX = "fedio-probe-"


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Lend a new folder under `parent`, which is removed whatever happens, SIGKILL apart.

    Raises:
        InputError: `parent` is no folder, or cannot be written to.
    """
    with ExitStack() as stack:
        with held_back():
            try:
                folder = Path(mkdtemp(prefix=PREFIX, dir=parent)).absolute()
            except OSError as error:
                raise InputError(
                    f"cannot write to {parent}: {error.strerror}; name a folder that is there and "
                    "can be written to"
                ) from error
            stack.callback(_remove, folder)
        yield folder


def _remove(folder: Path) -> None:
    with held_back():
        rmtree(folder)
