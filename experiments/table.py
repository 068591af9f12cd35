"""The table of a comparison: its columns, what each means, and how it prints on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedio.config import DEFAULT_CACHE_SHARE
from fedio.runs import Row

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, one line that says what it means, and the text of its cell.

    Attributes:
        show: turns an arm's row of figures into text.
    """

    title: str
    legend: str
    show: Callable[[Row], str]


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


def _speedup(row: Row) -> str:
    if row["speedup_low"] is None or row["speedup_low"] == row["speedup_high"]:
        return number(row["speedup"])
    return f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


def _final(row: Row) -> str:
    spread = row["final_accuracy_spread"]
    return percent(row["final_accuracy"]) + ("" if spread is None else f" ±{100 * spread:.1f}")


TIME_COLUMNS = (
    Column(
        "to target",
        "virtual time of the first of 3 consecutive evaluations at the target or above "
        "(geometric mean over seeds; - unless every seed got there)",
        lambda row: seconds(row["time_to_target_s"]),
    ),
    Column(
        "speed-up",
        "time to target of the reference over the arm's, paired by seed "
        "[95% t interval on the logarithms]",
        _speedup,
    ),
    Column(
        "final",
        "mean test accuracy of the last 5 evaluations, ± standard deviation over seeds",
        _final,
    ),
    Column(
        "worst 10%",
        "mean accuracy of the worst tenth of clients, on their samples held out from training",
        lambda row: percent(row["worst_decile_accuracy"]),
    ),
    Column(
        "never sel.",
        "the same, of the clients that were never selected (- if there are none)",
        lambda row: percent(row["never_selected_accuracy"]),
    ),
)

STORAGE_COLUMNS = (
    Column(
        "origin",
        "bytes read from the slow tier, over the whole run",
        lambda row: size(row["origin_bytes"]),
    ),
    Column(
        "unique",
        "distinct samples a participation trained, summed over a round's participations",
        lambda row: number(row["unique_samples_per_round"]),
    ),
    Column(
        "hits",
        "demand hits of the cache over requests",
        lambda row: percent(row["hit_ratio"]),
    ),
    Column(
        "byte hits",
        "bytes read from the cache, stand-ins too, over bytes read",
        lambda row: percent(row["byte_hit_ratio"]),
    ),
    Column(
        "written",
        "bytes written into the caches, over the whole run",
        lambda row: size(row["written_bytes"]),
    ),
    Column(
        "coverage",
        "share of clients selected at least once",
        lambda row: percent(row["coverage"]),
    ),
    Column(
        "Jain",
        "Jain's index of the times that clients were selected: 1 is all alike",
        lambda row: number(row["jain_index"]),
    ),
)

COLUMNS = TIME_COLUMNS + STORAGE_COLUMNS


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
        f"{setting['rounds']} rounds; {setting['cohort']} clients count in each.",
        _work(setting),
        f"Cache: {_cache(setting['cache'])}.",
        f"Fleet: {_fleet(setting['fleet'])}.",
        f"I/O : compute {ratio} (cold origin and decode seconds over compute seconds).",
        f"Timing model {setting['timing_model']}; learning model {setting['learning_model']}.",
        "All seconds are virtual; phases follow one another, without overlap.",
        _sizes(setting),
    ]
    for arm in arms:
        if arm["seeds"] != comparison["seeds"]:
            seeds = ", ".join(map(str, arm["seeds"]))
            lines.append(f"{arm['name']} ran seeds {seeds} only; its speed-up pairs those.")
        if arm["failed"] or arm["rejected"]:
            lines.append(
                f"{arm['name']}: {arm['failed']} participations failed and {arm['rejected']} "
                "were rejected; fedio report --round says why."
            )
        if arm["substituted_ratio"]:
            lines.append(
                f"{arm['name']} trained a stand-in for {percent(arm['substituted_ratio'])} of its "
                "requests: cached samples in place of others, which are no hits."
            )
    spans = [(arm["speedup_low"], arm["speedup_high"]) for arm in arms if arm["speedup_low"]]
    if spans and all(low <= 1 <= high for low, high in spans):
        lines.append("Every interval includes 1: these seeds show no arm to be faster or slower.")
    return lines


def _work(setting: Row) -> str:
    steps = f"{setting['local_steps']} x {setting['batch_size']}"
    return f"Over-commitment {setting['over_commitment']:g}; local steps {steps}."


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
    return f"{what}, {cache['store']} store"


def _fleet(fleet: Row) -> str:
    mix = ", ".join(f"{share:g} {name}" for name, share in fleet["profiles"].items())
    return f"{mix} (shares); speeds spread by {fleet['spread']:g}"


def _sizes(setting: Row) -> str:
    nominal, decode = setting["nominal"], f"decode {size(setting['decode_bytes_per_s'])}/s"
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

    Two narrow tables rather than one wide: each fits a terminal of 80 columns.
    """
    console.print(_table("Time and accuracy", TIME_COLUMNS, comparison["arms"]))
    console.print()
    console.print(_table("Storage and fairness", STORAGE_COLUMNS, comparison["arms"]))
    console.print()
    for line in notes(comparison):
        console.print(Text(line))
    console.print()
    legend = Table.grid(padding=(0, 2))
    for column in COLUMNS:
        legend.add_row(Text(column.title, style="bold"), Text(column.legend, style="dim"))
    console.print(legend)


def _table(title: str, columns: Sequence[Column], arms: Sequence[Row]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("arm", overflow="fold")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    kinds = [arm["kind"] for arm in arms]
    for position, arm in enumerate(arms):
        table.add_row(Text(label(arm)), *(Text(column.show(arm)) for column in columns))
        if kinds[position : position + 2] != kinds[position : position + 1] * 2:
            table.add_section()
    return table
