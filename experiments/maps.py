"""Maps: the same comparison in the cells of several axes; which runs it takes, what they show.

The cell that changes nothing is shared by the axes: its runs are those of the cell `base`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.compare import Job, Plan, check_folders, jobs_of
from experiments.doctor import check_experiment
from experiments.figures import arm_name, compare_json
from fedio.config import Axis, Experiment
from fedio.errors import InputError
from fedio.loading import with_values
from fedio.plugins import unknown
from fedio.runs import Row, Run

MAP_FILE = "map.toml"
PAGE_FILE = "report.md"
OWN_FILES = (MAP_FILE, PAGE_FILE)
BASE = "base"
RESERVED = {BASE, "report", *OWN_FILES}
"""What a map's folder has besides the folders of its axes."""
CHANGEABLE = {
    "data", "model", "training", "timing", "fleet", "availability", "cache", "rounds", "faults",
    "arms",
}  # fmt: skip
"""What cells may change: with another seed, clock or reference they would not compare."""
TARGET = "compare.target_accuracy"


def plan(experiment: Experiment, out: Path, *, axes: Sequence[str], seeds: int | None) -> Plan:
    """Return the runs that a map needs: in all cells those of the first seed, then of the next.

    Args:
        experiment: axes and cells are in its `map` section.
        out: the folder for all of it.
        axes: which axes; none are all.
        seeds: how many seeds every arm has, instead of what the `compare` section says.

    Raises:
        InputError: there is no map or no such axis, a cell is not possible, or a folder holds
            something else.
    """
    known = experiment.map.axes
    if not known:
        raise InputError(f"{experiment.name} has no map: add [map.axes.NAME], or use fedio compare")
    for name in RESERVED & known.keys():
        raise InputError(f"map.axes.{name}: the map's own files have that name; take another")
    for name in axes:
        if name not in known:
            raise InputError(f"--axis: {unknown('axis', name, known)}")
    for name in axes or known:
        if list(known[name].cells) == [known[name].base]:
            raise InputError(f"map.axes.{name}: it has only the cell that changes nothing; add one")
    jobs = _base_jobs(experiment, axes or list(known), out, seeds)
    for name in dict.fromkeys(axes or known):
        for cell in known[name].cells:
            if cell != known[name].base:
                jobs += _cell_jobs(experiment, (name, cell), out, seeds)
    jobs.sort(key=lambda job: job.experiment.seed)
    made = Plan(experiment, jobs, out / MAP_FILE)
    check_folders(made)
    return made


def _base_jobs(
    experiment: Experiment, axes: Iterable[str], out: Path, seeds: int | None
) -> list[Job]:
    """Return the runs of the cell that axes share: of all arms that one of them has."""
    shared = [axis for name in axes if (axis := experiment.map.axes[name]).base]
    arms = dict.fromkeys(arm for axis in shared for arm in _arms(experiment, axis))
    if not arms:
        return []
    base = experiment.model_copy(update={"cell": BASE})
    return jobs_of(base, list(arms), out / BASE, seeds)


def _cell_jobs(
    experiment: Experiment, place: tuple[str, str], out: Path, seeds: int | None
) -> list[Job]:
    """Return the runs of one cell, named by its axis and its own name.

    Raises:
        InputError: what the cell changes is not possible.
    """
    name, cell = place
    axis = experiment.map.axes[name]
    changes = axis.cells[cell] | {"cell": f"{name}/{cell}"}
    try:
        for key in axis.cells[cell]:
            if key != TARGET and key.split(".")[0] not in CHANGEABLE:
                raise InputError(
                    f"{key} cannot change in a cell; {TARGET} can, and what is in "
                    + ", ".join(sorted(CHANGEABLE))
                )
        changed = with_values(experiment, changes)
        check_experiment(changed)
        return jobs_of(changed, _arms(changed, axis), out / name / cell, seeds)
    except InputError as error:
        raise InputError(f"map axis {name}, cell {cell}: {error}") from error


def _arms(experiment: Experiment, axis: Axis) -> list[str]:
    return axis.arms or experiment.compare.arms or list(experiment.arms)


def map_json(runs: Iterable[Run]) -> Row:
    """Return the comparison in each cell of each axis, as `fedio map --json` writes it.

    What did not run is left out: cells, and axes of which nothing but the shared cell ran.

    Raises:
        InputError: there are no runs, one is in no cell, or those of a cell do not belong in one
            table.
    """
    cells: dict[str, list[Run]] = {}
    axes: dict[str, Axis] = {}
    for run in runs:
        if not run.experiment.cell:
            raise InputError(f"the run in {run.path} is none of a map; report it apart")
        cells.setdefault(run.experiment.cell, []).append(run)
        for name, axis in run.experiment.map.axes.items():
            axes[name] = _merged(axes.get(name, axis), axis)
    if not cells:
        raise InputError("no runs: name the folder that fedio map wrote")
    experiment = next(iter(cells.values()))[0].experiment
    ran = [name for name in axes if any(cell.startswith(f"{name}/") for cell in cells)]
    rows = [_axis_row(name, axes[name], cells) for name in ran]
    return {
        "schema": 1,
        "preset": experiment.name,
        "reference": experiment.compare.reference or rows[0]["cells"][0]["reference"],
        "axes": rows,
    }


def _merged(one: Axis, other: Axis) -> Axis:
    """Return an axis with the cells of both, in the order and the words of the fuller."""
    if one == other:
        return one
    full, less = (other, one) if len(other.cells) > len(one.cells) else (one, other)
    return full.model_copy(update={"cells": {**full.cells, **less.cells, **full.cells}})


def _axis_row(name: str, axis: Axis, cells: dict[str, list[Run]]) -> Row:
    """Return what is told of an axis, with the figures of its cells."""
    rows = []
    for cell, changes in axis.cells.items():
        shared = cell == axis.base
        runs = cells.get(BASE if shared else f"{name}/{cell}", [])
        if shared:
            runs = [run for run in runs if arm_name(run) in _arms(run.experiment, axis)]
        if runs:
            rows.append({"name": cell, "changes": changes, **compare_json(runs)})
    told = {key: getattr(axis, key) for key in ("title", "question", "regime", "base")}
    return {"name": name, **told, "cells": rows}
