"""Any images in folders train/<class>/ and test/<class>/, read from where they are."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, validate_call

from clients.datasets import stored
from clients.datasets.dataset import Dataset, Images, Split
from fedio.errors import InputError
from storage.origin import FileOrigin

PARTS = ("train", "test")


@validate_call
def load(
    home: Path, path: str, size: Annotated[int, Field(ge=4, le=1024)] = 32, direct: bool = False
) -> Split:
    """Return the images under `path`, each cropped to a square and scaled to size x size.

    Under `home` only their checksum is kept, so that it is worked out once. With `direct`, files
    are read past the page cache.

    Raises:
        InputError: the folders are missing or hold no images, or the parts differ in classes.
    """
    root = Path(path).expanduser().resolve()
    found = {part: _list(root / part) for part in PARTS}
    names = found["train"][0]
    if found["test"][0] != names:
        differing = ", ".join(sorted(set(names) ^ set(found["test"][0])))
        raise InputError(
            f"{root}: train and test need the same classes; they differ in {differing}"
        )
    files = [file for part in PARTS for file in found[part][1]]
    digest = _digest(home, root, files)
    part = partial(_part, size, direct)
    return Split(part(*found["train"]), part(*found["test"]), digest)


def _list(folder: Path) -> tuple[list[str], list[Path], np.ndarray]:
    """Return the classes, and each image's file and label, in torchvision's order."""
    from torchvision.datasets import ImageFolder  # noqa: PLC0415 - slow to import

    try:
        images = ImageFolder(folder)
    except OSError as error:
        raise InputError(
            f"{error}: the data set image-folder needs images in train/<class>/ and test/<class>/"
        ) from error
    files = [Path(file) for file, _ in images.samples]
    return images.classes, files, np.asarray(images.targets, np.int64)


def _part(
    size: int, direct: bool, names: list[str], files: list[Path], labels: np.ndarray
) -> Dataset:
    origin = FileOrigin(files, direct)
    return Dataset("image-folder", len(names), labels, origin, Images((3, size, size)))


def _digest(home: Path, root: Path, files: list[Path]) -> str:
    """Return a hash over names (the class is one of them) and contents, kept from the last time."""
    listing = hashlib.sha256(str(root).encode())
    for file in files:
        state = file.stat()
        entry = f"{file.relative_to(root)} {state.st_size} {state.st_mtime_ns}\n"
        listing.update(entry.encode())
    folder = home / "datasets" / f"image-folder-{listing.hexdigest()[:16]}"
    return stored.once(folder, partial(_hash_all, root, files), _content)


def _hash_all(root: Path, files: list[Path], folder: Path) -> None:
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(root)} {stored.sha256(file)}\n".encode())
    stored.seal(folder, {"content": content.hexdigest()})


def _content(folder: Path) -> str:
    return str(stored.check(folder).facts["content"])
