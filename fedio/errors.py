"""Errors whose message is for the person at the keyboard."""

from __future__ import annotations


class InputError(ValueError):
    """What the user gave is wrong; the message is one line that says what to do (exit code 2)."""


class RunError(RuntimeError):
    """The run failed; the message is one line that says why (exit code 1)."""


class FruitlessError(RunError):
    """Rounds bring nothing; going on as before would not help."""
