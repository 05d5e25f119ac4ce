"""The mutants themselves: what is drawn, and if a test that sees one makes a difference."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, Judged, main, table
from tests.mutants.coverage_map import CoverageMap, functions_of
from tests.mutants.drawing import Mutant, draw, files_of, mutants_of
from tests.mutants.judging import Judgement, Tree, Verdict, judge, judge_by_worlds
from tests.mutants.naming import NamedTests

CODE = '''"""A module."""


class Door:
    """A door."""

    def __init__(self) -> None:
        self.is_open = False

    def push(self, force: int) -> bool:
        """Push it."""
        if force > 1 and not self.is_open:
            self.is_open = True
        while force < 0:
            force += 1
            break
        return self.is_open
'''
SIMULATION = """import sys

from gateway.core.door import Door

door = Door()
door.push(-1)
if "--seeds" in sys.argv:
    assert sys.argv[-1] == "7"
elif not door.push(2):
    print("FAILED seed 7", flush=True)
    sys.exit(1)
"""
"""A world that fails when the door does not open."""
TESTS = """from gateway.core.door import Door


def test_push() -> None:
    door = Door()
    assert not door.push(1)
    assert door.push(2)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project under git, with one module and one test."""
    root = tmp_path / "project"
    for name, text in (
        ("gateway/__init__.py", ""),
        ("gateway/core/__init__.py", ""),
        ("gateway/core/door.py", CODE),
        ("tests/core/test_door.py", TESTS),
        ("pyproject.toml", "[tool.pytest.ini_options]\n"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def named(project: Path, before: str) -> Mutant:
    """The only mutant of this text."""
    (found,) = [each for each in mutants_of(project, "gateway/core/door.py") if each.before == before]
    return found


def test_what_is_asserted_is_not_changed(project: Path) -> None:
    code = "def pairs(a, b):\n    assert a is not b\n    return sorted(zip(a, b, strict=True), reverse=True)\n"
    (project / "gateway/core/pairs.py").write_text(code)
    found = mutants_of(project, "gateway/core/pairs.py")
    assert [(each.before, each.start) for each in found] == [("True", code.rindex("True"))]


def test_what_there_is_to_change(project: Path) -> None:
    found = {(each.before, each.after) for each in mutants_of(project, "gateway/core/door.py")}
    assert found == {
        ("force > 1 and not self.is_open", "not (force > 1 and not self.is_open)"),
        ("force > 1 and not self.is_open", "((force > 1) or (not self.is_open))"),
        ("force > 1", "(force >= 1)"),
        ("1", "2"),
        ("False", "True"),
        ("self.is_open = True", "pass"),
        ("True", "False"),
        ("force < 0", "not (force < 0)"),
        ("force < 0", "(force <= 0)"),
        ("0", "1"),
        ("force += 1", "pass"),
        ("break", "continue"),
    }


def test_every_mutant_of_the_gateway_is_python() -> None:
    files = list(files_of(ROOT))
    assert len(files) > 100
    for path in files[::20]:
        source = (ROOT / path).read_bytes()
        for mutant in mutants_of(ROOT, path):
            assert source[mutant.start : mutant.end].decode() == mutant.before
            ast.parse(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])


def test_the_same_seed_draws_the_same(project: Path) -> None:
    assert draw(project, 1, 5, ["core"]) == draw(project, 1, 5, ["core"]) != draw(project, 2, 5, ["core"])


def test_a_mutant_is_killed_or_survives(project: Path, tmp_path: Path) -> None:
    known = CoverageMap(tmp_path / "map.json")
    known.tests = {"gateway/core/door.py:Door.push": {"tests/core/test_door.py::test_push"}}
    tree = Tree(project, tmp_path / "copy")
    killed = judge(named(project, "self.is_open = True"), tree, known, 60.0)
    assert (killed.verdict, killed.test) == (Verdict.KILLED, "tests/core/test_door.py::test_push")
    survived = judge(named(project, "force += 1"), tree, known, 60.0)
    assert (survived.verdict, survived.test) == (Verdict.SURVIVED, "1 of 1 tests")
    assert judge(named(project, "False"), tree, known, 60.0).verdict is Verdict.UNCOVERED
    assert (tree.folder / "gateway/core/door.py").read_text() == CODE, "the copy is as it was"
    (tree.folder / "tests/core/test_door.py").write_text(TESTS.replace("not door", "door"))
    assert judge(named(project, "self.is_open = True"), tree, known, 60.0).verdict is Verdict.UNCLEAR


def test_worlds_try_what_the_tests_let_pass(project: Path, tmp_path: Path) -> None:
    (project / "tests/__init__.py").write_text("")
    (project / "tests/simulation.py").write_text(SIMULATION)
    subprocess.run(["git", "add", "-A"], cwd=project, check=True)
    tree = Tree(project, tmp_path / "copy")
    let_pass = Judgement(Verdict.SURVIVED, "1 of 1 tests", 2.0)
    killed = judge_by_worlds(named(project, "self.is_open = True"), tree, let_pass, 5)
    assert (killed.verdict, killed.test, killed.worlds) == (Verdict.KILLED, "world 7", 5)
    assert killed.seconds > 2.0
    survived = judge_by_worlds(named(project, "force += 1"), tree, let_pass, 5)
    assert (survived.verdict, survived.test) == (Verdict.SURVIVED, "1 of 1 tests, 5 worlds")
    assert (tree.folder / "gateway/core/door.py").read_text() == CODE, "the copy is as it was"
    (tree.folder / "tests/simulation.py").write_text("raise SystemExit('no world')")
    assert judge_by_worlds(named(project, "force += 1"), tree, let_pass, 5).verdict is Verdict.UNCLEAR


def test_files_that_name_the_code_kill_without_a_map(project: Path, tmp_path: Path) -> None:
    for name in ("core/test_other.py", "taps/test_doors.py", "taps/test_cellar.py"):
        (project / "tests" / name).parent.mkdir(exist_ok=True)
        (project / "tests" / name).write_text("def test_nothing() -> None: ...\n")
    subprocess.run(["git", "add", "-A"], cwd=project, check=True)
    known = NamedTests(project, ("core", "taps"))
    files = known.tests_of("gateway/core/door.py", "Door.push")
    assert files == ["tests/core/test_door.py", "tests/taps/test_doors.py", "tests/core/test_other.py"]
    tree = Tree(project, tmp_path / "copy")
    killed = judge(named(project, "self.is_open = True"), tree, known, 60.0)
    assert (killed.verdict, killed.test) == (Verdict.KILLED, "tests/core/test_door.py::test_push")


def test_a_function_has_the_tests_of_the_one_around_it(tmp_path: Path) -> None:
    known = CoverageMap(tmp_path / "map.json")
    known.tests = {"a.py:f": {"slow", "quick"}, "a.py:g": {"quick", "other"}, "aa.py:f": {"far"}}
    known.seconds = {"slow": 2.0, "quick": 0.1, "other": 0.01}
    assert known.tests_of("a.py", "f.inner") == ["quick", "slow", "other"]
    assert known.tests_of("a.py", "h") == []
    known.write()
    assert CoverageMap(tmp_path / "map.json").tests_of("a.py", "f") == ["quick", "slow", "other"]
    assert functions_of(CODE.encode()) == {"Door.__init__": range(8, 9), "Door.push": range(11, 18)}


def test_a_run_continues_and_counts(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    first, second = named(project, "self.is_open = True"), named(project, "force += 1")
    judged = Judged(file, 1, "code")
    judged.add(first, Judgement(Verdict.KILLED, "a test", 1.0))
    judged.add(second, Judgement(Verdict.SURVIVED, "1 of 1 tests", 1.0))
    judged = Judged(file, 1, "code")
    assert judged.of_tests(second) == Judgement(Verdict.SURVIVED, "1 of 1 tests", 1.0)
    assert [judged.is_done(*each) for each in ((first, 5), (second, 0), (second, 5))] == [True, True, False]
    rows = [row for row in (judged.get(first), judged.get(second)) if row is not None]
    assert table(rows, {}).splitlines()[1].split() == ["core", "2", "1", "1", "0", "0", "50.0", "%"]
    assert table(rows, {second.name: "nobody sees it"}).splitlines()[1].split()[-2:] == ["100.0", "%"]
    with pytest.raises(SystemExit, match="of another seed or of other code"):
        Judged(file, 2, "code")
    with file.open("a") as more:
        more.write('{"name": ')
    with pytest.raises(SystemExit, match="line 4 is no mutant; remove the line, and the mutant is judged again"):
        Judged(file, 1, "code")


def test_a_run_of_no_mutant_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["mutants", "--mutants", "0", "--list"])
    with pytest.raises(SystemExit):
        main()
    assert "--mutants 0: a run of no mutant shows nothing; ask for 1 or more" in capsys.readouterr().err
