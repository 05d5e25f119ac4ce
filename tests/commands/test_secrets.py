"""``gateway secrets new``, and what is said where the file is missing."""

from __future__ import annotations

import os
from base64 import b64decode
from pathlib import Path

from gateway import commands
from gateway.webhooks.settings.secrets import load_seals
from tests.commands.conftest import Run


def test_a_new_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    before = os.umask(0)
    try:
        result = run("secrets", "new", str(path))
    finally:
        os.umask(before)
    assert (result.exit_code, result.stdout) == (commands.DONE, ""), result.stderr
    assert str(path) in result.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(b64decode(path.read_text().strip(), validate=True)) == 32
    assert len(load_seals(str(path), tmp_path / "none").names) == 1


def test_a_file_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    path.write_text("precious")
    result = run("secrets", "new", str(path))
    assert result.exit_code == commands.FAILED
    assert f"{path} exists; it was not changed" in result.stderr
    assert path.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert run("secrets", "new", str(link)).exit_code == commands.FAILED
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_file_it_is_that_of_the_configuration(run: Run, tmp_path: Path) -> None:
    config, path = tmp_path / "gateway.toml", tmp_path / "seal.key"
    config.write_text(f'[ledger]\nsecrets_file = "{path}"\n')
    assert run("secrets", "new", "--config", str(config)).exit_code == commands.DONE
    assert path.exists()
    config.write_text("")
    result = run("secrets", "new", "--config", str(config))
    assert result.exit_code == commands.USAGE
    assert "ledger.secrets_file" in result.stderr


def test_a_folder_that_is_not_there(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "none" / "seal.key"
    result = run("secrets", "new", str(path))
    assert result.exit_code == commands.FAILED
    assert f"{path}: No such file or directory" in result.stderr


def test_a_file_that_is_missing_is_named_with_the_way_out(run: Run, tmp_path: Path) -> None:
    """The command that the text names makes it."""
    config, path, data = tmp_path / "gateway.toml", tmp_path / "a seal.key", tmp_path / "data"
    config.write_text(f'data_dir = "{data}"\n[ledger]\nsecrets_file = "{path}"\n')
    said = f"ledger.secrets_file: {path}: No such file or directory."
    way_out = f"gateway secrets new '{path}'"
    migrated = run("migrate", "--config", str(config))
    assert migrated.exit_code == commands.DONE
    assert said in migrated.stderr
    assert way_out in migrated.stderr
    listed = run("secrets", "list", "--config", str(config))
    assert listed.exit_code == commands.USAGE
    assert said in listed.stderr
    assert way_out in listed.stderr
    assert run("secrets", "new", str(path)).exit_code == commands.DONE
    assert run("migrate", "--config", str(config)).stderr == "The ledger is up to date.\n"
    assert run("secrets", "list", "--config", str(config)).exit_code == commands.DONE
