"""Some points of each part. ``make powerloss`` has them all."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.powerloss import __main__ as command_line
from tests.powerloss.archive import archive_rot
from tests.powerloss.disk import KINDS, Disk
from tests.powerloss.found import Found
from tests.powerloss.losses import lose
from tests.powerloss.recording import Step
from tests.powerloss.rot import rot
from tests.powerloss.work import DEFECTS


def test_nothing_acknowledged_is_lost_with_the_power() -> None:
    found = lose(seed=1, operations=90, points=80)
    assert found.points.total() >= 80
    assert found.problems == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_is_not_synced_is_found(defect: str) -> None:
    """The test of the test: with this defect planted, something acknowledged is lost."""
    found = lose(seed=2, operations=30, points=25, defect=defect)
    assert any(" must be one of " in problem for problem in found.problems)


def test_rot_is_not_served() -> None:
    found = rot(seed=1, points=40)
    assert found.points.total() == 40
    assert found.problems == []


def test_rot_of_an_archive_is_named() -> None:
    found = archive_rot(seed=1, points=100)
    assert found.points.total() == 100
    assert found.problems == []


def test_rot_that_is_not_looked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: without the checks, messages that a disk has changed are sent."""
    monkeypatch.setattr("gateway.ledger.pending.outbox.is_sound", lambda *_: True)
    monkeypatch.setattr("gateway.ledger.pending.delivery_reads.sound", lambda payload, _: payload)
    monkeypatch.setattr("gateway.ledger.store._check", lambda _: None)
    found = rot(seed=2, points=25)
    assert any("served as truth" in problem for problem in found.problems)


def test_only_what_was_synced_is_certain() -> None:
    disk = Disk()
    for step in (
        Step("m", "d", 0, 0, b""), Step("d", "", 0, 0, b""), Step("c", "d/f", 1, 0, b""),
        Step("w", "d/f", 1, 0, b"a" * 700),
    ):  # fmt: skip
        disk.take(step)
    chance = random.Random(1)
    assert disk.after("nothing", chance) == {"d": None}
    assert disk.after("all", chance) == {"d": None, "d/f": b"a" * 700}
    torn = {disk.after("sectors", chance).get("d/f") for _ in range(100)}
    assert torn == {None, b"", b"a" * 512, b"a" * 700, bytes(512) + b"a" * 188}
    disk.take(Step("s", "d/f", 1, 0, b""))
    assert {None, b"a" * 700} == {disk.after("files", chance).get("d/f") for _ in range(20)}
    disk.take(Step("d", "d", 1, 0, b""))
    assert disk.is_certain
    disk.take(Step("r", "d/f", 0, 0, b"d/g"))
    assert {*disk.after("nothing", chance)} == {"d", "d/f"}
    disk.take(Step("d", "d", 0, 0, b""))
    for kind in KINDS:
        assert disk.after(kind, chance) == {"d": None, "d/g": b"a" * 700}


RUN = json.dumps({"part": "rot", "seed": 1, "points": {"a bit": 500}, "problems": []})
WRONG = {
    "--points 0": "--points 0: a run of no point shows nothing; ask for 1 or more",
    "rott": "no such part: rott; expected losses, rot, archive",
    "--results FILE": "FILE: line 2 is no run; remove the line, and the run is made again",
}
"""Arguments -> the sentence."""


@pytest.mark.parametrize("arguments", WRONG)
def test_arguments_that_ask_for_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str
) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(f"{RUN}\n{RUN[:-20]}\n")
    monkeypatch.setattr(sys, "argv", ["powerloss", *arguments.replace("FILE", str(file)).split()])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    assert WRONG[arguments].replace("FILE", str(file)) in capsys.readouterr().err


@pytest.mark.parametrize("points", [0, 500])
def test_a_part_that_damages_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, points: int
) -> None:
    monkeypatch.setitem(command_line.PARTS, "archive", lambda seed, _: Found())
    file = tmp_path / "runs.jsonl"
    file.write_text(f"{RUN}\n")
    part = "rot" if points else "archive"
    monkeypatch.setattr(sys, "argv", ["powerloss", part, "--points", "500", "--results", str(file)])
    assert command_line.main() == (0 if points else 1)
    said = capsys.readouterr().out
    assert f"{part}: {points} points, 0 problems" in said
    assert ("FAILED: archive has lost and damaged nothing" in said) == (not points)
