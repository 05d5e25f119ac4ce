"""What the command line of the simulation says to arguments that ask for no world, and of runs that show nothing."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation import __main__ as command_line
from tests.simulation import long_run, measuring
from tests.simulation.scene import Result
from tests.simulation.worlds import World, draw

WRONG = {
    "--kind nonsense": r"--kind 'nonsense': no kind of worlds has this name; expected bridges, dtx, ",
    "--kind taps,nonsense": r"--kind 'nonsense': no kind of worlds has this name; expected bridges, dtx, ",
    "--worlds 0": r"--worlds 0: a run of no world shows nothing; ask for 1 or more",
    "--worlds -3": r"--worlds -3: a run of no world shows nothing; ask for 1 or more",
    "--defect nonsense": r"--defect 'nonsense': unknown. The names are in tests/simulation/defects.py.",
    "--mutation nonsense": r"--mutation 'nonsense': unknown. The names are in tests/simulation/mutations.py.",
    "--seed one": r"argument --seed: invalid int value: 'one'",
}
"""Arguments -> the sentence."""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["python -m tests.simulation", *arguments])
    monkeypatch.setattr(command_line, "begin_with", lambda environ: None)  # it would begin this process again
    return command_line.main()


@pytest.mark.parametrize("arguments", WRONG)
def test_arguments_that_ask_for_no_world(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments.split())
    assert ended.value.code == 2
    assert WRONG[arguments] in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--seeds", "1", "2")], ids=["first", "seeds"])
def test_kinds_that_no_world_is_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """A world has one rare moment."""
    monkeypatch.setattr(command_line, "SEARCH", 1_000)
    assert run(monkeypatch, "--kind", "turns,depths", *more) == 1
    assert (
        "FAILED: no world is of the kinds 'turns,depths': that shows nothing; ask for other kinds"
        in capsys.readouterr().out
    )


class Quiet:
    """Worlds in which messages are published, and all faults come too late."""

    def __init__(self, faults: int) -> None:
        self.counts = Counter({"publish": 3, "fault": faults})

    def simulate(self, world: World) -> Result:
        return Result(world, counts=self.counts)


@pytest.mark.parametrize("faults", [0, 1])
def test_a_run_without_its_faults_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], faults: int
) -> None:
    monkeypatch.setattr(command_line, "simulate", Quiet(faults).simulate)
    drawn = sum(len(draw(seed).faults) for seed in (1, 2, 3))
    assert drawn > 0
    assert run(monkeypatch, "--worlds", "3") == (0 if faults else 1)
    said = f"FAILED: none of the {drawn} faults of these worlds happened" in capsys.readouterr().out
    assert said == (not faults)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"code": "a", "first"', "no list of worlds that were run (Expecting ':' delimiter"),
        ('[{"code": "a", "first": 1}]', "no list of worlds that were run ("),
        ('{"code": "a"}', "no list of worlds that were run ("),
    ],
    ids=["cut off", "without a number", "no list"],
)
def test_a_damaged_file_of_a_long_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["long_run", "--file", str(file)])
    with pytest.raises(SystemExit) as ended:
        long_run.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"--file {file}: {said}" in error
    assert "; name another file with --file" in error
    assert file.read_text() == text


def test_a_long_run_of_no_world(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["long_run", "--worlds", "0"])
    with pytest.raises(SystemExit):
        long_run.main()
    assert "--worlds 0: a run of no world shows nothing; ask for 1 or more" in capsys.readouterr().err


def test_a_mutation_that_is_not_there_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["measuring", "--names", "what nobody knows"])
    with pytest.raises(SystemExit):
        measuring.main()
    assert "--names 'what nobody knows': unknown. The names are in mutations.py" in capsys.readouterr().err
