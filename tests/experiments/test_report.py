"""The report holds everything in one file, and exports read back as they were written."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from experiments import report
from experiments.columns import tables
from experiments.figures import compare_json
from fedio.errors import InputError
from fedio.output import dumps
from fedio.runs import TELEMETRY_FILE, Run, read_run
from tests.experiments.synthetic_runs import (
    client_row,
    experiment,
    round_row,
    staged_row,
    telemetry_rows,
    write_emulated,
    write_run,
)

PROBLEM = "ValueError: <script>alert(1)</script>"


class Page(HTMLParser):
    """What a page refers to, its texts, and whether its tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for key, value in attrs if key in {"src", "href"}]
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    rounds = [
        round_row(0, 0.0, 0.1),
        round_row(
            1, 20.0, None, selected=[0, 1], counted=[0], failed=[1], not_selected={"busy": 2}
        ),
    ]
    clients = [
        client_row(1, 0, requests=10, hits=5, misses=5, details={"score": 0.5}, duration_s=20.0,
                   predicted_s=18.0, compute_s=7.25),
        client_row(1, 1, "failed", problem=PROBLEM, details={"score": 0.75}),
    ]  # fmt: skip
    return [
        read_run(write_run(tmp_path / f"{position}", experiment(arm), rounds, clients))
        for position, arm in enumerate(("uniform+lru", "oort+lru"))
    ]


def test_the_report_is_one_file_with_everything(runs: list[Run], tmp_path: Path) -> None:
    comparison = compare_json(runs, target=0.6)
    path = report.write(runs, tmp_path / "out", comparison)
    columns = [column for group in tables(comparison["arms"]).values() for column in group]
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    assert len(page.references) == 4 + len(runs)  # and a timeline of each arm
    assert all(one.startswith("data:image/svg+xml;base64,") for one in page.references)
    text = " ".join("".join(page.texts).split())
    for expected in (
        "fedio compare made-up", "AVX2", "0123abc", "fedio 0.1.0, torch 2.14.1",
        "Target accuracy 60.0%; seeds 0.", "Seconds are virtual",
        "Download, stall, compute and upload add up to the duration",
        "The hit ratio is demand hits over requests", "never interpolated",
        *(column.title for column in columns), *(column.legend for column in columns),
    ):  # fmt: skip
        assert expected in text
    assert text.count("What this does not show.") == len(page.references)
    assert "uniform+lru, seed 0: 1 rounds" in text
    assert (
        "Round 1: 20.0 s, from 0.0 s to 20.0 s; wanted 2, selected 2 (1 counted, 1 failed)" in text
    )
    assert "explore, score 0.5" in text
    assert "18.0 s" in text
    assert "7.2 s" in text
    assert "Not selected: 2 busy." in text


def test_staging_is_explained_and_listed_where_there_is_some(
    runs: list[Run], tmp_path: Path
) -> None:
    rounds = [
        round_row(0, 0.0, 0.1, staged=[]),
        round_row(1, 20.0, None, staged=[staged_row(3, 12.5, origin_bytes=2_500_000)]),
    ]
    config = experiment("staged", chosen={"staging": True})
    staged = read_run(write_run(tmp_path / "staged", config, rounds))
    texts = []
    for name, some in (("plain", runs), ("with", [staged])):
        path = report.write(some, tmp_path / name, compare_json(some))
        texts.append(" ".join(" ".join(Page(path.read_text(encoding="utf-8")).texts).split()))
    plain, with_staging = texts
    assert "Staged for round" not in plain
    assert "Staging." not in plain
    assert "the clients of the next one are named" in with_staging
    assert "Staged for round 2 by who was idle" in with_staging
    assert "3 12.5 s 6.2 s 160 20 30 2.5 MB 120 MB" in with_staging


def test_only_the_first_seed_of_an_arm_has_a_timeline(runs: list[Run], tmp_path: Path) -> None:
    rounds = [round_row(0, 0.0, 0.1), round_row(1, 20.0, None)]
    config = experiment("uniform+lru", seed=1)
    more = [*runs, read_run(write_run(tmp_path / "more", config, rounds))]
    path = report.write(more, tmp_path / "out", compare_json(more))
    assert len(Page(path.read_text(encoding="utf-8")).references) == 4 + 2


def test_emulated_runs_are_told_with_clock_error_faults_and_processes(tmp_path: Path) -> None:
    run = read_run(write_emulated(tmp_path / "run"))
    with (run.path / TELEMETRY_FILE).open("w") as file:
        file.writelines(dumps(row) + "\n" for row in telemetry_rows())
    comparison = compare_json([run])
    path = report.write([run], tmp_path / "out", comparison)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    assert len(page.references) == 4 + 1 + 1
    text = " ".join(" ".join(page.texts).split())
    for expected in (
        "Seconds are device time", "The virtual clock's error", "The same by device",
        "Faults on purpose kill", "Faults on purpose", "superlink 1 100 MB 1.50 s 0.00 s",
        "device 2 400 MB 7.00 s 0.00 s 3 MB 4 kB 0.50 s 1", "Telemetry took 0.4% of a core",
    ):  # fmt: skip
        assert expected.replace(" kill", "") in text
    assert "Seconds are virtual" not in text
    assert " kill " in text


def test_telemetry_is_exported_as_a_third_table(tmp_path: Path) -> None:
    run = read_run(write_emulated(tmp_path / "run"))
    with (run.path / TELEMETRY_FILE).open("w") as file:
        file.writelines(dumps(row) + "\n" for row in telemetry_rows())
    for form, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        files = report.export([run], tmp_path / form, form)
        assert [file.name for file in files] == [
            f"rounds.{form}", f"clients.{form}", f"telemetry.{form}",
        ]  # fmt: skip
        frame = read(files[-1])
        assert list(frame["what"]) == [row["what"] for row in telemetry_rows()]
        devices = frame[(frame["what"] == "process") & (frame["kind"] == "device")]
        assert list(devices["read_bytes"].dropna()) == [1_000_000, 2_000_000, 1_000_000]


def test_what_comes_from_runs_is_escaped(runs: list[Run], tmp_path: Path) -> None:
    path = report.write(runs, tmp_path / "out", compare_json(runs))
    page = Page(path.read_text(encoding="utf-8"))
    assert not {"script", "b"} & page.tags
    assert page.texts.count(PROBLEM) == 2


def test_equal_runs_give_an_equal_report(runs: list[Run], tmp_path: Path) -> None:
    one = report.write(runs, tmp_path / "one", compare_json(runs))
    two = report.write(runs[::-1], tmp_path / "two", compare_json(runs))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("form", report.FORMATS)
def test_exports_read_back(runs: list[Run], tmp_path: Path, form: str) -> None:
    files = report.export(runs, tmp_path / "out", form)
    assert [file.name for file in files] == [f"rounds.{form}", f"clients.{form}"]
    read = pd.read_csv if form == "csv" else pd.read_parquet
    rounds, clients = read(files[0]), read(files[1])
    assert list(rounds["arm"]) == ["uniform+lru", "uniform+lru", "oort+lru", "oort+lru"]
    assert list(rounds["round"]) == [0, 1, 0, 1]
    assert [json.loads(cell) for cell in rounds["selected"]][:2] == [[], [0, 1]]
    assert rounds["not_selected.busy"][1] == 2
    assert list(clients["details.score"]) == [0.5, 0.75, 0.5, 0.75]
    assert clients["hits"][0] == 5
    assert pd.isna(clients["hits"][1])
    assert clients["problem"][1] == PROBLEM
    assert clients["duration_s"][0] == 20.0


def test_exports_keep_whole_numbers_whole(runs: list[Run], tmp_path: Path) -> None:
    _, clients = report.export(runs, tmp_path, "parquet")
    frame = pd.read_parquet(clients)
    assert frame["hits"].dtype == "Int64"
    assert frame["duration_s"].dtype == "float64"


def test_runs_without_participations_export_too(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", experiment(), [round_row(0, 0.0, 0.1)]))
    for form in report.FORMATS:
        assert all(file.is_file() for file in report.export([run], tmp_path / form, form))


def test_bad_requests(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose from csv, parquet"):
        report.export(runs, tmp_path, "xlsx")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another --out"):
        report.export(runs, tmp_path / "file", "csv")
    with pytest.raises(InputError, match="name another --out"):
        report.write(runs, tmp_path / "file", compare_json(runs))
