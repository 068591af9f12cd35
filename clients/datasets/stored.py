"""Folders that are written once, whole or not at all, and known by their checksums afterwards.

A folder is built under another name and renamed when it is complete, by one process at a time.
Its `manifest.json` records each file's size, time of change and SHA-256: a file whose size and
time are as recorded is trusted, one whose time alone differs is read and compared.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedio.errors import InputError

LOG = logging.getLogger(__name__)
MANIFEST = "manifest.json"

Loaded = TypeVar("Loaded")


class DamagedError(Exception):
    """A stored folder is missing, incomplete or changed."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a complete folder says of itself.

    Attributes:
        facts: what its builder recorded, plain JSON values.
        digest: SHA-256 over the names and checksums of its files.
    """

    facts: dict[str, Any]
    digest: str


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Record the checksums of all files in `folder`, and `facts`, in its manifest."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        state = path.stat()
        name = path.relative_to(folder).as_posix()
        files[name] = [state.st_size, state.st_mtime_ns, sha256(path)]
    (folder / MANIFEST).write_text(json.dumps({"facts": facts, "files": files}))


def check(folder: Path) -> Sealed:
    """Return what `folder` says of itself, after comparing its files with the manifest.

    Raises:
        DamagedError: the folder is missing, or a file is missing or changed.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        facts, files = dict(manifest["facts"]), dict(manifest["files"])
        for name, (size_bytes, changed_ns, checksum) in files.items():
            state = (folder / name).stat()
            same = state.st_size == size_bytes
            if not same or (state.st_mtime_ns != changed_ns and sha256(folder / name) != checksum):
                raise DamagedError(f"{folder / name} is not the file that was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{folder}: {error}") from error
    contents = json.dumps({name: entry[2] for name, entry in files.items()}, sort_keys=True)
    return Sealed(facts, hashlib.sha256(contents.encode()).hexdigest())


def once(folder: Path, build: Callable[[Path], None], load: Callable[[Path], Loaded]) -> Loaded:
    """Return `load(folder)`; where that finds it `DamagedError` or missing, build it first.

    Of several processes one builds and the others wait for it. `build` gets an empty folder; what
    it leaves there takes the place of `folder` at once. Interrupted, nothing of it is used.

    Raises:
        InputError: the folder cannot be written.
    """
    try:
        return load(folder)
    except DamagedError as damage:
        if folder.exists():
            LOG.warning("%s; it is built again", damage)
    try:
        with _alone(folder):
            try:
                return load(folder)  # another process may have built it in the meantime
            except DamagedError:
                _replace(folder, build)
            return load(folder)
    except OSError as error:
        where = error.filename or folder
        reason = error.strerror or error
        raise InputError(
            f"cannot write {where}: {reason}; name a writable folder in data.folder"
        ) from error


def _replace(folder: Path, build: Callable[[Path], None]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    remove(partial)  # left behind by a process that was killed
    partial.mkdir()
    try:
        build(partial)
        remove(folder)
        partial.rename(folder)
    finally:
        remove(partial)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from building `folder`; the lock goes with the process that holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove(folder: Path) -> None:
    """Remove a folder and all in it; nothing happens where there is none."""
    if folder.exists():
        shutil.rmtree(folder)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def array(path: Path) -> np.ndarray:
    """Return a stored array, mapped and read-only: processes share one copy of its pages."""
    try:
        loaded: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path}: {error}") from error
    return loaded
