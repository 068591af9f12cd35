from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage import ArrayOrigin, FileOrigin, Origin, OriginError


@pytest.fixture(params=["array", "memmap", "files"])
def origin_and_payloads(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Origin, list[bytes]]:
    rng = np.random.default_rng(0)
    if request.param == "files":
        payloads = [rng.bytes(int(size)) for size in (0, 1, 700, 5000, 123_456, 42)]
        paths = [tmp_path / f"{i}.bin" for i in range(len(payloads))]
        for path, content in zip(paths, payloads, strict=True):
            path.write_bytes(content)
        return FileOrigin(paths), payloads
    images = rng.integers(0, 256, (6, 3, 5, 4), dtype=np.uint8)
    payloads = [image.tobytes() for image in images]
    if request.param == "array":
        return ArrayOrigin(images), payloads
    file = tmp_path / "images.npy"
    np.save(file, images)
    return ArrayOrigin(np.load(file, mmap_mode="r")), payloads


@pytest.mark.parametrize("samples", [[], [3], [5, 0, 5, 2], list(range(6))])
def test_payloads_lie_back_to_back(
    origin_and_payloads: tuple[Origin, list[bytes]], samples: list[int]
) -> None:
    origin, payloads = origin_and_payloads
    buffer = np.full(400_000, 7, np.uint8)
    starts = origin.read(np.array(samples, np.int64), buffer, 11)
    expected = b"".join(payloads[s] for s in samples)
    assert buffer[11 : 11 + len(expected)].tobytes() == expected
    assert (buffer[:11] == 7).all()
    assert (buffer[11 + len(expected) :] == 7).all()
    lengths = [len(payloads[s]) for s in samples]
    assert starts.tolist() == [11 + sum(lengths[:i]) for i in range(len(samples))]


def test_sizes_are_the_payload_lengths(origin_and_payloads: tuple[Origin, list[bytes]]) -> None:
    origin, payloads = origin_and_payloads
    assert origin.size_bytes.tolist() == [len(p) for p in payloads]
    assert origin.size_bytes.dtype == np.int64
    assert len(origin) == len(payloads)


def test_a_subset_is_an_origin_of_its_own(
    origin_and_payloads: tuple[Origin, list[bytes]],
) -> None:
    origin, payloads = origin_and_payloads
    some = origin.subset(np.array([4, 1, 2])).subset(np.array([2, 0]))
    assert some.size_bytes.tolist() == [len(payloads[2]), len(payloads[4])]
    buffer = np.zeros(200_000, np.uint8)
    starts = some.read(np.array([1, 0]), buffer, 0)
    assert buffer[: starts[1]].tobytes() == payloads[4]
    assert buffer[starts[1] : starts[1] + len(payloads[2])].tobytes() == payloads[2]
    with pytest.raises(ValueError, match=r"0\.\.1"):
        some.read(np.array([2]), buffer, 0)


@pytest.mark.parametrize("samples", [[6], [-1]])
def test_an_unknown_sample_is_refused(
    origin_and_payloads: tuple[Origin, list[bytes]], samples: list[int]
) -> None:
    with pytest.raises(ValueError, match=r"0\.\.5"):
        origin_and_payloads[0].read(np.array(samples), np.zeros(99, np.uint8), 0)


def test_a_short_buffer_is_refused_untouched(
    origin_and_payloads: tuple[Origin, list[bytes]],
) -> None:
    origin, payloads = origin_and_payloads
    buffer = np.zeros(len(payloads[2]) + 9, np.uint8)
    with pytest.raises(ValueError, match="are needed"):
        origin.read(np.array([2]), buffer, 10)
    assert not buffer.any()


def test_an_array_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        ArrayOrigin(np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        ArrayOrigin(np.zeros((4, 6), np.uint8)[:, ::2])


def test_a_missing_or_changed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    with pytest.raises(OriginError, match=r"a\.jpg"):
        FileOrigin([path])
    path.write_bytes(b"abc")
    origin = FileOrigin([path])
    buffer = np.zeros(9, np.uint8)
    for content in (b"ab", b"abcd"):
        path.write_bytes(content)
        with pytest.raises(OriginError, match=r"a\.jpg has changed"):
            origin.read(np.array([0]), buffer, 0)
    path.unlink()
    with pytest.raises(OriginError, match=r"cannot read .*a\.jpg"):
        origin.read(np.array([0]), buffer, 0)
