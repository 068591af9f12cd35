from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedio.checkpoints import Checkpoint, named, part, read_checkpoint, write_checkpoint
from fedio.errors import InputError, RunError

KINDS = (np.bool_, np.uint8, np.int64, np.uint64, np.float32, np.float64)
ARRAYS = st.one_of(
    *(
        arrays_of.arrays(kind, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0))
        for kind in KINDS
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(
            lambda name: name != "__metadata__" and name.isprintable()
        ),
        ARRAYS,
        max_size=4,
    )
)
def test_what_is_written_comes_back(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    notes = {"round": 3, "names": ["é", "b"], "wall_s": 1.5}
    write_checkpoint(tmp_path / "folder" / "state", Checkpoint(arrays, notes))
    back = read_checkpoint(tmp_path / "folder" / "state")
    assert back.notes == notes
    assert back.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)
        assert back.arrays[name].shape == array.shape


def test_parts_are_named_and_found_again() -> None:
    parts = {"a": {"x": np.ones(2), "b.y": np.zeros(1)}, "ab": {"x": np.ones(1)}, "none": {}}
    arrays = named(parts)
    assert set(arrays) == {"a.x", "a.b.y", "ab.x"}
    assert {name: set(part(arrays, name)) for name in parts} == {
        name: set(each) for name, each in parts.items()
    }


def test_a_transposed_array_keeps_its_values(tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).T
    write_checkpoint(tmp_path / "folder" / "state", Checkpoint({"a": array}, {}))
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "folder" / "state").arrays["a"], array)


def test_a_failed_write_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "folder" / "state"
    write_checkpoint(file, Checkpoint({"a": np.zeros(1)}, {"round": 1}))

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedio.checkpoints.save_file", no_room)
    with pytest.raises(RunError, match="No space left"):
        write_checkpoint(file, Checkpoint({"a": np.ones(1)}, {"round": 2}))
    assert read_checkpoint(file).notes == {"round": 1}
    assert os.listdir(file.parent) == ["state"]  # noqa: PTH208


@pytest.mark.parametrize("damage", ["cut", "garbage", "foreign", "missing"])
def test_damage_is_one_line(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "folder" / "state"
    write_checkpoint(file, Checkpoint({"a": np.zeros(100)}, {"round": 1}))
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[:-9])
    elif damage == "garbage":
        file.write_bytes(bytes(500))
    elif damage == "foreign":
        file.write_bytes(whole.replace(b"fedio", b"other"))
    else:
        file.unlink()
    with pytest.raises(InputError, match="without --resume"):
        read_checkpoint(file)
