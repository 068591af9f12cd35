"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 grey images of clothes, 28 x 28.

Its four files are taken from the usual folders, else downloaded through torchvision, else taken
from Debian's package `dataset-fashion-mnist`, which needs no root.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import subprocess
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from clients.datasets import arrays
from clients.datasets.dataset import Split
from fedio.errors import InputError

LOG = logging.getLogger(__name__)

PACKAGE = "dataset-fashion-mnist"

CHECKSUMS = {  # MD5 of the archive that torchvision downloads, SHA-256 of the unpacked file
    "train-images-idx3-ubyte.gz": (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte.gz": (
        "25c81989df183df01b3e8a0aad5dffbe",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "bef4ecab320f06d8554ea6380940ec79",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "bb300cfdad3c16e7a12a480ee83cd310",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}


def load(home: Path) -> Split:
    """Return Fashion-MNIST; its files are fetched and unpacked under `home` the first time.

    Raises:
        InputError: the files are nowhere to be found.
    """
    folder = home / "datasets" / "fashion-mnist"
    return arrays.load(folder, "fashion-mnist", 10, partial(_fetch, home))


def _fetch(home: Path, work: Path) -> dict[str, arrays.Part]:
    """Return the parts from the first source that has them."""
    sources: list[tuple[str, Callable[[], Path]]] = [
        (str(folder), partial(Path, folder))
        for folder in usual_folders(home)
        if (folder / "train-images-idx3-ubyte.gz").exists()
    ]
    sources += [
        ("torchvision", partial(_download, work / "torchvision")),
        (f"Debian's {PACKAGE}", partial(_from_debian, work / "debian")),
    ]
    reasons = []
    for name, source in sources:
        try:
            folder = source()
            return {"train": _read(folder, "train"), "test": _read(folder, "t10k")}
        except (OSError, EOFError, ValueError, RuntimeError, zlib.error) as error:
            reasons.append(f"{name}: {_last_line(error)}")
            LOG.info("no Fashion-MNIST from %s: %s", name, error)
    raise InputError(
        f"Fashion-MNIST cannot be fetched ({'; '.join(reasons)}): "
        f"put its four *-ubyte.gz files into {home / 'fashion-mnist'}, or use the data set photos"
    )


def usual_folders(home: Path) -> list[Path]:
    """Return where the files may lie already, in the order in which they are looked for."""
    inside = ("", "fashion-mnist", "FashionMNIST/raw")
    folders = [root / name for root in (home, Path("data")) for name in inside]
    return [*folders, Path("/usr/share/datasets/fashion-mnist")]


def _download(folder: Path) -> Path:
    from torchvision.datasets import FashionMNIST  # noqa: PLC0415 - slow to import

    FashionMNIST(folder, download=True)
    return folder / "FashionMNIST" / "raw"


def _from_debian(folder: Path) -> Path:
    """Unpack the files of Debian's package; nothing is installed."""
    folder = folder.absolute()  # apt-get takes a relative path for one below its own folders
    folder.mkdir()
    try:
        _apt_download(folder)
        package = next(folder.glob("*.deb"), None)
        if package is None:
            raise RuntimeError("apt-get downloaded no package")
        _call(folder, "dpkg-deb", "-x", package.name, "unpacked")
    except subprocess.CalledProcessError as error:
        raise RuntimeError(error.stderr) from error
    return folder / "unpacked/usr/share/datasets/fashion-mnist"


def _apt_download(folder: Path) -> None:
    """Download the package; with package lists of our own where the system's do not have it."""
    (folder / "lists").mkdir()
    as_user = ("-q", "-o", "APT::Sandbox::User=", "-o", f"Dir::Cache={folder}")
    own_lists = (*as_user, "-o", f"Dir::State::Lists={folder / 'lists'}")
    try:
        _call(folder, "apt-get", *as_user, "download", PACKAGE)
    except subprocess.CalledProcessError:
        _call(folder, "apt-get", *own_lists, "update")
        _call(folder, "apt-get", *own_lists, "download", PACKAGE)


def _call(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S603


def _read(folder: Path, part: str) -> arrays.Part:
    pixels = _idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = _idx(folder / f"{part}-labels-idx1-ubyte.gz")
    if len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} images but {len(labels)} labels")
    return pixels[:, None], labels.astype(np.int64)


def _idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes: magic 0 0 8 d, d sizes as big-endian uint32, then the values.

    Raises:
        ValueError: it is another file than Fashion-MNIST's. (MNIST's have the same names.)
    """
    packed = path.read_bytes()
    content = gzip.decompress(packed)
    archive, unpacked = CHECKSUMS[path.name]
    if (  # Debian packs the same content anew
        hashlib.md5(packed, usedforsecurity=False).hexdigest() != archive
        and hashlib.sha256(content).hexdigest() != unpacked
    ):
        raise ValueError(f"{path.name} is not the file of Fashion-MNIST")
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
