"""Plug-ins by name and by import path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from fedio.config import Spec
from fedio.errors import InputError
from fedio.plugins import create


class Shape(ABC):
    def __init__(self, corners: int) -> None:
        self.corners = corners

    @abstractmethod
    def name(self) -> str: ...


class Square(Shape):
    def __init__(self, corners: int, colour: str = "red") -> None:
        super().__init__(corners)
        if not colour:
            raise ValueError("needs a colour")
        if colour == "endless":
            raise OverflowError("cannot be that much")
        self.colour = colour

    def name(self) -> str:
        return "square"


TABLE = {"square": Square}


def test_a_row_of_the_table_gets_what_is_given_and_its_arguments() -> None:
    made = create(Spec(name="square", args={"colour": "blue"}), TABLE, Shape, 4)
    assert isinstance(made, Square)
    assert (made.corners, made.colour) == (4, "blue")


def test_an_import_path_works_too() -> None:
    made = create(Spec(name=f"{__name__}:Square"), {}, Shape, 4)
    assert type(made).__name__ == "Square"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Spec(name="sqare"), "did you mean 'square'. known: square"),
        (Spec(name="no.such.module:X"), "cannot load shape"),
        (Spec(name="fedio.config:Nothing"), "cannot load shape"),
        (Spec(name="square", args={"size": 1}), "does not take"),
        (Spec(name="square", args={"colour": ""}), "needs a colour"),
        (Spec(name="square", args={"colour": "endless"}), "cannot be that much"),
        (Spec(name=".plug:X"), "cannot load shape"),
        (Spec(name="builtins:int"), "is the class int, not a Shape"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(spec: Spec, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        create(spec, TABLE, Shape, 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["= =", "raise RuntimeError('no')", "import sys; sys.exit(3)"])
def test_a_module_that_cannot_be_imported_is_the_users_to_mend(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plug.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="cannot load shape 'broken_plug:X'"):
        create(Spec(name="broken_plug:X"), TABLE, Shape, 4)
