from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torchvision
from PIL import Image, ImageOps

from clients.datasets import (
    DATASETS,
    Dataset,
    Images,
    Pixels,
    Split,
    cifar10,
    fashion_mnist,
    image_folder,
)
from fedio.errors import InputError
from storage.origin import ArrayOrigin


def test_pixels_are_gathered_from_anywhere_in_the_buffer() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (3, 2, 4, 5), dtype=np.uint8)
    buffer = np.zeros(500, np.uint8)
    starts = np.array([300, 7, 111])
    for start, image in zip(starts, images, strict=True):
        buffer[start : start + 40] = image.ravel()
    decoder = Pixels((2, 4, 5))
    found = np.zeros_like(images)
    decoder.decode(buffer, starts, np.full(3, 40), found)
    np.testing.assert_array_equal(found, images)
    decoder.decode(buffer, np.array([40, 0, 80]), np.full(3, 40), found)  # as rows of a table
    np.testing.assert_array_equal(found.reshape(3, 40), buffer[:120].reshape(3, 40)[[1, 0, 2]])
    nothing = np.empty(0, np.int64)
    decoder.decode(buffer, nothing, nothing, found[:0])
    with pytest.raises(ValueError, match="40 bytes"):
        decoder.decode(buffer, starts, np.array([40, 39, 40]), found)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_cropped_and_scaled_like_pillow_does(tmp_path: Path, channels: int) -> None:
    generator = np.random.default_rng(0)
    file = tmp_path / "a.png"
    Image.fromarray(generator.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(file)
    payload = np.frombuffer(file.read_bytes(), np.uint8)
    buffer = np.concatenate([np.zeros(9, np.uint8), payload])
    got = np.empty((1, channels, 16, 16), np.uint8)
    Images((channels, 16, 16)).decode(buffer, np.array([9]), np.array([len(payload)]), got)
    with Image.open(file) as image:
        mode = image.convert("L" if channels == 1 else "RGB")
    wanted = np.asarray(ImageOps.fit(mode, (16, 16), Image.Resampling.BILINEAR))
    wanted = wanted.reshape(16, 16, channels).transpose(2, 0, 1)
    np.testing.assert_array_equal(got[0], wanted)


@pytest.mark.parametrize("keep_bytes", [0, 1, 100, 500])
def test_a_broken_image_is_the_users_error(tmp_path: Path, keep_bytes: int) -> None:
    file = tmp_path / "a.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    payload = np.frombuffer(file.read_bytes()[:keep_bytes], np.uint8)
    with pytest.raises(InputError, match="payload 0 of 1 is no image"):
        Images((3, 8, 8)).decode(
            payload, np.array([0]), np.array([keep_bytes]), np.empty((1, 3, 8, 8), np.uint8)
        )


def test_a_data_set_checks_what_it_is_made_of() -> None:
    origin = ArrayOrigin(np.zeros((3, 1, 2, 2), np.uint8))
    with pytest.raises(ValueError, match="2 labels for 3 samples"):
        Dataset("x", 2, np.zeros(2, np.int64), origin, Pixels((1, 2, 2)))
    labels = np.zeros(3, np.int64)
    two, three = (Dataset("x", n, labels, origin, Pixels((1, 2, 2))) for n in (2, 3))
    with pytest.raises(ValueError, match="differ"):
        Split(two, three, "")


def write_idx(folder: Path, name: str, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(gzip.compress(header + values.tobytes()))


@pytest.fixture
def clothes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four small files that count as the real ones; nothing else has any."""
    folder = tmp_path / "source"
    generator = np.random.default_rng(0)
    for part, samples in (("train", 20), ("t10k", 10)):
        pixels = generator.integers(0, 256, (samples, 28, 28), dtype=np.uint8)
        write_idx(folder, f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(folder, f"{part}-labels-idx1-ubyte.gz", np.arange(samples, dtype=np.uint8) % 10)
    content = {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}
    table = {name: ("", hashlib.sha256(data).hexdigest()) for name, data in content.items()}
    monkeypatch.setattr(fashion_mnist, "CHECKSUMS", table)

    def offline(*_: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(fashion_mnist, "_download", offline)
    monkeypatch.setattr(fashion_mnist, "_apt_download", offline)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("where", ["home/fashion-mnist", "home/FashionMNIST/raw", "data", "home"])
def test_fashion_mnist_is_found_and_unpacked_once(
    tmp_path: Path, clothes: Path, where: str
) -> None:
    (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
    clothes.rename(tmp_path / where)
    home = tmp_path / "home"
    split = DATASETS["fashion-mnist"](home)
    assert (len(split.train), len(split.test), split.train.classes) == (20, 10, 10)
    assert split.train.shape == (1, 28, 28)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    samples = np.array([4, 19, 0])
    np.testing.assert_array_equal(split.train.images(samples)[:, 0], pixels[samples])
    np.testing.assert_array_equal(split.train.labels, np.arange(20) % 10)
    assert isinstance(split.train.labels, np.memmap)
    for file in (tmp_path / where).glob("*.gz"):
        file.unlink()
    assert DATASETS["fashion-mnist"](home).digest == split.digest  # no source is left


def test_fashion_mnist_from_debians_package_without_root(
    tmp_path: Path, clothes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(clothes, tree / "usr/share/datasets/fashion-mnist")
    (tree / "DEBIAN").mkdir()
    control = "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
    (tree / "DEBIAN/control").write_text(control)

    def packed(folder: Path) -> None:
        command = ["dpkg-deb", "--build", str(tree), str(folder / "package.deb")]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603

    monkeypatch.setattr(fashion_mnist, "_apt_download", packed)
    split = fashion_mnist.load(tmp_path / "home")
    assert len(split.train) == 20
    names = sorted(path.name for path in (tmp_path / "home/datasets/fashion-mnist").iterdir())
    parts = [f"{part}-{what}.npy" for part in ("test", "train") for what in ("labels", "pixels")]
    assert names == ["manifest.json", *parts]  # what was unpacked on the way is gone


def test_apt_gets_package_lists_of_its_own_where_the_systems_lack_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def call(_: Path, *command: str) -> None:
        calls.append(command)
        if len(calls) == 1:
            raise subprocess.CalledProcessError(100, command)

    monkeypatch.setattr(fashion_mnist, "_call", call)
    fashion_mnist._apt_download(tmp_path)
    assert [command[0] for command in calls] == ["apt-get"] * 3
    assert [command[-1] for command in calls] == [
        fashion_mnist.PACKAGE,
        "update",
        fashion_mnist.PACKAGE,
    ]
    assert not any(str(tmp_path / "lists") in part for part in calls[0])
    assert any(str(tmp_path / "lists") in part for part in calls[2])


@pytest.mark.parametrize("broken", ["other", "not gzip", "truncated", "missing"])
def test_fashion_mnist_that_is_nowhere_is_one_line(
    tmp_path: Path, clothes: Path, broken: str
) -> None:
    """MNIST's digits have files of the same names: they are not taken for it."""
    folder = tmp_path / "data"
    clothes.rename(folder)
    file = folder / "t10k-labels-idx1-ubyte.gz"
    if broken == "other":
        write_idx(folder, file.name, np.zeros(10, np.uint8))
    elif broken == "missing":
        file.unlink()
    else:
        file.write_bytes(b"no" if broken == "not gzip" else file.read_bytes()[:-9])
    with pytest.raises(InputError) as error:
        fashion_mnist.load(tmp_path / "home")
    message = str(error.value)
    assert "\n" not in message
    for part in ("no network", "Debian", str(tmp_path / "home" / "fashion-mnist"), "photos"):
        assert part in message
    left = [path.name for path in (tmp_path / "home" / "datasets").iterdir()]
    assert left == ["fashion-mnist.lock"]
    assert file.exists() == (broken != "missing")


def test_cifar10_without_network_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    with pytest.raises(InputError, match=r"no network.*cifar-10-batches-py into .*home"):
        cifar10.load(tmp_path / "home")


def test_cifar10_damaged_in_a_usual_folder_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    batches = tmp_path / "data" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    (batches / "data_batch_1").write_bytes(b"not what it should be")
    with pytest.raises(InputError, match="no network"):
        cifar10.load(tmp_path / "home")


def test_cifar10_becomes_channels_first_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Downloaded:
        base_folder = "cifar-10-batches-py"

        def __init__(self, root: Path, train: bool, download: bool = False) -> None:
            assert (Path(root) / self.base_folder).exists() or download or not train
            generator = np.random.default_rng(int(train))
            self.data = generator.integers(0, 256, (6 if train else 4, 32, 32, 3), dtype=np.uint8)
            self.targets = [i % 10 for i in range(len(self.data))]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Downloaded)
    split = cifar10.load(tmp_path / "home")
    pixels = np.random.default_rng(1).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_array_equal(split.train.images(np.array([5]))[0, 2], pixels[5, :, :, 2])
    assert (split.train.shape, len(split.test)) == ((3, 32, 32), 4)
    assert split.train.labels.dtype == np.int64


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    root = tmp_path / "pictures"
    for part, samples in (("train", 4), ("test", 2)):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            for i in range(samples):
                pixels = generator.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)
                file = root / part / name / f"{i}.{'png' if i % 2 else 'jpg'}"
                Image.fromarray(pixels).save(file)
    return root


def test_an_image_folder_is_read_where_it_is(tmp_path: Path, pictures: Path) -> None:
    split = image_folder.load(tmp_path / "home", path=str(pictures), size=16)
    np.testing.assert_array_equal(split.train.labels, [0, 0, 0, 0, 1, 1, 1, 1])
    files = sorted((pictures / "train").rglob("*.*"))
    np.testing.assert_array_equal(
        split.train.origin.size_bytes, [file.stat().st_size for file in files]
    )
    images = split.train.images(np.array([5, 2]))
    assert images.shape == (2, 3, 16, 16)
    with Image.open(files[5]) as image:
        wanted = ImageOps.fit(image.convert("RGB"), (16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(images[0], np.asarray(wanted).transpose(2, 0, 1))


def test_an_image_folders_digest_is_of_its_content(tmp_path: Path, pictures: Path) -> None:
    home = tmp_path / "home"
    digest = image_folder.load(home, path=str(pictures)).digest
    moved = pictures.rename(tmp_path / "elsewhere")
    assert image_folder.load(home, path=str(moved)).digest == digest
    file = moved / "train/dog/2.jpg"
    file.write_bytes(file.read_bytes() + b"\0")
    changed = image_folder.load(home, path=str(moved)).digest
    assert changed != digest
    file.rename(moved / "train/cat/9.jpg")
    assert image_folder.load(home, path=str(moved)).digest not in {changed, digest}


def test_image_folders_that_do_not_fit_are_the_users_error(tmp_path: Path, pictures: Path) -> None:
    home = tmp_path / "home"
    (pictures / "test/dog").rename(pictures / "test/wolf")
    with pytest.raises(InputError, match="dog, wolf"):
        image_folder.load(home, path=str(pictures))
    shutil.rmtree(pictures / "test/wolf")
    (pictures / "test/dog").mkdir()
    with pytest.raises(InputError, match="train/<class>/ and test/<class>/"):
        image_folder.load(home, path=str(pictures))
    with pytest.raises(InputError, match="train/<class>/ and test/<class>/"):
        image_folder.load(home, path=str(tmp_path / "nowhere"))
