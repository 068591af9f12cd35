"""Traces come back from files as they were, and nothing else ever does."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage
from storage import array_zip
from storage.errors import TraceError
from storage.synthetic import SYNTHETIC
from storage.trace import Stream, Trace
from storage.trace_file import read_trace, write_trace
from tests.storage.traces import assert_same, traces

# The examples of a test may share its folder.
FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

DOCUMENTATION = Path(storage.__file__).parents[1] / "docs" / "traces.md"

Arrays = dict[str, np.ndarray]


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.fixture
def trace() -> Trace:
    """Two clients, three participations, batches of two."""
    one = Stream(
        client=4,
        size_bytes=whole(300, 70_000, 5),
        requests=whole(2, 0, 1, 1, 0),
        batch_starts=whole(0, 2, 3),
        starts=whole(0, 3),
        rounds=whole(2, 9),
        losses=np.array([0.5, np.nan, 2, np.inf, 4], np.float32),
        served=whole(2, 0, 2, 1, 0),
        hits=whole(1, 2),
        depth=whole(4, 300),
        budget_bytes=1000,
    )
    other = replace(
        one,
        client=7,
        requests=whole(1),
        batch_starts=whole(0),
        starts=whole(0),
        rounds=whole(3),
        losses=np.ones(1, np.float32),
        served=whole(),
        hits=whole(0),
        depth=whole(),
    )
    return Trace("arm, seed 0", (one, other), '{"name":"lru","args":{}}', "sampler x may order")


@FILES
@given(trace=traces())
def test_a_trace_comes_back_as_it_was(tmp_path: Path, trace: Trace) -> None:
    path, again = tmp_path / "a.npz", tmp_path / "b.npz"
    write_trace(path, trace)
    back = read_trace(path)
    assert_same(back, trace)
    write_trace(again, back)
    assert again.read_bytes() == path.read_bytes()
    assert sorted(tmp_path.iterdir()) == [path, again]
    with zipfile.ZipFile(path) as file:
        assert {member.date_time for member in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_numpy_reads_the_documented_arrays_in_their_smallest_types(
    tmp_path: Path, trace: Trace
) -> None:
    write_trace(tmp_path / "t.npz", trace)
    with np.load(tmp_path / "t.npz", allow_pickle=False) as file:
        arrays = {name: (array.dtype.str, array.tolist()) for name, array in file.items()}
    header = json.loads(bytes(arrays.pop("header")[1]))
    assert header == {
        "format": "fedio trace",
        "version": 2,
        "name": "arm, seed 0",
        "policy": '{"name":"lru","args":{}}',
        "depends": "sampler x may order",
    }
    losses = arrays.pop("losses")
    np.testing.assert_equal(losses, ("<f4", [0.5, np.nan, 2, np.inf, 4, 1]))
    assert arrays == {
        "clients": ("|u1", [4, 7]),
        "budget_bytes": ("<u2", [1000, 1000]),
        "stream_samples": ("|u1", [3, 3]),
        "stream_requests": ("|u1", [5, 1]),
        "participation_requests": ("|u1", [3, 2, 1]),
        "batch_requests": ("|u1", [2, 1, 2, 1]),
        "rounds": ("|u1", [2, 9, 3]),
        "hits": ("|u1", [1, 2, 0]),
        "depth": ("<u2", [4, 300, 1]),
        "size_bytes": ("<u4", [300, 70_000, 5] * 2),
        "requests": ("|u1", [2, 0, 1, 1, 0, 1]),
        "served": ("|u1", [2, 0, 2, 1, 0, 1]),
    }


def test_the_examples_in_the_documentation_run(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(Path("trace.npz"), trace)
    text = DOCUMENTATION.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)  # noqa: S102 - ours
    assert names["hit_ratio"] == 3 / 6
    np.testing.assert_equal(names["orders"], {4: [2, 0, 1, 1, 0], 7: [1]})
    assert names["trace"].streams[0].size_bytes.max() > 3_000_000
    (rows,) = re.findall(r"```\n(sample,.*?)```", text, re.DOTALL)
    (stream,) = csv_trace(tmp_path, rows).streams
    assert stream.requests.tolist() == [1, 0, 1]
    arrays = re.findall(r"^\| `(\w+)` \| (?:uint8|unsigned|float32)", text, re.MULTILINE)
    patterns = re.findall(r"^\| `(\w+)` \| .* \| `\w+=", text, re.MULTILINE)
    assert set(patterns) == SYNTHETIC.keys()
    assert len(read_trace(Path("access.csv")).streams[0].requests) == 5
    with np.load("trace.npz") as file:
        assert arrays == file.files


def test_a_file_that_numpy_wrote_is_read(tmp_path: Path, trace: Trace) -> None:
    write_trace(tmp_path / "t.npz", trace)
    with np.load(tmp_path / "t.npz") as file:
        arrays = dict(file)
    kept = {"header": arrays.pop("header"), "losses": arrays.pop("losses")}
    wide = {name: array.astype(np.uint64) for name, array in arrays.items()}
    np.savez(tmp_path / "other.npz", **wide, **kept, notes=np.array("own"))
    assert_same(read_trace(tmp_path / "other.npz"), trace)


def test_a_file_of_version_1_reads_as_one_in_which_nothing_was_read_ahead(
    tmp_path: Path, trace: Trace
) -> None:
    write_trace(tmp_path / "t.npz", trace)
    with np.load(tmp_path / "t.npz") as file:
        arrays = say(version=1)(dict(file))
    del arrays["depth"]
    np.savez(tmp_path / "old.npz", **arrays)
    one, other = read_trace(tmp_path / "old.npz").streams
    assert (one.depth.tolist(), other.depth.tolist()) == ([1, 1], [1])
    assert one.requests.tolist() == trace.streams[0].requests.tolist()


def edit(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: change(arrays[name])}


def say(**values: object) -> Callable[[Arrays], Arrays]:
    def change(array: np.ndarray) -> np.ndarray:
        text = json.dumps(json.loads(array.tobytes()) | values)
        return np.frombuffer(text.encode(), np.uint8)

    return edit("header", change)


def put(name: str, at: int, value: int) -> Callable[[Arrays], Arrays]:
    def change(array: np.ndarray) -> np.ndarray:
        changed = array.astype(np.uint64)
        changed[at] = value
        return changed

    return edit(name, change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: {}, "it has no array header"),
        (lambda a: {k: v for k, v in a.items() if k != "hits"}, "it has no array hits"),
        (edit("header", lambda _: np.frombuffer(b"[1]", np.uint8)), "header does not say"),
        (edit("header", lambda _: np.frombuffer(b"{", np.uint8)), "Expecting property name"),
        (edit("header", lambda _: np.frombuffer(b"\xff", np.uint8)), "can't decode"),
        (edit("header", lambda _: np.frombuffer(b"[" * 10**5, np.uint8)), "recursion"),
        (say(format="other"), "header does not say 'fedio trace'"),
        (say(version=3), "it has version 3; this reads 1, 2"),
        (say(version=[2]), r"it has version \[2\]"),
        (say(version=None), "it has version None"),
        (say(depends=None), "does not hold the texts"),
        (edit("requests", lambda a: a.astype(np.int64)), "requests is int64, not unsigned"),
        (edit("size_bytes", lambda a: a * np.nan), "size_bytes is float64, not unsigned"),
        (edit("losses", lambda a: a.astype(np.float64)), "losses is float64, not float32"),
        (edit("header", lambda a: a.astype(np.uint16)), "header is uint16, not uint8"),
        (edit("requests", lambda a: a[None]), "requests is no array of one dimension"),
        (edit("requests", lambda a: a.astype(">u4")), "requests is no array of one dimension"),
        (edit("requests", lambda _: np.array(["0"])), "requests is no array of one dimension"),
        (put("size_bytes", 1, 2**63), "size_bytes holds numbers that are too large"),
        (put("size_bytes", 1, 0), "client 4: a sample has a size below 1 byte"),
        (put("requests", 5, 3), r"client 7: requests name samples outside 0\.\.2"),
        (put("served", 0, 3), r"client 4: served name samples outside 0\.\.2"),
        (put("hits", 1, 3), "client 4: a participation has more hits than requests"),
        (put("rounds", 1, 1), "client 4: rounds fall"),
        (put("clients", 1, 4), "a client has more than one stream"),
        (put("clients", 1, 2**63), "clients holds numbers that are too large"),
        (put("stream_samples", 0, 4), "stream_samples do not add up to the 6 size_bytes"),
        (put("stream_requests", 0, 4), "stream_requests do not add up to the 6 requests"),
        (put("batch_requests", 0, 2**63 - 1), "batch_requests do not add up"),
        (put("batch_requests", 0, 2**63), "batch_requests holds numbers that are too large"),
        (
            edit("batch_requests", lambda _: np.array([2**63 - 1, 2**63 - 1, 4, 4], np.uint64)),
            "batch_requests do not add up",  # they would, in 64 bits
        ),
        (edit("batch_requests", lambda _: np.uint8([2, 1, 0, 2, 1])), "do not ascend"),
        (edit("batch_requests", lambda _: np.uint8([2, 1, 3])), "1 starts for|batch_starts for 1"),
        (edit("batch_requests", lambda _: np.uint8([2, 2, 1, 1])), "starts within a batch"),
        (edit("participation_requests", lambda _: np.uint8([3, 0, 3])), "starts do not ascend"),
        (edit("participation_requests", lambda _: np.uint8([2, 4, 0])), "0 starts for 1|starts"),
        (edit("stream_requests", lambda _: np.uint8([6, 0])), "client 4: rounds fall"),
        (edit("rounds", lambda a: a[:2]), "2 rounds do not go with 3 participation_requests"),
        (edit("hits", lambda a: a[:2]), "2 hits do not go with 3"),
        (lambda a: {k: v for k, v in a.items() if k != "depth"}, "it has no array depth"),
        (put("depth", 1, 0), "client 4: a participation has a depth below 1"),
        (edit("depth", lambda a: a[:2]), "2 depth do not go with 3 participation_requests"),
        (edit("depth", lambda a: a[:0]), "0 depth do not go with 3 participation_requests"),
        (edit("losses", lambda a: a[:2]), "2 losses do not go with 6 requests"),
        (edit("served", lambda a: a[:2]), "2 served do not go with 6 requests"),
        (edit("budget_bytes", lambda a: a[:0]), "0 budget_bytes do not go with 2 clients"),
        (edit("clients", lambda a: a[:1]), "2 budget_bytes do not go with 1 clients"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, trace: Trace, change: Callable[[Arrays], Arrays], said: str
) -> None:
    path = tmp_path / "t.npz"
    write_trace(path, trace)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez_compressed(path, **change(arrays))
    with pytest.raises(TraceError, match=said) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path} is no trace that can be read: ")


@pytest.mark.parametrize("content", [b"", b"PK", b"sample\n1\n", b"\x93NUMPY\x01\x00" * 99])
def test_what_is_no_zip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.npz is no trace that can be read"):
        read_trace(path)


def test_objects_are_never_unpickled(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "t.npz"
    write_trace(path, trace)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"requests": np.array([Path(), None], object)})
    with pytest.raises(TraceError, match="requests is no array of one dimension"):
        read_trace(path)


def read_or_refused(path: Path) -> Trace | None:
    try:
        return read_trace(path)
    except TraceError as error:
        said = str(error)
    assert said.startswith((f"{path} is no trace", f"cannot read the trace {path}: "))
    assert "\n" not in said
    return None


@FILES
@given(data=st.data())
def test_damaged_bytes_are_refused_or_do_not_matter(
    tmp_path: Path, trace: Trace, data: st.DataObject
) -> None:
    path, again = tmp_path / "t.npz", tmp_path / "again.npz"
    write_trace(path, trace)
    good = path.read_bytes()
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) - 40, len(content)))])
    if (back := read_or_refused(path)) is not None:
        write_trace(again, back)
        assert again.read_bytes() == good


@pytest.mark.slow
def test_no_single_bit_of_many_matters_unnoticed(tmp_path: Path, trace: Trace) -> None:
    path, again = tmp_path / "t.npz", tmp_path / "again.npz"
    write_trace(path, trace)
    good = path.read_bytes()
    refused = 0
    for bit in range(0, 8 * len(good), 5):
        content = bytearray(good)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        if (back := read_or_refused(path)) is None:
            refused += 1
        else:
            write_trace(again, back)
            assert again.read_bytes() == good, bit
    assert refused > len(good)


def test_a_file_that_declares_too_much_is_refused_before_it_is_loaded(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.npz"
    write_trace(path, trace)
    monkeypatch.setattr(array_zip, "LIMIT_BYTES", 200)  # the header alone fits
    monkeypatch.setattr(array_zip, "_decode", pytest.fail)
    with pytest.raises(TraceError, match="which is more than any trace has"):
        read_trace(path)


def test_a_file_cannot_lie_about_what_it_declares(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "t.npz"
    write_trace(path, trace)
    with zipfile.ZipFile(path) as file:
        members = {member.filename: file.read(member) for member in file.infolist()}
    small = members["requests.npy"]
    members["requests.npy"] = small.replace(b"(6,), }       ", b"(10000000,), }")
    assert members["requests.npy"] != small
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(TraceError, match="requests is not as long as it says"):
        read_trace(path)


def test_only_plain_compression_is_read(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "t.npz"
    write_trace(path, trace)
    with zipfile.ZipFile(path) as file:
        members = {member.filename: file.read(member) for member in file.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(TraceError, match="header is compressed in an unknown way"):
        read_trace(path)


def test_a_file_that_declares_what_is_not_there_ends_early(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "t.npz"
    write_trace(path, trace)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays)  # not compressed, and losses are last
    before, _, after = path.read_bytes().rpartition(b"(6,), }       ")
    content = before + b"(10000000,), }" + after
    at = content.rindex(b"losses.npy") - 46  # its entry in the directory, which ends with the name
    sizes = struct.pack("<II", *[128 + 4 * 10**7] * 2)
    path.write_bytes(content[: at + 20] + sizes + content[at + 28 :])
    with pytest.raises(TraceError, match="it ends early"):
        read_trace(path)


def test_where_nothing_can_be_read_or_written_the_file_is_named(
    tmp_path: Path, trace: Trace
) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*none\.npz: No such file"):
        read_trace(tmp_path / "none.npz")
    with pytest.raises(TraceError, match=r"cannot read .*: Is a directory"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match=r"cannot write .*t\.npz: No such file"):
        write_trace(tmp_path / "none" / "t.npz", trace)
    with pytest.raises(TraceError, match=r"cannot write .*: Is a directory"):
        write_trace(tmp_path, trace)
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.npz"
    write_trace(path, trace)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(TraceError, match="No space left"):
        write_trace(path, replace(trace, name="other"))
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [before]


def csv_trace(path: Path, text: str | bytes) -> Trace:
    file = path / "own.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(file)


def test_a_csv_file_of_samples_alone(tmp_path: Path) -> None:
    trace = csv_trace(tmp_path, "sample\n70\n5\n5\n\n9\n")
    stream = Stream(
        client=0,
        size_bytes=whole(1, 1, 1),
        requests=whole(2, 0, 0, 1),
        batch_starts=whole(0, 1, 2, 3),
        starts=whole(0),
        rounds=whole(1),
    )
    assert_same(trace, Trace("own", (stream,)))


def test_a_csv_file_with_everything(tmp_path: Path) -> None:
    trace = csv_trace(
        tmp_path,
        "\ufeffclient, sample, batch, size_bytes, participation\r\n"
        "3, 8, 0, 20, 1\r\n"
        "1, 8, 4, 50, 6\r\n"  # another client's sample has its own size
        "3, 2, 0, 10, 1\r\n"
        "3, 8, 1, 20, 1\r\n"
        "3, 8, 0, 20, 2\r\n"
        "3, 8, 0, 20, 5\r\n",
    )
    three = Stream(
        client=3,
        size_bytes=whole(10, 20),
        requests=whole(1, 0, 1, 1, 1),
        batch_starts=whole(0, 2, 3, 4),
        starts=whole(0, 3, 4),
        rounds=whole(1, 2, 5),
    )
    one = Stream(1, whole(50), whole(0), whole(0), whole(0), whole(6))
    assert_same(trace, Trace("own", (one, three)))


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**18 - 1)), min_size=1))
@FILES
def test_csv_samples_are_numbered_by_their_own_numbers(
    tmp_path: Path, rows: list[tuple[int, int]]
) -> None:
    text = "".join(f"{client},{sample}\n" for client, sample in rows)
    trace = csv_trace(tmp_path, "client,sample\n" + text)
    assert [stream.client for stream in trace.streams] == sorted({client for client, _ in rows})
    for stream in trace.streams:
        asked = [sample for client, sample in rows if client == stream.client]
        numbers = sorted(set(asked))
        assert [numbers[i] for i in stream.requests] == asked


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: needs a header with the column sample"),
        ("size_bytes\n1\n", "line 1: needs a header"),
        ("sample,weight\n1,2\n", "line 1: needs a header.*got 'sample,weight'"),
        ("sample,sample\n1,2\n", "line 1: needs a header"),
        ("1\n2\n", "line 1: needs a header.*got '1'"),
        ("sample\n", "it has no rows"),
        ("sample\n1\n-2\n", "line 3: needs 1 whole numbers from 0 on, got '-2'"),
        ("sample\n1\n\n1.5\n", "line 4: .*got '1.5'"),
        ("sample\n1,2\n", "line 2: .*got '1,2'"),
        ("sample,size_bytes\n1\n", "line 2: needs 2 whole numbers"),
        ("sample,size_bytes\n1,\n", "line 2: needs 2 whole numbers"),
        ("sample\n" + "9" * 19 + "\n", "line 2: "),
        ("sample\n1e3\n", "line 2: "),
        (b"sample\n1\n\xff\n", "line 3: "),
        (b"sample\n1\0\n", "line 2: "),
        ("sample\n" + "9" * 200_000 + "\n", "line 2: field larger than"),
        ("sample,size_bytes\n1,0\n", "line 2: size_bytes is 0"),
        ("sample,size_bytes\n1,5\n2,6\n1,7\n", "line 4: sample 1 has 5 bytes, not 7"),
        ("sample,participation\n1,2\n1,1\n", "line 3: participations and batches"),
        ("sample,batch\n1,2\n1,1\n", "line 3: participations and batches"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        csv_trace(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'own.csv'} is no trace")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": -1}, "from 0 on"),
        ({"budget_bytes": -1}, "from 0 on"),
        ({"size_bytes": np.ones(3)}, "size_bytes is float64"),
        ({"requests": np.zeros((1, 5), np.int64)}, r"requests is int64\[1, 5\]"),
        ({"losses": whole(1, 2, 3, 4, 5)}, "losses is int64"),
        ({"losses": np.ones(4, np.float32)}, "losses has 4 entries, not 5 or none"),
        ({"batch_starts": whole(1, 3)}, "batch_starts do not ascend from 0"),
        ({"starts": whole(0, 5)}, "starts go beyond the 5 requests"),
        ({"starts": whole(0, 1)}, "a participation starts within a batch"),
        (
            {"starts": whole(), "rounds": whole(), "hits": whole(), "depth": whole()},
            "0 starts for 5 requests",
        ),
        ({"rounds": whole(1)}, "1 rounds for 2 participations"),
        ({"depth": whole(1)}, "1 depth for 2 participations"),
        ({"depth": whole(1, 0)}, "a participation has a depth below 1"),
        ({"depth": np.ones(2)}, "depth is float64"),
        ({"rounds": whole(-1, 2)}, "rounds fall, or lie below 0"),
        ({"hits": whole(-1, 0)}, "less than none"),
        ({"requests": whole(0, 0, 0, 0, -1)}, r"requests name samples outside 0\.\.2"),
    ],
)
def test_a_stream_whose_parts_do_not_fit_cannot_be_made(
    trace: Trace, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        replace(trace.streams[0], **changes)


def test_losses_are_there_for_all_streams_or_for_none(trace: Trace) -> None:
    one, other = trace.streams
    with pytest.raises(ValueError, match="only some streams have losses"):
        Trace("x", (one, replace(other, losses=np.empty(0, np.float32))))
    with pytest.raises(ValueError, match="only some streams have hits"):
        Trace("x", (one, replace(other, hits=whole())))
