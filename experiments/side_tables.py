"""The tables beside a comparison, as text: the virtual clock's error, faults, telemetry."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.clock_error import COMPONENTS, NAMES
from experiments.telemetry import Summary
from experiments.units import NOTHING, percent, seconds, size
from fedio.runs import Row


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of texts; the first column names the rows. `notes` are lines below it."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    notes: list[str]


def side_tables(comparison: Row) -> list[TextTable]:
    """Return the tables beside a comparison that it has figures for."""
    tables = []
    if comparison.get("clock_error"):
        tables += [
            _error_table(comparison["clock_error"]),
            _device_table(comparison["clock_error"]),
        ]
    if comparison.get("faults") is not None:
        tables.append(_fault_table(comparison["faults"]))
    return tables


def _error_table(error: Row) -> TextTable:
    components = error["components"] or {}
    rows = [
        [NAMES[name], *(percent(one[key]) for key in ("share", "bias", "mean", "median", "p95"))]
        for name, one in components.items()
    ]
    counted = error["participations"] - error["cannot_keep_up"] - error["faults"]
    meaning = (
        "Virtual less measured seconds, as a share of the measured duration of the participation; "
        "share: the component's own. Bias has the sign."
    )
    numbers = (
        f"Of {error['participations']} participations {counted} count: with "
        f"{error['cannot_keep_up']} the host could not keep up (behind by more than "
        f"{percent(error['kept_up_share'])}), and faults struck {error['faults']}."
    )
    notes = [meaning, numbers]
    if error["pace"] == "none":
        notes.append(
            "Nothing kept the pace of the profiles (emulation.pace is none): unless they are of "
            "this machine, this is how far it is from them, and no error of the clock."
        )
    headings = ["component", "share", "bias", "mean", "median", "95%"]
    return TextTable("The virtual clock's error", headings, rows, notes)


def _device_table(error: Row) -> TextTable:
    rows = []
    for name, one in error["devices"].items():
        counts = [str(one[key]) for key in ("participations", "cannot_keep_up", "faults")]
        rows.append([name, *counts, *_spans(one["components"])])
    return TextTable(
        "The same by device: median/95th percentile (%)",
        ["device", "all", "slow", "faults", *(NAMES[name] for name in COMPONENTS)],
        rows,
        ["Slow: the host could not keep up."],
    )


def _spans(components: Row | None) -> list[str]:
    if components is None:
        return [NOTHING] * len(COMPONENTS)
    return [f"{100 * one['median']:.1f}/{100 * one['p95']:.1f}" for one in components.values()]


def _fault_table(faults: Row) -> TextTable:
    rows = [
        [
            name.replace("_", " "),
            str(one["injected"]),
            ", ".join(f"{count} {outcome}" for outcome, count in one["outcomes"].items()),
        ]
        for name, one in faults.items()
    ]
    none = [] if rows else ["The experiment has faults, and none struck."]
    return TextTable("Faults on purpose", ["fault", "struck", "what became of them"], rows, none)


def telemetry_table(summary: Summary) -> TextTable:
    """Return what the processes of a run used, by kind."""
    rows = [
        [
            one.kind,
            str(one.processes),
            size(one.pss_bytes),
            seconds(one.cpu_s),
            seconds(one.children_s),
            size(one.read_bytes),
            size(one.written_bytes),
            seconds(one.start_s),
            str(one.restarts),
        ]
        for one in summary.kinds
    ]
    headings = ["processes", "number", "memory", "CPU", "children's", "read", "written"]
    headings += ["ready after", "restarts"]
    meaning = (
        f"Memory is PSS at the moment when it was highest in all, {size(summary.pss_bytes)}. "
        "Children's CPU is that of those that have ended, also of those too short-lived to be "
        "seen. Read and written is what storage was asked for."
    )
    overhead = (
        f"Telemetry took {percent(summary.overhead_share)} of a core in {seconds(summary.wall_s)}."
    )
    return TextTable("Processes", headings, rows, [meaning, overhead])
