"""``gateway demo``: the main job, and what happens when it does not work."""

from __future__ import annotations

import json
import os
import stat
import sys
from itertools import permutations
from pathlib import Path

import pytest

from gateway import commands
from gateway.commands import Failure, demo
from gateway.versions import VERSION_NAMES
from tests.commands.conftest import Canned, Run

PAIRS = len(VERSION_NAMES) * (len(VERSION_NAMES) - 1)


def test_the_main_job_over_every_pair_of_versions(run: Run) -> None:
    result = run("demo")
    assert result.exit_code == 0, result.stderr
    for source, target in permutations(VERSION_NAMES, 2):
        assert f"Published through AMQP {source}, pulled through AMQP {target}" in result.stdout
    assert f"{PAIRS} messages, none lost, none changed." in result.stdout


def test_as_json_it_is_the_timelines(run: Run) -> None:
    result = run("demo", "--json")
    assert result.exit_code == 0, result.stderr
    timelines = json.loads(result.stdout)
    assert [timeline["state"] for timeline in timelines] == ["acknowledged"] * PAIRS


def test_a_mismatch_is_a_failure() -> None:
    with pytest.raises(Failure, match="the payload: expected 'a', found 'b'") as caught:
        demo.expect("the payload", "b", "a")
    assert caught.value.exit_code == commands.FAILED


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script in the place of the interpreter that would run the gateway."""
    fake = folder / "python"
    fake.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(sys, "executable", os.fspath(fake))


def test_a_gateway_that_does_not_start_is_told_with_its_log(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path, monkeypatch, "import sys; sys.exit('the disk is full')")
    result = run("demo")
    assert result.exit_code == commands.FAILED
    assert "the disk is full" in result.stderr
    assert "the gateway ended with status 1 while it started" in result.stderr


def test_a_gateway_that_ends_badly_is_a_failure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canned: Canned
) -> None:
    ports = f'{{"http": {canned.server_address[1]}}}'
    pretend(
        tmp_path,
        monkeypatch,
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        f"pathlib.Path(sys.argv[sys.argv.index('--ports-file') + 1]).write_text('{ports}')\n"
        "time.sleep(60)\n",
    )
    monkeypatch.setattr(demo, "main_job", lambda *_: {"events": []})
    result = run("demo")
    assert result.exit_code == commands.FAILED
    assert "the status with which the gateway ended: expected 0, found 3" in result.stderr
