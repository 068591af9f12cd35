"""Pickles of plain values, read without Python's unpickler, which a file can make run code.

The opcodes are carried out here. None that names a class, calls something or refers to what is
elsewhere is among them, and none takes more memory than a few times its own bytes.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

_MOST = 2**63


def load_plain(data: bytes) -> object:
    """Return the value in a pickle: a dict, list, str, int or float, and of these what is in it.

    Any protocol is read. What the same pickle stores once and refers to often comes back as one
    object, so who walks through the value has to count.

    Raises:
        ValueError: it holds anything else, or it is damaged.
    """
    machine = _Machine()
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.stack[-1]
            if opcode.name not in _OPERATIONS:
                raise ValueError(
                    f"byte {position}: {opcode.name} is refused; a trace may hold dict, list, str, "
                    "int and float only"
                )
            _OPERATIONS[opcode.name](machine, argument)
    except (LookupError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise ValueError(f"it is a damaged pickle: {error}") from error
    raise ValueError("it is a damaged pickle: it has no end")


class _Machine:
    """The pickle machine: a stack, marks on it, and a memo of what is referred to again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        """Push a number or a text."""
        if isinstance(value, bool) or (isinstance(value, int) and not -_MOST <= value < _MOST):
            raise ValueError("a bool, or an int beyond 64 bits, is refused")
        self.stack.append(value)

    def mark(self, _: object) -> None:
        """Remember where the next items begin."""
        self._marks.append(len(self.stack))

    def empty(self, kind: Callable[[], Any]) -> None:
        """Push an empty list or dict."""
        self.stack.append(kind())

    def extend(self, _: object) -> None:
        """Move all above the mark into the list below it."""
        items = self._above_mark()
        self.stack[-1].extend(items)

    def update(self, _: object) -> None:
        """Move all keys and values above the mark into the dict below it."""
        items = self._above_mark()
        if not set(map(type, items[::2])) <= {int, float, str}:
            raise TypeError("a key that is neither a number nor a text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def one(self, many: Callable[[object], None], items: int) -> None:
        """Do with the last items what `many` does with all above a mark."""
        self._marks.append(len(self.stack) - items)
        many(None)

    def enclose(self, kind: Callable[[], Any], many: Callable[[object], None]) -> None:
        """Put all above the mark into a new list or dict."""
        self.stack.insert(self._marks[-1], kind())
        self._marks[-1] += 1
        many(None)

    def put(self, key: int | None) -> None:
        """Remember the last value under a number, or the next free one."""
        self._memo[len(self._memo) if key is None else key] = self.stack[-1]

    def get(self, key: int) -> None:
        """Push a value that was remembered."""
        self.stack.append(self._memo[key])

    def _above_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items


_PUSHED = (
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING",
    "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
)  # fmt: skip

_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_PUSHED, _Machine.push),
    **dict.fromkeys(("PROTO", "FRAME"), lambda _machine, _: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "MARK": _Machine.mark,
    "EMPTY_LIST": lambda machine, _: machine.empty(list),
    "EMPTY_DICT": lambda machine, _: machine.empty(dict),
    "LIST": lambda machine, _: machine.enclose(list, machine.extend),
    "DICT": lambda machine, _: machine.enclose(dict, machine.update),
    "APPEND": lambda machine, _: machine.one(machine.extend, 1),
    "APPENDS": _Machine.extend,
    "SETITEM": lambda machine, _: machine.one(machine.update, 2),
    "SETITEMS": _Machine.update,
}
