"""Only plain values come out of pickles, whatever is in them."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.restricted_pickle import load_plain

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
plain = st.recursive(
    numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers(0, 2**40) | st.text(), inner),
)


@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_values_come_back_from_any_protocol(value: object, protocol: int) -> None:
    back = load_plain(pickle.dumps(value, protocol))
    assert back == value
    assert repr(back) == repr(value)  # of the same types


def test_texts_of_python_2_come_back() -> None:
    assert load_plain(b"\x80\x02}q\x00U\x06activeq\x01]q\x02K\x05as.") == {"active": [5]}
    assert load_plain(b"(dp0\nS'active'\np1\n(lp2\nI5\nas.") == {"active": [5]}


class Calls:
    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Thing:
    def __init__(self) -> None:
        self.x = 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_would_run_is_refused_and_does_not_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for call in (
        Calls(os.system, f"touch {mark}"),
        Calls(eval, f"open({str(mark)!r}, 'w')"),
        Calls(Path.touch, mark),
    ):
        for value in (call, {"0": {"active": [call]}}, [1, {"x": call}]):
            with pytest.raises(ValueError, match="is refused; a trace may hold"):
                load_plain(pickle.dumps(value, protocol))
    assert not mark.exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        np.arange(3),
        np.float64(1.5),
        Thing(),
        Thing,
        OrderedDict(a=1),
        (1, 2),
        {1, 2},
        frozenset({1}),
        b"abc",
        bytearray(b"abc"),
        None,
        True,
        1 + 2j,
        2**63,
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_but_plain_values_is_refused(value: object, protocol: int) -> None:
    for held in (value, [value], {"client": {"computation": value}}):
        with pytest.raises(ValueError, match="is refused"):
            load_plain(pickle.dumps(held, protocol))


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02\x82\x01.",  # EXT1
        b"Pname\n.",  # PERSID
        b"\x80\x02}(K\x01K\x02ub.",  # BUILD
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",  # BYTEARRAY8 of a terabyte
    ],
)
def test_opcodes_that_reach_out_are_refused(code: bytes) -> None:
    with pytest.raises(ValueError, match=r"is refused|not enough data|expected \d+ bytes"):
        load_plain(code)


def test_a_memo_takes_no_more_memory_than_what_is_in_it() -> None:
    tracemalloc.start()
    assert load_plain(b"\x80\x02}r\xff\xff\xff\xffp4000000000\n.") == {}
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


@pytest.mark.parametrize("value", [{"a": [1, 2.5]}, [[], {}, "x"], {7: {"b": 2**40}}])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_that_ends_early_is_damaged(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            load_plain(data[:length])


@pytest.mark.parametrize(
    "code",
    [
        b"}(K\x01u.",  # a key without a value
        b"}]K\x01s.",  # a list as a key
        b"K\x01K\x02a.",  # into a number
        b"}K\x02a.",  # a dict has no end to append to
        b"]K\x01K\x02s.",  # a list has no keys
        b"]e.",  # no mark
        b"h\x00.",  # nothing remembered
        b"a.",
        b".",
    ],
)
def test_what_does_not_go_together_is_damaged(code: bytes) -> None:
    with pytest.raises(ValueError, match=r"damaged|argument 2 is shorter"):
        load_plain(code)


# Opcodes in any order, so that most of them get as far as the machine.
codes = st.lists(
    st.sampled_from([b"(", b"}", b"]", b"a", b"e", b"s", b"u", b"d", b"l", b"q\x00", b"h\x00"])
    | st.sampled_from([b"\x94", b"K\x05", b"X\x01\x00\x00\x00x", b"I01\n", b"F1\n", b"N", b"."])
).map(b"".join)


@given(st.binary() | codes)
def test_any_bytes_give_a_plain_value_or_one_kind_of_error(data: bytes) -> None:
    try:
        value = load_plain(data + b".")
    except ValueError:
        return
    assert type(value) in {dict, list, str, int, float}
