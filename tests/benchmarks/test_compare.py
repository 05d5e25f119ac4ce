"""Two commits beside each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks import compare
from tests.benchmarks.compare import CannotCompare, Side, collect, lay_out, main, measure, side, table
from tests.benchmarks.programs import ROOT
from tests.benchmarks.rows import Row, Sample


def found(cpu: float, work: str = "encode") -> dict[tuple[str, str], Row]:
    return {(work, "gateway"): Row("codec", work, "gateway", [Sample(1_000, 0.1, cpu)])}


def test_the_table_gives_the_median_of_the_ratios_and_their_spread() -> None:
    rounds = [(found(0.010), found(0.005)), (found(0.020), found(0.012)), (found(0.010), found(0.008))]
    headings, cpu, rate = table(collect(rounds), "old", "new").splitlines()
    assert headings.split() == ["work", "client", "measure", "old", "new", "ratio", "min", "max"]
    assert cpu.split() == ["encode", "gateway", "CPU", "µs", "10.00", "8.00", "0.600", "0.500", "0.800"]
    assert rate.split() == ["encode", "gateway", "per", "second", "10,000", "10,000", "1.000", "1.000", "1.000"]


def test_what_only_one_side_has_is_left_out() -> None:
    new = found(0.1) | found(0.1, "decode")
    assert [each.work for each in collect([(found(0.1), new)])] == ["encode"]


def test_a_measure_that_is_not_there_has_no_line() -> None:
    memory = {("one more", "gateway"): Row("memory", "one more", "gateway", [Sample(memory=5.0)])}
    assert len(table(collect([(memory, memory)]), "old", "new").splitlines()) == 1


def test_the_work_tree_is_taken_as_it_is() -> None:
    with side(None, own=False) as found:
        assert found == Side(compare.WORK_TREE, ROOT, Path(sys.executable))


def test_a_commit_is_measured_by_the_program_of_the_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path, monkeypatch)
    (root / "tests" / "program.py").write_text("new")
    (root / "gateway.py").write_text("new")
    lay_out("HEAD", tmp_path / "other", own=False)
    assert (tmp_path / "other" / "gateway.py").read_text() == "old"
    assert (tmp_path / "other" / "tests" / "program.py").read_text() == "new"
    lay_out("HEAD", tmp_path / "own", own=True)
    assert (tmp_path / "own" / "tests" / "program.py").read_text() == "old"


def repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with one commit, in the place of ours."""
    root = folder / "root"
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "program.py").write_text("old")
    (root / "gateway.py").write_text("old")
    monkeypatch.setattr(compare, "ROOT", root)
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "one")):
        compare.git(*arguments)
    return root


def test_a_commit_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-commit"]) == 1
    assert "git rev-parse" in capsys.readouterr().err


def test_a_side_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    program = tmp_path / "tests" / "benchmarks"
    program.mkdir(parents=True)
    (program / "__main__.py").write_text("import nowhere")
    for folder in (program, program.parent):
        (folder / "__init__.py").touch()
    broken = Side("abc1234", tmp_path, Path(sys.executable))
    with pytest.raises(CannotCompare, match="abc1234 could not be measured: ModuleNotFoundError"):
        measure(broken, ["codec"], [], tmp_path)


def test_the_work_tree_is_measured(tmp_path: Path) -> None:
    here = Side(compare.WORK_TREE, ROOT, Path(sys.executable))
    rows = measure(here, ["codec"], ["--quick"], tmp_path)
    assert ("codec: encode a message", "gateway") in rows
    assert not any(client == "pamqp" for _, client in rows)


def test_a_section_finds_its_servers() -> None:
    from tests.benchmarks.sections import SECTIONS
    from tests.servers import KINDS

    assert compare.SERVERS.keys() <= SECTIONS.keys()
    assert {kind for kinds in compare.SERVERS.values() for kind in kinds} <= KINDS.keys()
    with compare.servers(["codec"], Path()) as options:
        assert options == []
