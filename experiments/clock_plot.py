"""The virtual clock against devices in real time, a dot per participation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.clock_error import COMPONENTS, NAMES, Timed, timed
from experiments.drawing import COLOURS, WIDTH
from fedio.runs import Run

SIGNS = "os^Dv<>Phd"


def clock_error(runs: Iterable[Run]) -> Figure:
    """Draw measured against virtual seconds by component, a sign per device profile.

    What lies on the diagonal agrees. Hollow ones are participations that the host could not keep up
    with; those that faults struck are left out.
    """
    everyone = [one for one in timed(runs) if one.state != "struck"]
    devices = sorted({one.device for one in everyone})
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    panels = figure.subplots(2, 3).flat
    for axes, component in zip(panels, COMPONENTS, strict=False):
        _panel(axes, everyone, devices, component)
    legend = figure.axes[-1]
    legend.set_axis_off()
    looks = [_look(devices, name) for name in devices]
    handles = [
        Line2D([], [], linestyle="", marker=sign, color=colour, label=name)
        for name, (sign, colour) in zip(devices, looks, strict=True)
    ]
    if any(one.state == "behind" for one in everyone):
        hollow = Line2D([], [], linestyle="", marker="o", color="#555555", markerfacecolor="none")
        hollow.set_label("host could not keep up")
        handles.append(hollow)
    legend.legend(handles=handles, loc="center", handlelength=1)
    figure.supxlabel("measured by the device (s)", fontsize=9)
    figure.supylabel("by the virtual clock (s)", fontsize=9)
    return figure


def _panel(axes: Axes, everyone: Sequence[Timed], devices: Sequence[str], component: str) -> None:
    longest_s = 0.0
    for name in devices:
        sign, colour = _look(devices, name)
        for state, filling in (("whole", colour), ("behind", "none")):
            some = [one for one in everyone if one.device == name and one.state == state]
            measured_s = [one.measured_s[component] for one in some]
            virtual_s = [one.virtual_s[component] for one in some]
            longest_s = max([longest_s, *measured_s, *virtual_s])
            axes.plot(
                measured_s, virtual_s, sign, markersize=3, markerfacecolor=filling,
                markeredgecolor=colour, markeredgewidth=0.6, alpha=0.7,
            )  # fmt: skip
    limit_s = 1.05 * longest_s or 1.0
    axes.plot([0, limit_s], [0, limit_s], color="#555555", linewidth=0.7, zorder=0)
    axes.set(title=NAMES[component], xlim=(0, limit_s), ylim=(0, limit_s), aspect="equal")
    axes.locator_params(nbins=4)
    axes.grid(visible=True)


def _look(devices: Sequence[str], name: str) -> tuple[str, str]:
    """Return the sign and the colour of a device profile."""
    position = devices.index(name)
    return SIGNS[position % len(SIGNS)], COLOURS[position % len(COLOURS)]
