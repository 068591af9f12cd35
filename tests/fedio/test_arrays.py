"""Arrays on the wire: Flower's own bytes, made and read faster."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array

from fedio.arrays import pack, unpack

VALUES = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(3.5, np.float32),
    np.zeros((0, 3)),
    np.arange(4, dtype=np.int64),
    np.array([True, False]),
]


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_bytes_are_those_that_flower_makes(values: np.ndarray) -> None:
    ours, theirs = pack(values), Array(values)
    assert ours.data == theirs.data
    assert (ours.dtype, tuple(ours.shape), ours.stype) == (
        theirs.dtype,
        tuple(theirs.shape),
        theirs.stype,
    )
    assert np.array_equal(ours.numpy(), values)


@pytest.mark.parametrize("values", [*VALUES, np.arange(6.0).reshape(2, 3).T], ids=str)
def test_what_flower_made_is_read_as_flower_reads_it(values: np.ndarray) -> None:
    for array in (Array(values), pack(values)):
        found = unpack(array)
        assert np.array_equal(found, values)
        assert found.dtype == values.dtype
        with pytest.raises(ValueError, match="read-only"):
            found[...] = 0


def test_bytes_that_do_not_fit_are_refused() -> None:
    good = pack(np.zeros((2, 3), np.float32))
    short = Array(dtype=good.dtype, shape=good.shape, stype=good.stype, data=good.data[:-4])
    with pytest.raises(ValueError, match="reshape"):
        unpack(short)
