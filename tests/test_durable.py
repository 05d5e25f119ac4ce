"""Folders that are made while others make and delete them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.durable import make_folder


def test_a_folder_that_another_process_made_and_deleted_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, mkdir = [], Path.mkdir

    def overtaken(self: Path, mode: int = 0o777) -> None:
        made.append(self)
        if len(made) == 1:
            raise FileExistsError(17, "File exists", str(self))
        mkdir(self, mode)

    monkeypatch.setattr(Path, "mkdir", overtaken)
    make_folder(tmp_path / "day")
    assert (tmp_path / "day").is_dir()


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "day").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "day")
