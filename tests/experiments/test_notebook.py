"""The notebook: it runs on any comparison, shows the figures, and is stored without outputs."""

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

FILE = Path(experiments.__file__).parent / "notebooks" / "run_folder.ipynb"
NAMED = 'RUNS = "../../runs/demo"'
LIMIT_S = 120


def notebook() -> Any:
    return nbformat.read(FILE, as_version=4)  # type: ignore[no-untyped-call]


def codes(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[list[Any]]]:
    """Run the notebook on a folder and return what each of its code cells shows."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))

    def run(folder: Path) -> list[list[Any]]:
        book = notebook()
        first = codes(book)[0]
        assert first.source == NAMED
        first.source = f"RUNS = {str(folder)!r}"
        here = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(book, timeout=LIMIT_S, resources=here).execute()
        return [list(cell.outputs) for cell in codes(book)]

    return run


def test_it_is_stored_without_outputs() -> None:
    book = notebook()
    nbformat.validate(book)
    for cell in codes(book):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.slow
def test_it_shows_the_figures_of_a_comparison(
    tiny_file: Path, tmp_path: Path, shown: Callable[[Path], list[list[Any]]]
) -> None:
    assert main(["compare", str(tiny_file), "--seeds", "2", "--out", str(tmp_path / "runs")]) == 0
    outputs = shown(tmp_path / "runs")
    everything = [output for cell in outputs for output in cell]
    assert all(output.output_type == "display_data" for output in everything)
    drawn = ["image/png" in output.data for output in everything]
    assert sum(drawn) == 4 + 4  # as published, and by hand
    texts = "".join(output.data.get("text/html", "") for output in everything)
    for name in ("one", "two", "to target", "hits", "compute_s", "explore"):
        assert name in texts
    words = "".join(output.data.get("text/markdown", "") for output in everything)
    assert "two, seed 1" in words
    assert "I/O : compute" in words


@pytest.mark.slow
def test_without_a_run_it_says_what_to_do(
    tmp_path: Path, shown: Callable[[Path], list[list[Any]]]
) -> None:
    outputs = shown(tmp_path / "nothing")
    (said,) = [output for cell in outputs for output in cell]
    words = said.data["text/markdown"]
    assert re.search(r"no finished run in .*nothing", words)
    assert "make demo" in words
