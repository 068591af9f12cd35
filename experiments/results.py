"""The page of results: one Markdown file from the run folders of comparisons and of maps.

The page says nothing of its own about what was found: conclusions come from a file of words. From
equal runs comes an equal page, but for the lines on cost, the only ones with wall-clock time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import jinja2

from experiments import map_plots, plots
from experiments.captions import AXIS, CAPTIONS, RATIOS, Caption
from experiments.columns import COLUMNS
from experiments.drawing import save
from experiments.figures import compare_json, group_by_arm
from experiments.maps import map_json
from experiments.notes import notes
from experiments.origin import Origin, origin
from experiments.results_tables import SPEEDUP, arm_table, cell_table, figure_tables, setting_table
from experiments.setting import setting_clauses
from experiments.side_tables import TextTable
from fedio.config import Experiment
from fedio.errors import InputError
from fedio.loading import load
from fedio.output import write_text
from fedio.runs import CONFIG_FILE, Row, Run, read_run

logger = logging.getLogger(__name__)

TEMPLATE_FILE = "results.md.j2"
SUFFIX = ".md"
ORDER = ("headline", "published", "published-artifact", "map")
"""The experiments that come first; others follow by name."""
NOTHING_NEW: Mapping[Path, Experiment] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot on the page: its file, as the page refers to it, and the words under it."""

    name: str
    file: str
    caption: Caption


@dataclass(frozen=True, slots=True)
class AxisPart:
    """What the page has on an axis of a map."""

    title: str
    question: str
    regime: str
    plot: Picture | None
    table: TextTable
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Part:
    """What the page has on an experiment: a comparison, or a map with its axes."""

    name: str
    description: str
    words: str
    setting: TextTable
    arms: TextTable
    notes: list[str]
    plots: list[Picture]
    origin: Origin
    tables: list[TextTable] = field(default_factory=list)
    axes: list[AxisPart] = field(default_factory=list)


def write(
    folders: Iterable[Path],
    page: Path,
    words: Mapping[str, str],
    said_now: Mapping[Path, Experiment] = NOTHING_NEW,
) -> None:
    """Write the page, and its plots into a folder beside it that is named like it.

    Args:
        folders: run folders, of any number of comparisons and maps.
        page: the file, named `*.md`.
        words: what each experiment says, by its name.
        said_now: the experiments of some runs where words in them, or the target, are others than
            when the runs were made.

    Raises:
        InputError: the file has another ending, runs do not belong together, or it cannot be
            written.
    """
    if page.suffix != SUFFIX:
        raise InputError(f"--markdown {page}: the page's file is named *{SUFFIX}")
    found = by_experiment(folders)
    for name in sorted(words.keys() - found.keys()):
        logger.warning("words on %s are left out: there are no runs of it", name)
    # One experiment at a time: the runs of all of them may not fit into memory.
    parts = [
        _part(name, [_read(path, said_now) for path in same], page, words.get(name, ""))
        for name, same in found.items()
    ]
    try:
        write_text(page, _render(parts))
    except OSError as error:
        raise InputError(f"cannot write {page}: {error.strerror}; name another file") from error


def _read(path: Path, said_now: Mapping[Path, Experiment]) -> Run:
    run = read_run(path)
    return replace(run, experiment=said_now.get(path, run.experiment))


def _render(parts: Sequence[Part]) -> str:
    """Return the page's text."""
    environment = jinja2.Environment(  # noqa: S701 - Markdown, and no HTML
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda text: text.replace("|", "\\|")
    environment.filters["line"] = lambda text: " ".join(text.split()).replace("<", "&lt;")
    shown = {heading for part in parts for table in part.tables for heading in table.headings}
    shown.add(SPEEDUP.title)
    legends = {column.title: column.legend for column in COLUMNS if column.title in shown}
    text = environment.get_template(TEMPLATE_FILE).render(parts=parts, legends=legends)
    # Parts that are left out leave no gaps.
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def by_experiment(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the run folders of each experiment, in the order of the page.

    One that was both compared and mapped is two: NAME, and NAME.map, which no experiment is called.
    """
    whole: dict[tuple[str, bool], list[Path]] = {}
    for folder in sorted(folders):
        experiment = load(folder / CONFIG_FILE)
        whole.setdefault((experiment.name, bool(experiment.cell)), []).append(folder)
    found = {
        f"{name}.map" if in_map and (name, False) in whole else name: same
        for (name, in_map), same in whole.items()
    }
    first = [name for name in ORDER if name in found]
    return {name: found[name] for name in [*first, *sorted(found.keys() - set(first))]}


def read_words(file: Path) -> dict[str, str]:
    """Return the text below each heading `## NAME` of a file; what is above them is left out.

    Raises:
        InputError: the file cannot be read, has no such heading, or one of them twice.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {file}: {why}") from error
    sections: dict[str, list[str]] = {}
    name, in_code = "", False
    for line in lines:
        in_code ^= line.startswith("```")
        if line.startswith("## ") and not in_code:
            name = line.removeprefix("## ").strip()
            if name in sections:
                raise InputError(f"{file} has words on {name} twice: put them together")
            sections[name] = []
        elif name:
            sections[name].append(line)
    if not sections:
        raise InputError(f"{file} has no words: put them below headings such as ## headline")
    return {name: "\n".join(lines).strip() for name, lines in sections.items()}


def _part(name: str, runs: Sequence[Run], page: Path, words: str) -> Part:
    """Return what the page has on one experiment, and draw its plots."""
    make = _map if runs[0].experiment.cell else _comparison
    return make(name, runs, page, words)


def _comparison(name: str, runs: Sequence[Run], page: Path, words: str) -> Part:
    arms, comparison = group_by_arm(runs), compare_json(runs)
    experiment = runs[0].experiment
    files = _draw(plots.comparing(arms, comparison), name, page)
    return Part(
        name=name,
        description=experiment.description,
        words=words,
        setting=setting_table(comparison),
        arms=arm_table({arm: same[0].experiment.chosen for arm, same in arms.items()}),
        notes=_notes(comparison),
        plots=[Picture(plot, file, CAPTIONS[plot]) for plot, file in files.items()],
        origin=origin(runs),
        tables=figure_tables(comparison),
    )


def _map(name: str, runs: Sequence[Run], page: Path, words: str) -> Part:
    figures, experiment = map_json(runs), runs[0].experiment
    files = _draw(map_plots.comparing(figures), name, page)
    cells = [cell for one in figures["axes"] for cell in one["cells"]]
    if not cells:
        raise InputError(
            f"the map {experiment.name} has runs in the cell that its axes share, and in no other: "
            "run an axis, or name the folder of the whole map"
        )
    shared = [
        cell for one in figures["axes"] for cell in one["cells"] if cell["name"] == one["base"]
    ]
    everywhere = [line for line in _notes(cells[0]) if all(line in _notes(cell) for cell in cells)]
    which = "that changes nothing" if shared else f"{cells[0]['name']} of the first axis"
    whose = f"This is the cell {which}; each axis says what its others change."
    chosen = {run.experiment.arm: run.experiment.chosen for run in runs}
    ratios = files.get(map_plots.RATIOS)
    return Part(
        name=name,
        description=experiment.description,
        words=words,
        setting=replace(setting_table((shared or cells)[0]), notes=[whose]),
        arms=arm_table({arm: chosen[arm] for arm in experiment.arms if arm in chosen}),
        notes=everywhere,
        plots=[] if ratios is None else [Picture(map_plots.RATIOS, ratios, RATIOS)],
        origin=origin(runs),
        axes=[_axis(one, files, everywhere) for one in figures["axes"]],
    )


def _axis(one: Row, files: Mapping[str, str], said: Sequence[str]) -> AxisPart:
    name = f"{map_plots.AXIS}{one['name']}"
    where: dict[str, list[str]] = {}
    for cell in one["cells"]:
        for line in _notes(cell):
            if line not in said:
                where.setdefault(line, []).append(cell["name"])
    return AxisPart(
        title=one["title"],
        question=one["question"],
        regime=one["regime"],
        plot=Picture(name, files[name], AXIS) if name in files else None,
        table=cell_table(one),
        notes=[f"{', '.join(cells)}: {line}" for line, cells in where.items()],
    )


def _notes(comparison: Row) -> list[str]:
    """Return the lines beside a comparison's tables but those on its setting, a table here."""
    clauses = setting_clauses(comparison).values()
    return [line for line in notes(comparison) if not any(clause in line for clause in clauses)]


def _draw(drawn: plots.Drawn, name: str, page: Path) -> dict[str, str]:
    """Draw plots, and return how the page refers to the file of each."""
    folder = page.with_suffix("")
    files = save({f"{name}-{plot}": draw for plot, draw in drawn.items()}, folder, ["png"])
    named = zip(drawn, files, strict=True)
    return {plot: quote(f"{folder.name}/{file.name}") for plot, file in named}
