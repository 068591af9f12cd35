"""Any round of a run explained: who took part, why, what it was predicted to take and took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.run_figures import stall_s
from experiments.units import NOTHING, percent, size
from fedio.errors import InputError
from fedio.runs import Row, Run

# The phases of a participation add up to what it took; storage and decoding are busy meanwhile.
PHASES = ("download", "stall", "compute", "upload")
BUSY = ("origin", "cache", "decode", "write")
STAGED = ("client", "idle", "took", "needed", "held", "staged", "from origin", "written")
_OUTCOMES = ("counted", "late", "left", "unused", "failed", "rejected")


@dataclass(frozen=True, slots=True)
class Participation:
    """One selected client in one round; seconds are of the run's clock, none where not known.

    Attributes:
        device: the name of its profile.
        why: the selector's reason with its details, such as `explore, score 0.25`; and the faults
            that struck on purpose.
        phases_s: seconds by phase, and those that storage and decoding were busy; empty if it
            failed.
        problem: what went wrong, if something did.
    """

    client: int
    device: str
    outcome: str
    why: str
    predicted_s: float | None
    actual_s: float | None
    phases_s: dict[str, float]
    problem: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A round: its row of `rounds.jsonl`, who took part, and why the others did not."""

    row: Row
    participations: list[Participation]
    not_selected: dict[str, int]

    @property
    def staged(self) -> list[list[str]]:
        """Who staged for the next round, as cells under `STAGED`."""
        return [
            [
                str(one["client"]),
                exact(one["window_s"]),
                exact(one["seconds"]),
                *(str(one[f"{name}_samples"]) for name in ("needed", "held", "staged")),
                size(one["origin_bytes"]),
                size(one["written_bytes"]),
            ]
            for one in self.row.get("staged") or ()
        ]

    @property
    def headline(self) -> str:
        """What happened in one line."""
        row = self.row
        accuracy = "not evaluated" if row["accuracy"] is None else percent(row["accuracy"])
        if not row["round"]:
            return f"Round 0: the untrained model, accuracy {accuracy}"
        counts = [f"{len(row[name])} {name}" for name in _OUTCOMES if row.get(name)]
        return (
            f"Round {row['round']}: {exact(row['end_s'] - row['start_s'])}, from "
            f"{exact(row['start_s'])} to {exact(row['end_s'])}; wanted {row['wanted']}, "
            f"selected {len(row['selected'])} ({', '.join(counts) or 'none replied'}); "
            f"accuracy {accuracy}"
        )


def exact(value_s: float | None) -> str:
    """Return seconds in seconds, so that neighbours compare."""
    return NOTHING if value_s is None else f"{value_s:,.1f} s"


def explain_round(run: Run, server_round: int) -> Explanation:
    """Return who took part in a round of `run` and why.

    Raises:
        InputError: the run has no such round.
    """
    row = next((row for row in run.rounds if row["round"] == server_round), None)
    if row is None:
        first, last = run.rounds[0]["round"], run.rounds[-1]["round"]
        raise InputError(f"{run.path} has no round {server_round}: name one from {first} to {last}")
    rows = [client for client in run.clients if client["round"] == server_round]
    return _explanation(row, rows)


def explain_run(run: Run) -> list[Explanation]:
    """Return every round of `run` explained, in order."""
    by_round: dict[int, list[Row]] = {}
    for client in run.clients:
        by_round.setdefault(client["round"], []).append(client)
    return [_explanation(row, by_round.get(row["round"], [])) for row in run.rounds]


def print_round(console: Console, run: Run, server_round: int) -> None:
    """Print a round of `run` explained.

    Raises:
        InputError: the run has no such round.
    """
    explanation = explain_round(run, server_round)
    console.print(Text(explanation.headline, style="bold"))
    if explanation.participations:
        console.print(_reasons(explanation))
        console.print(Text("Seconds by phase, and those of what was busy meanwhile", style="bold"))
        console.print(_phases(explanation))
    if explanation.row.get("arrived") is not None:
        brought = (f"{one['client']} ({one['staleness']})" for one in explanation.row["arrived"])
        said = ", ".join(brought) or "nobody"
        console.print(Text(f"Replies that came in, and how stale (rounds): {said}"))
    if explanation.staged:
        console.print(Text(f"Staged for round {server_round + 1} by who was idle", style="bold"))
        console.print(_staged(explanation))
    for one in explanation.participations:
        if one.problem:
            last_line = one.problem.strip().splitlines()[-1]
            console.print(Text(f"Client {one.client} {one.outcome}: {last_line}"))
    for reason, count in explanation.not_selected.items():
        console.print(Text(f"Not selected, {reason}: {count}"))


def _reasons(explanation: Explanation) -> Table:
    titles = ("client", "device", "outcome", "predicted", "took", "why")
    table = _table(titles, left=("device", "outcome", "why"))
    for one in explanation.participations:
        times = (exact(one.predicted_s), exact(one.actual_s))
        table.add_row(str(one.client), Text(one.device), Text(one.outcome), *times, Text(one.why))
    return table


def _phases(explanation: Explanation) -> Table:
    table = _table(("client", *PHASES, "busy:", *BUSY))
    for one in explanation.participations:
        times = {name: one.phases_s.get(name) for name in (*PHASES, *BUSY)}
        texts = {name: NOTHING if time is None else f"{time:.2f}" for name, time in times.items()}
        phases, busy = ([texts[name] for name in names] for names in (PHASES, BUSY))
        table.add_row(str(one.client), *phases, "", *busy)
    return table


def _staged(explanation: Explanation) -> Table:
    table = _table(STAGED)
    for cells in explanation.staged:
        table.add_row(*cells)
    return table


def _table(titles: Sequence[str], left: Sequence[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        justify: Literal["left", "right"] = "left" if title in left else "right"
        table.add_column(title, justify=justify, no_wrap=title != "why")
    return table


def _explanation(row: Row, rows: list[Row]) -> Explanation:
    replied = {client["client"]: client for client in rows}
    # A client may be selected and leave no row; the round's own lists still say what became of it.
    blank = {client: _without_row(row, client) for client in row["selected"]}
    everyone = blank | replied
    return Explanation(
        row, [_participation(everyone[client]) for client in sorted(everyone)], row["not_selected"]
    )


def _without_row(row: Row, client: int) -> Row:
    outcome = next((name for name in _OUTCOMES if client in row.get(name, ())), "no reply")
    return {"client": client, "outcome": outcome}


def _participation(row: Row) -> Participation:
    details = [f"{name} {_short(value)}" for name, value in (row.get("details") or {}).items()]
    details += [f"fault {name}" for name in row.get("faults") or ()]
    known = {name: row.get(f"{name}_s") for name in (*PHASES, *BUSY)} | {"stall": stall_s(row)}
    phases_s = {name: time for name, time in known.items() if time is not None}
    return Participation(
        client=row["client"],
        device=row.get("device") or NOTHING,
        outcome=row["outcome"],
        why=", ".join([row.get("why") or NOTHING, *details]),
        predicted_s=row.get("predicted_s"),
        actual_s=row.get("duration_s"),
        phases_s=phases_s,
        problem=row.get("problem"),
    )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
