"""The README's code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import storage

README = Path(storage.__file__).with_name("README.md")


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)  # noqa: S102 - ours
    cached, *replayed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert int(cached[0]) > 1000
    assert float(cached[1]) > 0.85
    hits = {name: int(count) for name, count in replayed}
    assert hits.keys() == {"lru", "sieve", "static", "bound"}
    assert max(hits, key=hits.__getitem__) == "bound"
