"""Every test is in one suite, and the table says how it went."""

from __future__ import annotations

import threading
import tomllib
from pathlib import Path

import pytest

from tests import suites
from tests.servers import KINDS
from tests.suites import Result, Schedule, Servers, Suite

TESTS = Path(__file__).parent


def test_every_test_module_is_in_exactly_one_suite() -> None:
    for module in sorted(TESTS.rglob("test_*.py")):
        owners = [
            suite.name
            for suite in suites.SUITES
            if not suite.main and any(path == module or path in module.parents for path in suite.files())
        ]
        assert len(owners) == 1, f"{module.relative_to(TESTS)} is in {owners or 'no suite'}"


def test_every_glob_of_a_suite_matches_something() -> None:
    for suite in suites.SUITES:
        for path in suite.paths:
            assert list(TESTS.glob(path)), f"{suite.name}: {path}"


def test_every_test_that_needs_a_server_is_in_a_suite_that_has_them() -> None:
    for suite in suites.SUITES:
        modules = [module for path in suite.files() for module in (path.rglob("*.py") if path.is_dir() else [path])]
        marked = any(
            "mark.broker" in module.read_text(encoding="utf-8") for module in modules if module != Path(__file__)
        )
        assert suite.servers or not marked, suite.name


UNITS = Suite("units", ("wire",))
CHECK = Suite("check", check=(("ruff",),))


def test_the_table_adds_up() -> None:
    text = suites.table([Result(CHECK, seconds=0.25, cpu=0.12), Result(UNITS, passed=10, seconds=12.3, cpu=9.0)])
    assert text.splitlines() == [
        "suite  result  tests  seconds  cpu",
        "check  ok          -      0.2  0.1",
        "units  ok         10     12.3  9.0",
        "",
        "10 passed, 0 failed",
    ]


def test_what_passed_only_when_run_again_is_in_the_table() -> None:
    assert suites.table([Result(UNITS, passed=10, again=1)]).splitlines()[1].startswith("units  ok, 1 again     10")


@pytest.mark.parametrize(
    ("results", "again"),
    [
        ([Result(UNITS, passed=9, failed=1), Result(CHECK)], ["units"]),
        ([Result(UNITS, passed=9)], []),
        ([Result(UNITS, failed=1, skipped=1)], []),
        ([Result(UNITS, failed=1, why="a planted secret was seen")], []),
        ([Result(CHECK, why="ruff ended with 1")], []),
        ([Result(Suite("losses", ("chaos",), once=True), failed=1), Result(UNITS, failed=1)], ["units"]),
        ([Result(UNITS, failed=suites.AGAIN)], ["units"]),
        ([Result(UNITS, failed=suites.AGAIN), Result(Suite("more", ("taps",)), failed=1)], []),
    ],
)
def test_which_may_run_again(results: list[Result], again: list[str]) -> None:
    assert [each.suite.name for each in suites.may_run_again(results)] == again


def test_what_may_lose_a_message_runs_once() -> None:
    for suite in suites.SUITES:
        plays = any(
            part in path for path in suite.paths for part in ("faults/", "chaos", "pipeline/stream", "powerloss")
        )
        assert suite.once == plays, suite.name


@pytest.mark.parametrize(
    ("result", "said", "sums"),
    [
        (Result(UNITS, passed=9, failed=1), "1 failed", "9 passed, 1 failed"),
        (Result(UNITS, passed=9, skipped=2), "2 skipped", "9 passed, 2 failed"),
        (Result(UNITS, why="took longer than 420 s"), "took longer than 420 s", "0 passed, 1 failed"),
        (Result(UNITS, failed=3, why="took longer than 1 s"), "3 failed, took longer than 1 s", "0 passed, 3 failed"),
        (Result(CHECK, why="ruff ended with 1"), "ruff ended with 1", "0 passed, 1 failed"),
    ],
)
def test_what_went_wrong_is_in_the_table_and_in_the_sums(result: Result, said: str, sums: str) -> None:
    assert not result.ok
    text = suites.table([result])
    assert said in text
    assert text.splitlines()[-1] == sums


def servers(tmp_path: Path, *, up: bool) -> Servers:
    found = Servers(tmp_path / "servers.json")
    if up:
        found.ready.set()
    return found


def test_a_suite_that_needs_the_servers_waits_for_them(tmp_path: Path) -> None:
    first, second = Suite("first", servers=True), Suite("second")
    found = servers(tmp_path, up=False)
    schedule = Schedule([first, second], found)
    assert schedule.take() is second
    found.ready.set()
    assert schedule.take() is first
    assert schedule.take() is None


def test_nothing_runs_beside_a_suite_that_wants_to_be_alone(tmp_path: Path) -> None:
    first, second = Suite("first"), Suite("second", alone=True)
    schedule = Schedule([first, second], servers(tmp_path, up=True))
    assert schedule.take() is first
    taken: list[Suite | None] = []
    waiting = threading.Thread(target=lambda: taken.append(schedule.take()))
    waiting.start()
    assert not taken
    schedule.ended(first)
    waiting.join(5)
    assert taken == [second]


def test_each_takes_its_share_of_the_room(tmp_path: Path) -> None:
    busy = [Suite(f"busy {number}", share=1.2) for number in range(3)]
    waiting = [Suite(f"waiting {number}", share=0.5) for number in range(3)]
    schedule = Schedule([busy[0], waiting[0], busy[1], waiting[1], waiting[2], busy[2]], servers(tmp_path, up=True))
    assert [schedule.take() for _ in range(3)] == [busy[0], waiting[0], waiting[1]], "there is no room for a busy one"
    schedule.ended(waiting[0])
    assert schedule.take() is waiting[2]
    schedule.ended(busy[0])
    assert schedule.take() is busy[1]


def test_what_is_larger_than_the_room_runs_when_nothing_else_does(tmp_path: Path) -> None:
    large, small = Suite("large", share=suites.ROOM + 1), Suite("small", share=0.1)
    schedule = Schedule([small, large], servers(tmp_path, up=True))
    assert schedule.take() is small
    schedule.ended(small)
    assert schedule.take() is large


def test_no_more_run_than_the_machine_holds(tmp_path: Path) -> None:
    idle = [Suite(f"idle {number}", share=0.01) for number in range(suites.MOST + 1)]
    schedule = Schedule(idle, servers(tmp_path, up=True))
    assert [schedule.take() for _ in range(suites.MOST)] == idle[:-1]
    assert not schedule._may_start(idle[-1])


def test_the_tiers() -> None:
    for suite in suites.SUITES:
        assert suite.tier in suites.TIERS, suite.name
        assert 0 < suite.share <= 2, suite.name
        if suite.tier == "check":
            assert not suite.servers, f"{suite.name}: make check starts no server"
        if suite.main:
            assert suite.tier == "all", f"{suite.name}: make test plays each scenario once"
            assert suite.main in KINDS


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> set[str]:
    assert suites.main([*arguments, "--list"]) == 0
    return {line.split()[0] for line in capsys.readouterr().out.splitlines()}


def test_what_a_tier_runs(capsys: pytest.CaptureFixture[str]) -> None:
    check, test, everything = (listed(capsys, "--tier", tier) for tier in suites.TIERS)
    assert {"style", "types", "layers", "language", "kernel", "wire", "v010"} <= check
    assert check - {"language"} < test < everything
    assert listed(capsys) == test
    assert everything | {"language"} == {suite.name for suite in suites.SUITES}
    assert listed(capsys, "language", "supply-tools") == {"language", "supply-tools"}


REPORT = """<testsuites><testsuite tests="3">
<testcase name="a"><properties><property name="broker" value="rabbitmq-4.0"/>
<property name="broker" value="brokerj"/></properties></testcase>
<testcase name="b"><properties><property name="broker" value="brokerj"/></properties><failure/></testcase>
<testcase name="c"/>
</testsuite></testsuites>"""


def test_the_matrix_counts_by_broker(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT, encoding="utf-8")
    found = suites.by_broker(report)
    assert found == {"rabbitmq-4.0": (1, 0), "brokerj": (1, 1)}
    assert suites.matrix([Result(UNITS, brokers=found), Result(CHECK)]).splitlines()[2:] == [
        "suite  brokerj  rabbitmq-4.0",
        "units  1/2      1/1",
    ]
    assert suites.matrix([Result(CHECK)]) == ""


def passing(tmp_path: Path, text: str, limit: int = 60) -> Result:
    module = tmp_path / "test_it.py"
    module.write_text(text, encoding="utf-8")
    result, _ = suites.run(Suite("it", (str(module),), limit=limit), {"PATH": ""}, tmp_path)
    return result


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Suite, "files", lambda self: [Path(path) for path in self.paths])
    monkeypatch.setattr(suites, "ROOT", Path("/"))


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("text", "counts", "why"),
    [
        ("def test_a(): pass\ndef test_b(): pass\n", (2, 0, 0), ""),
        ("def test_a(): pass\ndef test_b(): assert 0\n", (1, 1, 0), ""),
        ("import pytest\ndef test_a(): pytest.skip('no')\n", (0, 0, 1), "no test was found"),
        ("", (0, 0, 0), "python ended with 5"),
    ],
)
def test_the_counts_are_those_of_pytest(tmp_path: Path, text: str, counts: tuple[int, int, int], why: str) -> None:
    result = passing(tmp_path, text)
    assert result.cpu > 0
    assert (result.passed, result.failed, result.skipped) == counts
    assert result.why.replace("python3", "python") == why


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("better", "counts"), [(True, (2, 0, 1)), (False, (1, 1, 0))], ids=["passes then", "fails then, too"]
)
def test_only_what_failed_is_run_again(tmp_path: Path, better: bool, counts: tuple[int, int, int]) -> None:
    options = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\n")  # the project's, which must not undo it
    ran = tmp_path / "ran"
    text = f"from pathlib import Path\nran = Path({str(ran)!r})\n"
    text += "def test_a():\n    with ran.open('a') as log:\n        log.write('a')\n"
    text += f"    assert ran.read_text() == 'aba' and {better}\n"
    text += "def test_b():\n    with ran.open('a') as log:\n        log.write('b')\n"
    ran.write_text("")
    result = passing(tmp_path, text)
    assert (result.passed, result.failed) == (1, 1)
    suites.run_again(result, {"PATH": ""}, tmp_path)
    assert ran.read_text() == "aba"
    assert (result.passed, result.failed, result.again) == counts


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import part\ndef test_it(): part.sign(1), part.sign(-1)\n", ""),
        ("import part\ndef test_it(): part.sign(1)\n", "python ended with 2"),  # a line is missing
        ("import part\ndef test_it(): part.sign(-1)\n", "python ended with 2"),  # only a branch is
        ("def test_it(): assert 0\n", ""),  # the number of tests that failed is what is said
    ],
)
def test_a_package_that_is_not_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "__init__.py").write_text(
        "def sign(n):\n    text = 'minus'\n    if n > 0:\n        text = 'plus'\n    return text\n"
    )
    module = tmp_path / "test_it.py"
    module.write_text(text, encoding="utf-8")
    result, said = suites.run(
        Suite("it", (str(module),), covers="part"), {"PATH": "", "PYTHONPATH": str(tmp_path)}, tmp_path
    )
    assert result.why.replace("python3", "python") == why, said
    assert result.ok == (not why and not result.failed)


@pytest.mark.usefixtures("anywhere")
def test_a_suite_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    result = passing(tmp_path, "import time\ndef test_a(): time.sleep(600)\n", limit=1)
    assert result.why == "took longer than 1 s"
    assert not result.cpu, "nobody can tell"
    assert result.seconds < 300
