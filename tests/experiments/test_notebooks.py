"""The notebooks: they run on any comparison or map, and are stored without outputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import experiments
from experiments.cli import main
from tests.experiments.synthetic_runs import write_map

FILES = sorted((Path(experiments.__file__).parent / "notebooks").glob("*.ipynb"))
NAMED = 'RUNS = "../../runs/demo"'
LIMIT_S = 120
HIDES = "What this does not show."

Show = Callable[[str, Path], list[Any]]


def notebook(file: Path) -> Any:
    return nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]


def codes(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def drawn(outputs: list[Any]) -> int:
    return sum("image/png" in output.data for output in outputs)


def words(outputs: list[Any]) -> str:
    return "".join(output.data.get("text/markdown", "") for output in outputs)


def tables(outputs: list[Any]) -> str:
    return "".join(output.data.get("text/html", "") for output in outputs)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Run a notebook on a folder and return what it shows."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))

    def run(name: str, folder: Path) -> list[Any]:
        book = notebook(FILES[0].with_name(f"{name}.ipynb"))
        first = codes(book)[0]
        assert first.source == NAMED
        first.source = f"RUNS = {str(folder)!r}"
        here = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(book, timeout=LIMIT_S, resources=here).execute()
        outputs = [output for cell in codes(book) for output in cell.outputs]
        assert all(output.output_type == "display_data" for output in outputs)
        return outputs

    return run


@pytest.fixture
def compared(tiny_file: Path, tmp_path: Path) -> Path:
    out = tmp_path / "runs"
    horizon = ["--set", "rounds.horizon_s=20", "--set", "rounds.rounds=50"]
    assert main(["compare", str(tiny_file), "--seeds", "2", *horizon, "--out", str(out)]) == 0
    return out


def test_there_are_some() -> None:
    assert [file.stem for file in FILES] == ["run_folder", "study"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_they_are_stored_without_outputs(file: Path) -> None:
    book = notebook(file)
    nbformat.validate(book)
    for cell in codes(book):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.slow
def test_the_run_folders_of_a_comparison_are_shown(compared: Path, shown: Show) -> None:
    outputs = shown("run_folder", compared)
    assert drawn(outputs) == 4 + 4  # as published, and by hand
    for name in ("one", "two", "to target", "hits", "compute_s", "explore"):
        assert name in tables(outputs)
    assert "two, seed 1" in words(outputs)
    assert "I/O : compute" in words(outputs)


@pytest.mark.slow
def test_the_study_of_a_comparison_is_shown(compared: Path, shown: Show) -> None:
    outputs = shown("study", compared)
    for name in ("one", "two", "to target", "worst_decile_accuracy", "never_selected"):
        assert name in tables(outputs)
    said = words(outputs)
    assert "Target accuracy 10.0%; seeds 0, 1." in said
    assert said.count(HIDES) == 2  # of the figures as published
    assert drawn(outputs) == 2 + 2  # and by hand: equal accuracy, clients
    assert "Expected before" not in said


@pytest.mark.slow
def test_the_study_of_a_map_is_shown(tmp_path: Path, shown: Show) -> None:
    outputs = shown("study", write_map(tmp_path / "map"))
    said = words(outputs)
    assert "**atlas, cell base**: Where does it matter?" in said
    assert said.count(HIDES) == 2 + 3  # two axes, and against I/O : compute
    assert drawn(outputs) == 2 + 1 + 3
    assert "Expected before the first run: Little room levels them." in said
    assert "Nothing to compare" in said
    assert "cache.share = 0.01" in tables(outputs)


def test_figures_made_by_hand_have_their_paragraph_too() -> None:
    cells = notebook(FILES[0].with_name("study.ipynb")).cells
    by_hand = [at for at, cell in enumerate(cells) if "plt.subplots" in cell.source]
    assert len(by_hand) == 2
    assert all(cells[at + 1].source.startswith(f"**{HIDES}**") for at in by_hand)


@pytest.mark.slow
@pytest.mark.parametrize("name", [file.stem for file in FILES])
def test_without_a_run_they_say_what_to_do(tmp_path: Path, shown: Show, name: str) -> None:
    (said,) = shown(name, tmp_path / "nothing")
    assert re.search(r"no finished run in .*nothing", words([said]))
    assert "make demo" in words([said])
