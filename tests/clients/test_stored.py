from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients.datasets import (
    stored,
)
from fedio.errors import InputError


def write_one(folder: Path) -> None:
    (folder / "a.txt").write_text("first")
    (folder / "inner").mkdir()
    (folder / "inner" / "b.txt").write_text("second")
    stored.seal(folder, {"answer": 42})


def test_a_sealed_folder_tells_its_facts_and_a_digest_of_its_content(tmp_path: Path) -> None:
    one = stored.once(tmp_path / "one", write_one, stored.check)
    two = stored.once(tmp_path / "two", write_one, stored.check)
    assert one == two
    assert one.facts == {"answer": 42}


@pytest.mark.parametrize("name", ["a.txt", "inner/b.txt", stored.MANIFEST])
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_damage_is_noticed_and_repaired(tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "data"
    sealed = stored.once(folder, write_one, stored.check)
    file = folder / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if damage == "truncated" else b"#" + content[1:])
        os.utime(file, ns=(0, 0))
    with pytest.raises(stored.DamagedError):
        stored.check(folder)
    assert stored.once(folder, write_one, stored.check) == sealed
    assert file.read_text()[:1] in "fs{"


def test_a_file_whose_time_alone_changed_is_trusted_after_reading_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    sealed = stored.once(folder, write_one, stored.check)
    os.utime(folder / "a.txt", ns=(0, 0))
    assert stored.check(folder) == sealed


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        write_one(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored.once(tmp_path / "data", interrupted, stored.check)
    assert [path.name for path in tmp_path.iterdir()] == ["data.lock"]


def test_what_a_killed_build_left_is_not_used(tmp_path: Path) -> None:
    left = tmp_path / "data.partial"
    left.mkdir()
    write_one(left)
    (left / "half").write_text("written")
    stored.once(tmp_path / "data", write_one, stored.check)
    assert not left.exists()
    assert not (tmp_path / "data" / "half").exists()


def test_of_many_at_once_one_builds(tmp_path: Path) -> None:
    builds: list[Path] = []

    def counted(folder: Path) -> None:
        builds.append(folder)
        write_one(folder)

    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(stored.once, tmp_path / "data", counted, stored.check) for _ in range(8)
        ]
    assert {job.result().digest for job in jobs} == {stored.check(tmp_path / "data").digest}
    assert len(builds) == 1


def test_a_folder_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write .*data\.folder"):
        stored.once(tmp_path / "file" / "data", write_one, stored.check)
    assert (tmp_path / "file").read_text() == "in the way"
