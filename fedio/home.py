"""Where a run lives: the folder that the ServerApp writes and its devices keep their caches in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from fedio.config import Experiment
from fedio.loading import find
from fedio.output import reserved
from fedio.runs import CACHES_FOLDER, CONFIG_FILE, RunFolder

RUNS_FOLDER = "runs"


def run_name(experiment: Experiment) -> str:
    """Return what the folder of a run is called where nobody named one: NAME-ARM-SEED-HASH."""
    chosen = experiment.for_arm()
    return f"{chosen.name}-{chosen.arm}-s{chosen.seed}-{chosen.digest[:6]}"


def home_of(source: str, experiment: Experiment) -> Path:
    """Return the folder of a run that Flower's run config describes.

    A `config.toml` is that of a run folder, which an engine made: the run lives beside it. A preset
    or another file says what to run and not where: the run lives in `runs/NAME-ARM-SEED-HASH` under
    the directory that the SuperLink (for the server) or the SuperNode (for a device) was started
    in. In simulation that is the SuperLink's for both.

    Args:
        source: the run config's `experiment`, a preset's name or a file.
        experiment: what it stands for, with the run config's overrides.
    """
    file = find(source)
    return file.parent if _is_of_a_run(file) else Path.cwd() / RUNS_FOLDER / run_name(experiment)


@contextmanager
def open_home(source: str, experiment: Experiment) -> Iterator[RunFolder]:
    """Open the run folder to write; one that no engine looks after is made, its caches cleared.

    Raises:
        InputError: the folder cannot be made, holds something else, or is being written to.
    """
    home = home_of(source, experiment)
    if _is_of_a_run(find(source)):
        yield RunFolder(home)
        return
    with reserved(home):
        folder = RunFolder.create(home, experiment.for_arm())
        with cleared(folder, keep_caches=experiment.cache.keep):
            yield folder


@contextmanager
def cleared(folder: RunFolder, *, keep_caches: bool) -> Iterator[None]:
    """Have devices find no caches in a run's folder, and leave nothing there but what is kept.

    A run that goes on after an interruption finds everything, and one that is interrupted leaves
    everything, as long as it has a checkpoint to go on from.

    Raises:
        InputError: it has one, and caches are gone.
    """
    if folder.is_begun:
        folder.check_caches()
    else:
        rmtree(folder.path / CACHES_FOLDER, ignore_errors=True)
    try:
        yield
    finally:
        folder.tidy(keep_caches=keep_caches)


def _is_of_a_run(file: Path) -> bool:
    return file.name == CONFIG_FILE
