"""The report of a comparison: one HTML file with everything in it; and runs as tables of data."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from experiments import plots
from experiments.captions import CAPTIONS, TIMELINE
from experiments.columns import tables
from experiments.explain import BUSY, PHASES, STAGED, exact, explain_run
from experiments.figures import arm_name
from experiments.side_tables import side_tables, telemetry_table
from experiments.table import label, notes
from experiments.telemetry import read as read_telemetry
from experiments.telemetry import summarise
from fedio.errors import InputError
from fedio.runs import Row, Run

REPORT_FILE = "report.html"
TEMPLATE_FILE = "report.html"
FORMATS = ("csv", "parquet")

# What is exported: name -> the rows of a run.
TABLES: dict[str, Callable[[Run], list[Row]]] = {
    "rounds": lambda run: run.rounds,
    "clients": lambda run: run.clients,
    "telemetry": lambda run: read_telemetry(run.path),
}


def write(runs: Sequence[Run], folder: Path, comparison: Row) -> Path:
    """Write the plots and `report.html` into `folder`, and return the report's path.

    Args:
        runs: the runs that were compared; each gets a section that explains its rounds.
        folder: made if it is not there.
        comparison: what `compare_json` returned for them.

    Raises:
        InputError: the folder cannot be written.
    """
    files = plots.write(_in_order(runs, comparison), folder, comparison)
    images = {file.stem: file for file in files if file.suffix == ".svg"}
    path = folder / REPORT_FILE
    try:
        path.write_text(render(runs, comparison, images), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; name another --out") from error
    return path


def render(runs: Sequence[Run], comparison: Row, images: Mapping[str, Path]) -> str:
    """Return the report as HTML, with the images (SVG files by name) in it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [
        {"source": _data_url(images[name]), "caption": caption}
        for name, caption in CAPTIONS.items()
        if name in images
    ]
    in_order = _in_order(runs, comparison)
    first = {arm_name(run): run for run in reversed(in_order)}
    sections = [_section(run, images if first[arm_name(run)] is run else {}) for run in in_order]
    return environment.get_template(TEMPLATE_FILE).render(
        comparison=comparison,
        notes=notes(comparison),
        tables=tables(comparison["arms"]),
        label=label,
        figures=figures,
        sections=sections,
        sides=side_tables(comparison),
        config=in_order[0].experiment.to_toml(),
        phases=PHASES,
        busy=BUSY,
        staged=STAGED,
        exact=exact,
        timeline_caption=TIMELINE,
    )


def _section(run: Run, images: Mapping[str, Path]) -> Row:
    """Return what the report tells of one run; with a timeline if it is among the images."""
    timeline = images.get(f"{plots.TIMELINE}{arm_name(run)}")
    summary = summarise(read_telemetry(run.path))
    return {
        "run": run,
        "arm": arm_name(run),
        "rounds": explain_run(run),
        "timeline": None if timeline is None else _data_url(timeline),
        "telemetry": None if summary is None else telemetry_table(summary),
    }


def export(runs: Sequence[Run], folder: Path, form: str) -> list[Path]:
    """Write the rounds and the participations of all runs as tables, and return the files.

    Where a run has telemetry, that is a third one.

    Each row starts with the run's name, arm and seed. Tables within a row become columns of their
    own (`details.score`); lists become JSON.

    Args:
        runs: any runs.
        folder: made if it is not there.
        form: `csv` or `parquet`.

    Raises:
        InputError: another form, or the folder cannot be written.
    """
    if form not in FORMATS:
        raise InputError(f"cannot export {form!r}: choose from {', '.join(FORMATS)}")
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows_of in TABLES.items():
            frame = _frame((run, row) for run in runs for row in rows_of(run))
            if name == "telemetry" and frame.empty:
                continue
            files.append(folder / f"{name}.{form}")
            if form == "csv":
                frame.to_csv(files[-1], index=False)
            else:
                frame.to_parquet(files[-1], index=False)
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror}; name another --out"
        ) from error
    return files


def _in_order(runs: Sequence[Run], comparison: Row) -> list[Run]:
    """Return the runs in the order of the table."""
    names = [arm["name"] for arm in comparison["arms"]]
    return sorted(runs, key=lambda run: (names.index(arm_name(run)), run.experiment.seed))


def _data_url(path: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()


def _frame(rows: Iterable[tuple[Run, Row]]) -> pd.DataFrame:
    """Return rows as a frame; whole numbers stay whole where some are missing."""
    flat = [
        {"name": run.experiment.name, "arm": arm_name(run), "seed": run.experiment.seed}
        | _flat(row)
        for run, row in rows
    ]
    frame = pd.DataFrame(flat)
    for column in frame.columns:
        values = [row[column] for row in flat if row.get(column) is not None]
        if values and all(type(value) is int for value in values):
            frame[column] = frame[column].astype("Int64")
    return frame


def _flat(row: Row) -> Row:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": inside for inner, inside in value.items()}
        else:
            flat[key] = json.dumps(value) if isinstance(value, list) else value
    return flat
