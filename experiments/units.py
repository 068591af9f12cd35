"""Figures as people read them."""

from __future__ import annotations

NOTHING = "-"

CLOCKS = {"virtual": "virtual time", "wall": "device time"}
"""What seconds of a run's clock are called."""


def seconds(value: float | None) -> str:
    """Return seconds as s, min or h."""
    if value is None:
        return NOTHING
    if value < 100:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 6000 else f"{value / 3600:.2f} h"


def size(value: float | None) -> str:
    """Return bytes as B, kB, MB, GB or TB, each 1,000 of the one before."""
    if value is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB" if value < 999.5 else f"{value:.0f} TB"


def percent(value: float | None) -> str:
    """Return a share as a percentage."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def number(value: float | None) -> str:
    """Return a number with two decimals, or as a whole one from 100 on."""
    return NOTHING if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def ratio(value: float | None) -> str:
    """Return a ratio as a number, with two significant digits where it is small."""
    return number(value) if value is None or value >= 0.1 else f"{value:.2g}"
