"""How speed-ups are drawn: dots with their intervals along a logarithmic axis of plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from fedio.runs import Row

# A triangle points to where the true value of a bound may lie: along x, along y.
SIGNS = {"at most": ("<", "v"), "at least": (">", "^")}
UNBOUNDED = "o"

_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
_FEWEST_TICKS = 4


def spans(arms: Iterable[Row]) -> list[float]:
    """Return all that must fit on an axis: the speed-ups of arms, and the ends of intervals."""
    keys = ("speedup", "speedup_low", "speedup_high")
    return [arm[key] for arm in arms for key in keys if arm[key] is not None]


def mark(
    axes: Axes, at: float, arm: Row, along: str, look: tuple[str, str] = ("#000000", UNBOUNDED)
) -> None:
    """Draw an arm's speed-up with its interval, if it has one.

    Args:
        axes: what to draw on.
        at: where it is on the other axis.
        arm: its figures.
        along: the axis of speed-ups, `x` or `y`.
        look: colour and sign; a bound has a sign of its own.
    """
    ratio, colour = arm["speedup"], look[0]
    if ratio is None:
        return
    low, high = (arm[key] or ratio for key in ("speedup_low", "speedup_high"))
    bound = SIGNS.get(arm.get("speedup_bound") or "")
    sign = look[1] if bound is None else bound[along == "y"]
    reach = [[ratio - low], [high - ratio]]
    x, y, x_reach, y_reach = (ratio, at, reach, None) if along == "x" else (at, ratio, None, reach)
    axes.errorbar(
        x, y, xerr=x_reach, yerr=y_reach, fmt=sign, color=colour, markersize=5, elinewidth=1,
        capsize=2,
    )  # fmt: skip


def ratio_axis(axes: Axes, along: str, values: Sequence[float]) -> None:
    """Make an axis logarithmic, wide enough for some values and 1, with plain numbers."""
    low, high = min(1.0, *values), max(1.0, *values)
    margin = max(1.08, (high / low) ** 0.04)
    low, high = low / margin, high * margin
    axis = axes.xaxis if along == "x" else axes.yaxis
    axes.set(**{f"{along}scale": "log", f"{along}lim": (low, high)})
    axis.set_major_locator(FixedLocator(ticks(low, high)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers between two, evenly spaced where these are close."""
    if high / low < 4:
        found = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
        return [float(f"{tick:.6g}") for tick in found if low <= tick <= high]
    powers = np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        found = [step * 10.0**power for power in powers for step in steps]
        inside = [tick for tick in found if low <= tick <= high]
        if len(inside) >= _FEWEST_TICKS:
            break
    return inside
