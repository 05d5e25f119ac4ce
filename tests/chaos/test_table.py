"""The experiments are all there, their quick forms are tests that ``make test`` runs, and the report is in step."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import __main__ as command
from tests.chaos import figures, report
from tests.chaos.figures import Figures, Form, Line
from tests.chaos.parts import Context, Own
from tests.chaos.table import EXPERIMENTS
from tests.servers.process import ROOT
from tests.suites import SUITES

IDS = [f"F{number:02}" for number in range(1, 35)]


def line(experiment: str, form: Form = Form.QUICK, **fields: object) -> Line:
    found = Figures(**{"what": "a row", "attempted": 10, "acknowledged": 9, "lost": 0, **fields})  # type: ignore[arg-type]
    return Line(experiment, form, 7, "2030-01-02 03:04", "python -m tests.chaos F01", "2 cores", found)


def test_all_experiments_are_there() -> None:
    assert [each.id for each in EXPERIMENTS] == IDS
    for each in EXPERIMENTS:
        assert any(Form.QUICK in part.forms for part in each.parts), each.id
        assert any(Form.FULL in part.forms for part in each.parts), each.id
        assert each.tests, f"{each.id} has no quick form"


def test_quick_forms_are_tests_that_make_test_runs() -> None:
    """Each is a function of its module, or one of the cases that pytest finds there; and the module belongs to a suite
    that it runs."""
    wanted = sorted({test for each in EXPERIMENTS for test in each.tests})
    asked = {path for suite in SUITES if suite.tier == "all" and not suite.main for path in suite.files()}
    run = {path for suite in SUITES if suite.tier != "all" for path in suite.files()}
    functions: dict[str, set[str]] = {}
    for test in wanted:
        module = test.partition("::")[0]
        path = ROOT / module
        assert not {path, *path.parents} & asked, f"{module} is in no run of make test"
        assert {path, *path.parents} & run, f"{module} is in no suite"
        if module not in functions:
            body = ast.parse(path.read_text(encoding="utf-8")).body
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            functions[module] = {node.name for node in body if isinstance(node, kinds)}
        name = test.partition("::")[2].partition("[")[0]
        assert not name or name in functions[module], test
    cases = [test for test in wanted if test.endswith("]")]
    command = [sys.executable, "-m", "pytest", "--collect-only", *sorted({test.partition("::")[0] for test in cases})]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not set(cases) - set(collected.stdout.splitlines()), collected.stdout[-2_000:] + collected.stderr


def test_what_is_ours_is_a_test_of_this_folder() -> None:
    from tests.chaos.test_own import OURS

    own = [part for each in EXPERIMENTS for part in each.parts if isinstance(part, Own) and not part.ids]
    assert {part.name for part in OURS} == {part.name for part in own if Form.QUICK in part.forms}


def test_the_report_is_as_it_would_be_written_now() -> None:
    text = report.PATH.read_text(encoding="utf-8")
    assert text == report.render(figures.load_all()), "run: python -m tests.chaos report"
    for id in IDS:
        assert f"### {id}: " in text


def test_what_is_kept_belongs_to_an_experiment_and_says_how_it_was_run() -> None:
    lines = figures.load_all()
    assert {each.experiment for each in lines} == set(IDS)
    for each in lines:
        assert each.at
        assert each.machine
        assert each.command.startswith(f"python -m tests.chaos {each.experiment}")
        assert ("--full" in each.command) == (each.form is Form.FULL)
        assert str(ROOT) not in each.command
        assert "/tmp" not in "".join(each.figures.problems)


def test_a_full_run_stands_before_a_quick_one_and_a_failed_one_says_so() -> None:
    lost = line("F01", Form.FULL, lost=2, problems=["2 lost: a, b"])
    text = report.render([line("F01"), lost, line("F02", unit="cases", unexpected=1)])
    (summary,) = [each for each in text.splitlines() if each.startswith("| [F01]")]
    assert [cell.strip() for cell in summary.split("|")][3:6] == ["1 of 1", "10", "9"]
    assert "1 FAILED" in summary
    assert "**FAILED**; 2 lost: a, b" in text
    (cases,) = [each for each in text.splitlines() if each.startswith("| [F02]")]
    assert "1 FAILED" in cases
    assert "Not run." in text


def test_lines_are_kept_part_by_part(tmp_path: Path) -> None:
    figures.keep(tmp_path, [line("F01"), line("F01", what="another"), line("F01", Form.FULL)])
    figures.keep(tmp_path, [line("F01", attempted=99)])
    kept = figures.load_all(tmp_path)
    assert [(each.form, each.figures.what, each.figures.attempted) for each in kept] == [
        (Form.FULL, "a row", 10),
        (Form.QUICK, "another", 10),
        (Form.QUICK, "a row", 99),
    ]
    assert isinstance(kept[0].figures, Figures)


def test_a_part_that_fails_is_a_line_that_says_why() -> None:
    def fails(context: Context) -> list[Figures]:
        raise OSError("the disk is gone")

    (found,) = Own("breaks", fails).run(Context(Form.QUICK))
    assert not found.passed
    assert found.problems == ["OSError: the disk is gone"]
    assert "FAILED; OSError: the disk is gone" in Line("F01", Form.QUICK, 1, "", "", "", found).cells()


@pytest.mark.parametrize(
    ("fields", "passed"),
    [
        ({}, True),
        ({"duplicated": 3, "recovered": 2}, True),
        ({"lost": 1}, False),
        ({"unexpected": 1}, False),
        ({"problems": ["it was slow"]}, False),
    ],
)
def test_what_passes(fields: dict[str, object], passed: bool) -> None:
    assert line("F01", **fields).figures.passed is passed


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["f24", "--list"]) == 0
    assert "F24 heartbeats" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["F99"])
    options = command.parser().parse_args(["F01", "--full", "--on", "0-8 to 0-10", "--seed", "7", "--json", "x"])
    assert command.command_of(EXPERIMENTS[0], options) == "python -m tests.chaos F01 --full --seed 7 --on '0-8 to 0-10'"
