"""The tables of a comparison, what is beside them, and how they print on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.columns import COLUMNS, FORMS, READING, STAGING, Column, tables
from experiments.side_tables import TextTable, side_tables
from experiments.units import NOTHING, number, percent, seconds, size
from fedio.config import DEFAULT_CACHE_SHARE
from fedio.runs import Row

__all__ = [
    "COLUMNS", "NOTHING", "label", "notes", "number", "percent", "print_table", "seconds", "size",
]  # fmt: skip

SECONDS = {
    "virtual": "All seconds are virtual.",
    "wall": "All seconds are device time: what the devices took, without Flower's own overhead.",
}


def label(arm: Row) -> str:
    """Return an arm's name, with its kind unless it is a plain arm."""
    return str(arm["name"]) if arm["kind"] == "arm" else f"{arm['name']} ({arm['kind']})"


def notes(comparison: Row) -> list[str]:
    """Return the lines beside a table without which its figures cannot be judged."""
    setting, arms = comparison["setting"], comparison["arms"]
    seeds = ", ".join(map(str, comparison["seeds"]))
    ratio = number(comparison["io_to_compute"])
    lines = [
        f"Target accuracy {percent(comparison['target_accuracy'])}; seeds {seeds}.",
        f"Speed-ups refer to {comparison['reference']}.",
        f"{setting['dataset']} on {setting['clients']} clients: {_partition(setting)}.",
        f"{setting['rounds']} rounds; {setting['cohort']} clients count in each{_limits(setting)}.",
        *_presence(setting["availability"]),
        _work(setting),
        f"Cache: {_cache(setting['cache'])}.",
        f"Fleet: {_fleet(setting['fleet'])}.",
        f"I/O : compute {ratio} (cold origin and decode seconds over compute seconds).",
        _models(setting),
        SECONDS[comparison["clock"]],
        *_alike(arms),
        _sizes(setting),
    ]
    for arm in arms:
        lines += _about(arm, comparison["seeds"])
    spans = [(arm["speedup_low"], arm["speedup_high"]) for arm in arms if arm["speedup_low"]]
    if spans and all(low <= 1 <= high for low, high in spans):
        lines.append("Every interval includes 1: these seeds show no arm to be faster or slower.")
    return lines


def _about(arm: Row, seeds: Sequence[int]) -> list[str]:
    """Return what must be known of one arm."""
    name, lines = arm["name"], []
    if arm["seeds"] != seeds:
        own = ", ".join(map(str, arm["seeds"]))
        lines.append(f"{name} ran seeds {own} only; its speed-up pairs those.")
    if arm["failed"] or arm["rejected"]:
        lines.append(
            f"{name}: {arm['failed']} participations failed and {arm['rejected']} were rejected; "
            "fedio report --round says why."
        )
    if arm["aggregation"] == "fedbuff":
        lines.append(
            f"{name} waits for nobody: its rounds end with an update of the server, and deadlines "
            "do not apply to them."
        )
    staging = arm["staging_origin_bytes"], arm["staging_written_bytes"]
    if any(staging):
        read, written = map(size, staging)
        lines.append(f"{name}: staging read {read} of its bytes from the origin, wrote {written}.")
    if arm["substituted_ratio"]:
        lines.append(
            f"{name} trained a stand-in for {percent(arm['substituted_ratio'])} of its requests: "
            "cached samples in place of others, which are no hits."
        )
    return lines


def _models(setting: Row) -> str:
    timing, learning = setting["timing_model"], setting["learning_model"]
    measured = " (the learning model, as the profiles measured it)" if timing == "own" else ""
    precision = "" if setting["precision"] == "float32" else f" in {setting['precision']}"
    return f"Timing model {timing}{measured}; learning model {learning}{precision}."


def _alike(arms: Sequence[Row]) -> list[str]:
    """Say what all arms do alike to bring samples to training; columns show the rest."""
    words: dict[str, Callable[[Row], str]] = {
        "prefetch": lambda arm: READING[arm["prefetch"]][1],
        "form": lambda arm: FORMS[arm["form"]],
        "staging": lambda arm: STAGING[arm["staging"]][1],
    }
    alike = [say(arms[0]) for key, say in words.items() if len({arm[key] for arm in arms}) == 1]
    if not alike:
        return []
    return [f"In every arm {' and '.join(filter(None, (', '.join(alike[:-1]), alike[-1])))}."]


def _work(setting: Row) -> str:
    steps = f"{setting['local_steps']} x {setting['batch_size']}"
    return f"Over-commitment {setting['over_commitment']:g}; local steps {steps}."


def _limits(setting: Row) -> str:
    """Say what ends a round before all are there, and what becomes of those that are late."""
    deadline = setting["deadline_s"]
    if isinstance(deadline, list):
        deadline = ", ".join(f"{seconds(limit)} from round {first}" for first, limit in deadline)
    elif deadline is not None:
        deadline = seconds(deadline)
    until = "" if deadline is None else f", until a deadline of {deadline}"
    return until + ("; who is late is told to stop" if setting["late"] == "cancel" else "")


def _presence(availability: Row) -> list[str]:
    """Say when devices are there, unless that is always."""
    kind, period = availability["kind"], seconds(availability["period_s"])
    how = {
        "always": "",
        "trace": f"as in {availability['file']}",
        "periodic": f"{percent(availability['share'])} of every {period}",
        "random": f"{seconds(availability['stay_s'])} at a time on average, then away for "
        f"{seconds(availability['absence_s'])}",
    }[kind]
    leaving = {"abort": "aborts its work", "resume": "goes on when it is back"}
    left = leaving[availability["on_leave"]]
    return [f"Devices are there {how}; who leaves in mid-round {left}."] if how else []


def _partition(setting: Row) -> str:
    partition = setting["partition"]
    kind = {
        "iid": "IID",
        "dirichlet": f"Dirichlet labels (alpha {partition['alpha']:g})",
        "pathological": f"{partition['classes_per_client']} classes a client",
    }[partition["kind"]]
    drawn = partition.get("samples")
    return kind + (f", median {drawn['median']:g} samples each" if drawn else "")


def _cache(cache: Row) -> str:
    budget = cache.get("budget_bytes")
    share = cache.get("share", DEFAULT_CACHE_SHARE)
    what = f"{100 * share:g}% of each client's bytes" if budget is None else size(budget)
    daily = cache.get("daily_write_bytes")
    limit = "" if daily is None else f"; staging stops at {size(daily)} written in a day"
    return f"{what}, {cache['store']} store{limit}"


def _fleet(fleet: Row) -> str:
    mix = ", ".join(f"{share:g} {name}" for name, share in fleet["profiles"].items())
    if fleet.get("capacity"):
        measured = f"compute and network as in {fleet['capacity']}; storage and memory of"
        return f"{measured} {mix} (shares), spread by {fleet['spread']:g}"
    return f"{mix} (shares); speeds spread by {fleet['spread']:g}"


def _sizes(setting: Row) -> str:
    nominal = setting["nominal"]
    decode = f"decode {size(setting['decode_bytes_per_s'])}/s, unless a profile measured it"
    if nominal is None:
        return f"Sizes are those of the samples themselves, not inflated; {decode}."
    drawn = nominal["size_bytes"]
    return (
        f"Nominal sizes, drawn per sample: median {size(drawn['median'])}, sigma "
        f"{drawn['sigma']:g}, {size(drawn['min'])} to {size(drawn['max'])}; prepared "
        f"{size(nominal['prepared_bytes'])}; {decode}."
    )


def print_table(console: Console, comparison: Row) -> None:
    """Print the figures of all arms, what the columns mean and what was compared.

    Narrow tables rather than one wide: each fits a terminal of 80 columns.
    """
    shown = tables(comparison["arms"])
    for title, columns in shown.items():
        console.print(_table(title, columns, comparison["arms"]))
        console.print()
    for side in side_tables(comparison):
        console.print(_side_table(side))
        for line in side.notes:
            console.print(Text(line, style="dim"))
        console.print()
    for line in notes(comparison):
        console.print(Text(line))
    console.print()
    legend = Table.grid(padding=(0, 2))
    for column in (column for columns in shown.values() for column in columns):
        legend.add_row(Text(column.title, style="bold"), Text(column.legend, style="dim"))
    console.print(legend)


def _side_table(side: TextTable) -> Table:
    table = _empty(side.title)
    first, *others = side.headings
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    for cells in side.rows:
        table.add_row(*map(Text, cells))
    return table


def _table(title: str, columns: Sequence[Column], arms: Sequence[Row]) -> Table:
    table = _empty(title)
    table.add_column("arm", overflow="fold")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    kinds = [arm["kind"] for arm in arms]
    for position, arm in enumerate(arms):
        table.add_row(Text(label(arm)), *(Text(column.show(arm)) for column in columns))
        if kinds[position : position + 2] != kinds[position : position + 1] * 2:
            table.add_section()
    return table


def _empty(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
