"""Traces of devices in all their forms, and every way in which one can be wrong."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedio import device_trace_files
from fedio.availability import Availability
from fedio.config import Experiment
from fedio.device_traces import Capacity, read_availability, read_capacity, rows_of
from fedio.errors import InputError
from fedio.profiles import fleet_of, load_profile

# The first devices of FedCaSe's demo trace.
CAPACITY = {
    1: {"computation": 153.0, "communication": 2210},
    2: {"computation": 39.0, "communication": 18437.5},
}
CAPACITY_CSV = """# two devices
client,computation_ms,communication_kbit_s

1, 153, 2210
2, 39, 18437.5
"""

# As published entries look: an empty stay, ends with the period, one that never comes.
STAYS: dict[Any, Any] = {
    107740: {
        "duration": 1,
        "inactive": [88494, 93284],
        "finish_time": 100_000,
        "active": [88494, 93283],
        "model": "SM-G611MT",
    },
    "b": {"active": [0, 50.5, 60], "inactive": [10, 60, 100_000], "finish_time": 100_000},
    3: {"active": [7], "inactive": [7], "finish_time": 100_000},
}
STAYS_CSV = """# period_s = 100000
client,start_s,end_s
107740,88494,88494
b,0,10
107740,93283,93284
b,50.5,60
b,60,100000
3,7,7
"""

FORMS: dict[str, Callable[[Any, str], bytes]] = {
    "trace.pkl": lambda values, _: pickle.dumps(values),
    "trace": lambda values, _: pickle.dumps(values, 3),
    "old": lambda values, _: pickle.dumps(values, 0),
    "trace.json": lambda values, _: json.dumps(values, indent=1).encode(),
    "text": lambda values, _: b" " + json.dumps(values).encode(),
    "trace.csv": lambda _, text: text.encode(),
    "rows": lambda _, text: text.replace("\n", "\r\n").encode("utf-8-sig"),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a file of a name and return its path."""

    def write(content: object, name: str = "trace.csv") -> str:
        path = tmp_path / name
        if not isinstance(content, bytes):
            text = content if isinstance(content, str) else json.dumps(content)
            content = text.encode()
        path.write_bytes(content)
        return str(path)

    return write


Write = Callable[..., str]


@pytest.mark.parametrize("name", FORMS)
def test_a_capacity_trace_is_milliseconds_and_kilobits_in_every_form(
    name: str, write: Write
) -> None:
    capacity = read_capacity(write(FORMS[name](CAPACITY, CAPACITY_CSV), name))
    assert capacity.inference_ms.tolist() == [153, 39]
    assert capacity.bytes_per_s.tolist() == [276_250, 2_304_687.5]


@pytest.mark.parametrize("name", FORMS)
def test_an_availability_trace_is_stays_in_seconds_in_every_form(name: str, write: Write) -> None:
    presence = read_availability(write(FORMS[name](STAYS, STAYS_CSV), name))
    assert presence.period_s.tolist() == [100_000] * 3
    assert presence.at(93_283.5).tolist() == [True, True, False]
    assert presence.at(88_494).tolist() == [False, True, False]
    assert presence.next_s(10).tolist() == [93_283, 50.5, np.inf]
    assert presence.leaves_s(np.arange(3), 55).tolist() == [55, 100_010, 55]


def test_periods_are_each_clients_own(write: Write) -> None:
    stays = {c: {"active": [0], "inactive": [1], "finish_time": 10 * (1 + c)} for c in range(3)}
    presence = read_availability(write(stays, "x.json"))
    assert presence.next_s(2).tolist() == [10, 20, 30]


def refused(read: Callable[[str], object], file: str) -> str:
    """Return what is said of a file that cannot be taken: one line that names it."""
    with pytest.raises(InputError) as caught:
        read(file)
    message = str(caught.value)
    assert message.startswith((file, "cannot read the trace " + file))
    assert "\n" not in message
    assert len(message) < len(file) + 200
    return message.removeprefix(file)


HEADER = "client,computation_ms,communication_kbit_s\n"
BAD_CAPACITY = {
    "a bad row": (HEADER + "1,2,3\n2,3\n", ", line 3: needs 3 cells: '2,3'"),
    "one cell too many": (HEADER + "1,2,3,4", ", line 2: needs 3 cells: '1,2,3,4'"),
    "no number": (HEADER + "1,2,fast", ", line 2: communication_kbit_s is no number: 'fast'"),
    "a unit in a cell": (HEADER + "1,2 ms,3", ", line 2: computation_ms is no number: '2 ms'"),
    "no cell": (HEADER + "1,,3", ", line 2: computation_ms is no number: ''"),
    "another unit": (
        "# of mine\nclient,computation_s,communication_kbit_s\n1,2,3",
        ", line 2: the header must be " + HEADER.strip() + "; got client,computation_s,",
    ),
    "a column is missing": ("client,computation_ms\n1,2", ", line 1: the header must be client,"),
    "a column twice": (
        "client,client,computation_ms,communication_kbit_s\n1,1,2,3",
        ", line 1: the header must be client,",
    ),
    "no header": ("1,2,3\n", ", line 1: the header must be client,"),
    "a client twice": (HEADER + "7,1,2\n8,1,2\n\n7,1,2", ", line 5: client '7' is there twice"),
    "negative": (HEADER + "1,2,-3", ", line 2: communication_kbit_s must be a number above 0"),
    "zero": (HEADER + "1,0,3", ", line 2: computation_ms must be a number above 0, got 0.0"),
    "NaN": (HEADER + "1,nan,3", ", line 2: computation_ms must be a number above 0, got nan"),
    "infinite": (HEADER + "1,2,inf", ", line 2: communication_kbit_s must be a number above 0"),
    "empty": ("", ": the trace is empty"),
    "a header only": (HEADER, ": the trace is empty"),
    "no text": (b"\xff\xfe\x00", ": no trace (CSV): 'utf-8' codec can't decode"),
}


@pytest.mark.parametrize("kind", BAD_CAPACITY)
def test_what_is_wrong_in_the_csv_of_a_capacity_trace_has_its_line(kind: str, write: Write) -> None:
    content, message = BAD_CAPACITY[kind]
    assert refused(read_capacity, write(content)).startswith(message)


TOP = "# period_s = 100\nclient,start_s,end_s\n"
BAD_STAYS = {
    "no period": (
        "client,start_s,end_s\n1,2,3\n",
        ", line 1: needs a line `# period_s = ...` of 1 to 1e9 seconds, got a NoneType",
    ),
    "the period in another unit": (
        "# period_h = 24\nclient,start_s,end_s\n1,2,3\n",
        ", line 1: needs a line `# period_s = ...` of 1 to 1e9 seconds",
    ),
    "the period is no number": (
        "client,start_s,end_s\n1,2,3\n# period_s = 1 day",
        ", line 3: period_s is no number: '1 day'",
    ),
    "no period at all": ("# period_s = 0\n" + TOP[17:] + "1,2,3", ", line 1: needs a line"),
    "NaN as a period": ("# period_s = nan\n" + TOP[17:] + "1,2,3", ", line 1: needs a line"),
    "another unit": (
        "# period_s = 9\nclient,start_ms,end_ms\n1,2,3",
        ", line 2: the header must be client,start_s,end_s; got client,start_ms,end_ms",
    ),
    "a bad row": (TOP + "1,2\n", ", line 3: needs 3 cells: '1,2'"),
    "no number": (TOP + "1,2,noon\n", ", line 3: end_s is no number: 'noon'"),
    "unsorted": (
        TOP + "1,20,30\n2,5,6\n1,10,15\n",
        ", line 5: the stay of 10 to 15 s begins before the last one",
    ),
    "overlapping": (
        TOP + "1,20,30\n2,5,6\n1,25,40\n",
        ", line 5: the stay of 25 to 40 s overlaps with the last one",
    ),
    "the same row twice": (
        TOP + "1,20,30\n1,20,30\n",
        ", line 4: the stay of 20 to 30 s overlaps with the last one",
    ),
    "backwards": (TOP + "1,30,20\n", ", line 3: the stay begins at 30 s and ends before that"),
    "negative": (TOP + "1,-3,20\n", ", line 3: times are seconds from 0 on; the stay is -3 to 20"),
    "NaN": (TOP + "1,3,4\n1,5,nan\n", ", line 4: times are seconds from 0 on; the stay is 5 to"),
    "infinite": (TOP + "1,3,inf", ", line 3: the stay of 3 to inf s ends after the period, 100 s"),
    "too late": (TOP + "1,3,4\n2,5,101", ", line 4: the stay of 5 to 101 s ends after the period"),
    "nobody": (TOP + "1,3,3\n", ": nobody is ever there"),
    "empty": (TOP, ": the trace is empty"),
}


@pytest.mark.parametrize("kind", BAD_STAYS)
def test_what_is_wrong_in_the_csv_of_an_availability_trace_has_its_line(
    kind: str, write: Write
) -> None:
    content, message = BAD_STAYS[kind]
    assert refused(read_availability, write(content)).startswith(message)


def stays(active: object, inactive: object, finish_time: object = 100) -> dict[str, object]:
    return {"active": active, "inactive": inactive, "finish_time": finish_time}


FINE = stays([1, 3], [2, 4])
BAD_ENTRIES = {
    "no table": ([1, 2], "needs a table, got a list"),
    "no list": (stays(1, 2), "needs a list active, got 1"),
    "a list is missing": ({"active": [1]}, "needs a list inactive, got a NoneType"),
    "lists of two lengths": (stays([1, 5], [2]), "active and inactive are not as many"),
    "no period": ({"active": [1], "inactive": [2]}, "needs finish_time of 1 to 1e9 seconds"),
    "the period is text": (stays([1], [2], "9"), "needs finish_time of 1 to 1e9 seconds, got '9'"),
    "the period is in ms": (stays([1], [2], 10**12), "needs finish_time of 1 to 1e9 seconds"),
    "text": (stays([1, "3"], [2, 4]), "stay 2: active must hold numbers, got '3'"),
    "a list in a list": (stays([1, 3], [2, [4]]), "stay 2: inactive must hold numbers, got a list"),
    "unsorted": (stays([5, 1], [6, 2]), "stay 2: the stay of 1 to 2 s begins before the last one"),
    "overlapping": (stays([1, 2], [4, 5]), "stay 2: the stay of 2 to 5 s overlaps with the last"),
    "backwards": (stays([5], [4]), "stay 1: the stay begins at 5 s and ends before that, at 4 s"),
    "negative": (stays([-1], [4]), "stay 1: times are seconds from 0 on; the stay is -1 to 4"),
    "NaN": (stays([1], [float("nan")]), "stay 1: times are seconds from 0 on; the stay is 1 to"),
    "too late": (stays([1], [101]), "stay 1: the stay of 1 to 101 s ends after the period, 100 s"),
}


@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_what_is_wrong_in_a_pickle_or_json_has_its_client(kind: str, write: Write) -> None:
    entry, message = BAD_ENTRIES[kind]
    if "NoneType" not in message:
        pickled = write(pickle.dumps({"ok": FINE, 8: entry, 9: FINE}), "x.pickle")
        assert refused(read_availability, pickled).startswith(f", client 8: {message}")
    text = write(json.dumps({"ok": FINE, "8": entry, "9": FINE}), "x.json")
    shown = message.replace("got 1", "got 1.0")
    assert refused(read_availability, text).startswith(f", client '8': {shown}")


@pytest.mark.parametrize("value", [0, -1.5, float("nan"), float("inf"), "5", [5], {}])
@pytest.mark.parametrize("key", ["computation", "communication"])
def test_capacity_is_numbers_above_zero(key: str, value: object, write: Write) -> None:
    for name, client, dump in (("x.pkl", 5, pickle.dumps), ("x.json", "5", json.dumps)):
        entry = {"computation": 1, "communication": 2.0, key: value}
        file = write(dump({client: entry}), name)
        start = f", client {client!r}: {key} must be a number above 0"
        assert refused(read_capacity, file).startswith(start)
    entry.pop(key)
    assert f"{key} must be" in refused(read_capacity, write({"5": entry}, "x.json"))


BROKEN = {
    "x.json": [
        (b'{"1": {\n"computation": 1,,}}', ", line 2: not JSON: "),
        (b"", ", line 1: not JSON: "),
        (b"[1]", ": needs client -> entry at the top, got a list"),
        (b"{}", ": the trace is empty"),
        (b'{"1": 5, "2": 6, "1": 7}', ": no trace (JSON): '1' is there twice"),
        (b'{"1": {"active": [1], "active": [2]}}', ": no trace (JSON): 'active' is there twice"),
        (b"[" * 10**5, ": no trace (JSON): "),
        (b'{"\xff": 1}', ": no trace (JSON): "),
    ],
    "x.pkl": [
        (b"", ": no trace (pickle): "),
        (pickle.dumps(CAPACITY)[:-9], ": no trace (pickle): "),
        (pickle.dumps([1]), ": needs client -> entry at the top, got a list"),
        (pickle.dumps({}), ": the trace is empty"),
        (b"]" * 10**5 + b"a" * (10**5 - 1) + b".", ": needs client -> entry at the top, got a "),
        (pickle.dumps({1: np.float64(2)}), ": no trace (pickle): byte "),
        (pickle.dumps({1: Path}), ": no trace (pickle): byte "),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "message"), [(n, *case) for n in BROKEN for case in BROKEN[n]]
)
def test_broken_files_say_so(name: str, content: bytes, message: str, write: Write) -> None:
    for read in (read_capacity, read_availability):
        assert refused(read, write(content, name)).startswith(message)


def test_a_file_that_is_not_there_or_too_large_is_not_read(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No such file" in refused(read_capacity, str(tmp_path / "none.csv"))
    assert "Is a directory" in refused(read_capacity, str(tmp_path))
    monkeypatch.setattr(device_trace_files, "MOST_BYTES", 2**20)
    assert "larger than 1 MiB" in refused(read_capacity, write(b"#" * (2**20 + 1)))
    assert "empty" in refused(read_capacity, write(b"#" * 2**20))


def test_one_list_for_a_thousand_clients_is_not_unfolded(write: Write) -> None:
    times = list(range(1000))
    bomb = dict.fromkeys(range(1000), stays(times, times, 10_000))
    message = refused(read_availability, write(pickle.dumps(bomb), "x.pkl"))
    assert message.endswith("the file holds more times than it has bytes")


def test_paths_start_at_the_current_folder_or_at_home(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(CAPACITY_CSV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for file in ("trace.csv", "./trace.csv", "~/trace.csv"):
        assert len(read_capacity(file).inference_ms) == 2


def test_rows_are_drawn_without_replacement_and_reused_evenly() -> None:
    drawn = rows_of(100, 60, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 60
    assert drawn.max() > 60
    reused = rows_of(7, 60, np.random.default_rng(0))
    assert sorted(np.bincount(reused)) == [8, 8, 8, 9, 9, 9, 9]
    assert (rows_of(7, 60, np.random.default_rng(0)) == reused).all()
    assert (rows_of(7, 60, np.random.default_rng(1)) != reused).any()


def fleet(file: str, **changed: Any) -> Experiment:
    values = {"name": "x", "data": {"clients": 6}, "timing": {"model": "resnet"}}
    mix = {"profiles": {"phone-low": 1, "phone-high": 1}, "capacity": file}
    return Experiment.model_validate(values | {"fleet": mix} | changed)


def test_a_fleet_computes_and_communicates_as_traced_and_stores_as_its_profiles(
    write: Write,
) -> None:
    file = write(CAPACITY_CSV)
    names, speeds = fleet_of(fleet(file))
    plain_names, plain = fleet_of(fleet(""))
    assert names == plain_names
    slow = speeds.compute_s > 0.5
    assert np.count_nonzero(slow) == 3
    assert speeds.compute_s[slow] == pytest.approx(0.153 * 3 * 2.44)
    assert speeds.compute_s[~slow] == pytest.approx(0.039 * 3 * 2.44)
    for rate in (speeds.download_bytes_per_s, speeds.upload_bytes_per_s):
        np.testing.assert_array_equal(rate, np.where(slow, 276_250, 2_304_687.5))
    assert (speeds.step_s == 0).all()
    low = load_profile("phone-low")
    of_low = np.array(names) == "phone-low"
    assert (speeds.origin_read_bytes_per_s[of_low] == low.origin.read_bytes_per_s).all()
    for name in ("memory_bytes", "cache_read_latency_s", "depth", "decode_bytes_per_s"):
        np.testing.assert_array_equal(getattr(speeds, name), getattr(plain, name))
    _, again = fleet_of(fleet(file))
    np.testing.assert_array_equal(speeds.compute_s, again.compute_s)


def test_a_capacity_trace_has_not_measured_the_own_model(write: Write) -> None:
    with pytest.raises(InputError, match=r"timing\.model is own, but fleet\.capacity .* name ano"):
        fleet_of(fleet(write(CAPACITY_CSV), timing={"model": "own"}))


DOCUMENT = Path(device_trace_files.__file__).parents[1] / "docs" / "device-traces.md"


def test_the_examples_of_the_documentation_are_traces(write: Write) -> None:
    blocks = re.findall(r"```(json|csv)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    read: list[Capacity | Availability] = [
        (read_capacity if "comput" in text else read_availability)(write(text, f"x.{form}"))
        for form, text in blocks
    ]
    assert len(read) == 4
