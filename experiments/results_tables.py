"""The tables of the page of results: setting, arms, figures, and the cells of an axis."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.columns import TIME_COLUMNS, tables
from experiments.setting import setting_clauses
from experiments.side_tables import TextTable, side_tables
from experiments.table import label
from experiments.units import NOTHING, ratio, seconds
from fedio.config import Arm, Spec
from fedio.runs import Row

# What makes an arm, in the order of its table; the rest is told where an arm has it.
PARTS = ("kind", "selector", "policy", "sampler", "prefetch")

SPEEDUP = next(column for column in TIME_COLUMNS if column.title == "speed-up")


def setting_table(comparison: Row) -> TextTable:
    """Return what all arms share."""
    rows = [[about, clause] for about, clause in setting_clauses(comparison).items()]
    return TextTable("Setting", ["what", "how"], rows, [])


def arm_table(arms: Mapping[str, Arm]) -> TextTable:
    """Return what each arm is made of."""
    plain = Arm()
    others = [
        key
        for key in Arm.model_fields
        if key not in PARTS
        and any(getattr(arm, key) != getattr(plain, key) for arm in arms.values())
    ]
    keys = [*PARTS, *others]
    rows = [[name, *(_text(getattr(arm, key)) for key in keys)] for name, arm in arms.items()]
    return TextTable("Arms", ["arm", *(key.replace("_", " ") for key in keys)], rows, [])


def _text(value: object) -> str:
    """Return a part of an arm as a cell has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Spec) and value.args:
        return f"{value.name}({', '.join(f'{key}={given}' for key, given in value.args.items())})"
    return value.name if isinstance(value, Spec) else str(value)


def figure_tables(comparison: Row) -> list[TextTable]:
    """Return the figures of all arms, and what is beside them."""
    arms = comparison["arms"]
    shown = [
        TextTable(
            title,
            ["arm", *(column.title for column in columns)],
            [[label(arm), *(column.show(arm) for column in columns)] for arm in arms],
            [],
        )
        for title, columns in tables(arms).items()
    ]
    return shown + side_tables(comparison)


def cell_table(axis: Row) -> TextTable:
    """Return how much faster arms are in each cell of an axis, and what it changes."""
    cells = axis["cells"]
    reference = cells[0]["reference"]
    names = dict.fromkeys(arm["name"] for cell in cells for arm in cell["arms"])
    others = [name for name in names if name != reference]
    rows = []
    for cell in cells:
        arms = {arm["name"]: arm for arm in cell["arms"]}
        changes = ", ".join(f"{key} = {value}" for key, value in cell["changes"].items())
        rows.append(
            [
                cell["name"],
                changes or "nothing",
                ratio(cell["io_to_compute"]),
                seconds(arms[reference]["time_to_target_s"]) if reference in arms else NOTHING,
                *(SPEEDUP.show(arms[name]) if name in arms else NOTHING for name in others),
            ]
        )
    labels = {arm["name"]: label(arm) for cell in cells for arm in cell["arms"]}
    headings = ["cell", "changes", "I/O : compute", f"{reference} to target"]
    headings += [labels[name] for name in others]
    return TextTable(axis["title"], headings, rows, [])
