"""Telemetry in short: memory, CPU and storage by kind of process, starts, and what it took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from experiments.units import percent, seconds, size
from fedio.runs import Row

Value = TypeVar("Value")

EVENTS = ("started", "ended")


@dataclass(frozen=True, slots=True)
class Kind:
    """What the processes of one kind used, over the whole run.

    Attributes:
        kind: such as `device`.
        processes: how many there were, one after the other too.
        pss_bytes: their memory when that of all kinds was highest; None where it is not known.
        cpu_s: their own CPU seconds.
        children_s: those of their children that have ended, seen or not; None where not known.
        read_bytes, written_bytes: what they asked storage for; None where not known.
        start_s: seconds from asking for one to when it was ready, median; None where not told.
        restarts: how often one was started again.
    """

    kind: str
    processes: int
    pss_bytes: int | None
    cpu_s: float
    children_s: float | None
    read_bytes: int | None
    written_bytes: int | None
    start_s: float | None
    restarts: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Telemetry in short.

    Attributes:
        wall_s: seconds from the first row to the last.
        pss_bytes: the highest sum of all processes' memory; None where it is not known.
        kinds: what was used by kind, the most CPU seconds first.
        overhead_share: what telemetry itself took, as a share of a core.
    """

    wall_s: float
    pss_bytes: int | None
    kinds: list[Kind]
    overhead_share: float | None


def summarise(rows: Sequence[Row]) -> Summary | None:
    """Return the summary of a run's telemetry, none if it has none."""
    processes = [row for row in rows if row["what"] == "process"]
    if not processes:
        return None
    last = {(row["pid"], row["born_s"]): row for row in processes}
    peak = _peak(processes)
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in last.values():
        by_kind[row["kind"]].append(row)
    events = [row for row in rows if row["what"] in EVENTS]
    kinds = [_kind(kind, same, peak, events) for kind, same in by_kind.items()]
    hosts = [row for row in rows if row["what"] == "host"]
    return Summary(
        wall_s=rows[-1]["wall_s"] - rows[0]["wall_s"],
        pss_bytes=sum(peak.values()) if peak else None,
        kinds=sorted(kinds, key=lambda one: (-one.cpu_s - (one.children_s or 0.0), one.kind)),
        overhead_share=hosts[-1]["telemetry_share"] if hosts else None,
    )


def lines(summary: Summary) -> list[str]:
    """Return the summary as a few lines for a terminal."""
    kinds, said = summary.kinds, []
    if summary.pss_bytes is not None:
        parts = [(one.kind, one.pss_bytes) for one in kinds if one.pss_bytes]
        parts.sort(key=lambda part: -part[1])
        said.append(
            f"Memory (PSS) at its peak: {size(summary.pss_bytes)} ({_listed(parts, size)})."
        )
    said.append(f"CPU: {_listed([(one.kind, one.cpu_s) for one in kinds], seconds)}.")
    devices = next((one for one in kinds if one.kind == "device"), None)
    if devices and devices.read_bytes is not None:
        said.append(
            f"Devices asked storage for {size(devices.read_bytes)}, and wrote "
            f"{size(devices.written_bytes)}."
        )
    starts = [(one.kind, one.start_s) for one in kinds if one.start_s is not None]
    if starts:
        said.append(f"Ready after (median): {_listed(starts, seconds)}.")
    restarts = [f"{one.restarts} x {one.kind}" for one in kinds if one.restarts]
    if restarts:
        said.append(f"Ended and started again: {', '.join(restarts)}.")
    if summary.overhead_share is not None:
        said.append(f"Telemetry took {percent(summary.overhead_share)} of a core.")
    return said


def _listed(parts: Iterable[tuple[str, Value]], show: Callable[[Value], str]) -> str:
    return ", ".join(f"{kind} {show(value)}" for kind, value in parts)


def _peak(processes: Iterable[Row]) -> dict[str, int]:
    """Return the memory by kind when that of all was highest; the rows of a look share its time."""
    looks: dict[float, Counter[str]] = defaultdict(Counter)
    for row in processes:
        if row.get("pss_bytes") is not None:
            looks[row["wall_s"]][row["kind"]] += row["pss_bytes"]
    return dict(max(looks.values(), key=Counter.total, default={}))


def _kind(kind: str, same: Sequence[Row], peak: Mapping[str, int], events: Iterable[Row]) -> Kind:
    own = [row for row in events if row["kind"] == kind]
    times = [Counter(row["client"] for row in own if row["what"] == what) for what in EVENTS]
    starts = [row for row in own if row["what"] == "started"]
    return Kind(
        kind=kind,
        processes=len(same),
        pss_bytes=peak.get(kind, 0) if peak else None,
        cpu_s=sum(row["user_s"] + row["system_s"] for row in same),
        children_s=_sum(same, "children_s"),
        read_bytes=_sum(same, "read_bytes"),
        written_bytes=_sum(same, "written_bytes"),
        start_s=median(row["took_s"] for row in starts) if starts else None,
        # A run that is resumed starts all of them again, which is no restart.
        restarts=sum(max(0, min(times[0][who] - 1, ends)) for who, ends in times[1].items()),
    )


def _sum(rows: Iterable[Row], key: str) -> Any:
    """Return the sum of a counter over those that have it, None if none has."""
    known = [row[key] for row in rows if row[key] is not None]
    return sum(known) if known else None
