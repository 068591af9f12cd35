"""Open LMDB files: one environment per file and process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from storage.errors import NotAllowed
from storage.filesystem import prepare_folder
from storage.forks import Forks
from storage.lmdb_environment import Environment

__all__ = ["Environment", "acquire", "release", "retain"]

_lock = threading.RLock()
# Global, because LMDB allows one handle per file and process.
_environments: dict[str, Environment] = {}
_forks = Forks(_environments, _lock)


def acquire(
    path: str | os.PathLike[str],
    map_bytes: int,
    page_bytes: int,
    *,
    read_only: bool = False,
) -> tuple[Environment, str]:
    """Open the environment of a folder, if it is not open yet.

    Args:
        path: the folder.
        map_bytes: how large the file may become.
        page_bytes: the size of its pages.
        read_only: nothing will be written; the folder may be one that cannot be.

    Returns:
        The environment, and why it was thrown away and recreated; "": it was not.

    Raises:
        NotAllowed: the folder cannot hold a cache, holds none to read, or is open in another way.
        CorruptCache: it is damaged, and `read_only` asks to leave it alone.
    """
    folder = Path(path)
    if read_only and not folder.exists():
        raise NotAllowed(f"there is no cache in {folder}")
    prepare_folder(folder)
    key = os.path.realpath(folder)
    with _lock:
        environment = _environments.get(key)
        if environment is None:
            environment = Environment(Path(key), map_bytes, page_bytes, read_only=read_only)
            _environments[key] = environment
        elif (environment.map_bytes, environment.page_bytes) != (map_bytes, page_bytes):
            raise NotAllowed(f"the cache in {folder} is open with another size: close it first")
        elif environment.read_only != read_only:
            how = "read-only" if environment.read_only else "for writing"
            raise NotAllowed(f"the cache in {folder} is open {how}: close it first")
        environment.references += 1
    try:
        with environment.lock:
            return environment, environment.open_or_recreate()
    except BaseException:
        release(environment)
        raise


def retain(environment: Environment) -> None:
    """Count one more handle on an environment that is open."""
    with _lock:
        environment.references += 1


def release(environment: Environment) -> None:
    """Count one handle less, and close the file with the last one."""
    with environment.lock, _lock:
        environment.references -= 1
        if environment.references == 0:
            environment.close()
            del _environments[str(environment.path)]
