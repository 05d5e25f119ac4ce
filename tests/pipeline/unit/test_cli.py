"""The verbs: options of jobs, what is printed, exit statuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway import commands
from gateway.pipeline import cli
from gateway.pipeline.__main__ import main
from gateway.pipeline.jobs.base import JOBS, Context
from tests.pipeline.unit import toy
from tests.pipeline.unit.board import URL, Board

Run = Callable[..., Result]


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    """What every service asks."""
    board = Board()
    for module in ("gateway.pipeline.jobs.base", "gateway.pipeline.service", "gateway.pipeline.doctor"):
        monkeypatch.setattr(f"{module}.Service", board.service)
    return board


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, board: Board) -> Iterator[Run]:
    """``run("run", "toy", "--where", "x")``: one verb of ``gateway pipeline``."""
    for variable in ("GATEWAY_URL", "GATEWAY_API_KEY", "GATEWAY_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(JOBS, "toy", ("tests.pipeline.unit.toy:Toy", "Play."))  # type: ignore[arg-type]
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    runner = CliRunner()
    yield lambda *arguments: runner.invoke(commands.cli, ["pipeline", *arguments], catch_exceptions=False)
    toy.SEEN.clear()


def seen() -> Context:
    return toy.SEEN[-1]


def test_the_jobs_are_listed(run: Run) -> None:
    result = run("jobs")
    for name, (_, text) in JOBS.items():
        assert f"{name} " in result.stdout
        assert text in result.stdout
    assert {each["name"] for each in json.loads(run("jobs", "--json").stdout)} == JOBS.keys()


def test_help_names_verbs_jobs_and_exit_statuses(run: Run) -> None:
    said = run("--help").stdout
    for verb in cli.VERBS:
        assert f"  {verb} " in said
    assert "10  no room left on the disk" in said
    assert "toy" in run("run", "--help").stdout
    assert "it does what its options say" in " ".join(run("run", "toy", "--help").stdout.split()).lower()


@pytest.mark.parametrize("name", cli.SHORTCUTS)
def test_some_jobs_are_verbs(run: Run, name: str) -> None:
    def options(said: str) -> str:
        return said.partition("Options:")[2]

    assert options(run(name, "--help").stdout) == options(run("run", name, "--help").stdout) != ""


def test_options_come_to_the_job_as_what_they_are(run: Run) -> None:
    given = ("--since", "2026-11-03T04:05:06+01:00", "--rows", "5", "--rate", "2.5", "--queue", "a", "--queue", "b")
    assert run("run", "toy", "--where", "x = 1", "--loud-too", *given).exit_code == 0
    assert seen().options == {
        "since": datetime(2026, 11, 3, 3, 5, 6, tzinfo=UTC), "rows": 5, "rate": 2.5, "how": "well",
        "queue": ("a", "b"), "loud_too": True, "where": "x = 1",
    }  # fmt: skip


def test_options_have_their_defaults(run: Run) -> None:
    run("run", "toy", "--where", "x")
    assert seen().options == {
        "since": None, "rows": 3, "rate": 0.0, "how": "well", "queue": (), "loud_too": False, "where": "x",
    }  # fmt: skip
    assert not seen().dry_run
    assert seen().run_id.startswith("toy-")


def test_how_long_ago(run: Run) -> None:
    run("run", "toy", "--where", "x", "--since", "2h")
    since = seen().options["since"]
    assert timedelta(hours=2) <= datetime.now(UTC) - since < timedelta(hours=3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "toy"), "Missing option '--where'"),
        (("run", "toy", "--where", "x", "--rows", "0"), "0 is not in the range x>=1"),
        (("run", "toy", "--where", "x", "--how", "so"), "'so' is not one of 'well', 'badly'"),
        (("run", "toy", "--where", "x", "--since", "yesterday"), "'yesterday' is neither 2026-11-03T04:05:06Z"),
        (("run", "toy", "--where", "x", "--since", "2026-11-03T00:00:00"), "does not say in which time zone"),
        (("run", "toy", "--where", "x", "--spark", "memory=1g"), "'memory=1g' is not spark.NAME=VALUE"),
        (("run", "toys"), "No such command 'toys'"),
        (("run", "toy", "--where", "x", "--url", "ftp://x"), "pipeline.url is 'ftp://x'"),
        (("run", "toy", "--where", "x", "--config", "/nowhere"), "/nowhere: No such file or directory"),
    ],
)
def test_wrong_usage_is_told(run: Run, board: Board, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not toy.SEEN
    assert not board.asked


def test_what_it_did_is_printed(run: Run, board: Board) -> None:
    result = run("run", "toy", "--where", "x", "--id", "t1")
    assert result.exit_code == 0
    assert "toy t1\n======\n" in result.stdout
    assert "rows  3" in result.stdout
    assert result.stderr.startswith("toy  3 of 3  100%\nt1: 3 rows in ")
    assert board.runs["t1"]["state"] == "done"


def test_done_already(run: Run) -> None:
    run("run", "toy", "--where", "x", "--id", "t1")
    result = run("run", "toy", "--where", "x", "--id", "t1", "--rate", "9")
    assert result.exit_code == 0
    assert result.stderr == "t1 is done already (3 rows); nothing was done\n"
    assert len(toy.SEEN) == 1


def test_another_run_under_the_same_id_is_refused(run: Run) -> None:
    run("run", "toy", "--where", "x", "--id", "t1")
    result = run("run", "toy", "--where", "y", "--id", "t1")
    assert result.exit_code == commands.REFUSED
    assert "gateway: the run t1 of " in result.stderr


def test_as_json_each_line_is_an_object(run: Run) -> None:
    result = run("run", "toy", "--where", "x", "--id", "t1", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0] == {"job": "toy", "id": "t1", "done": 3, "total": 3}
    assert lines[-1]["reports"][0]["kind"] == "numbers"
    assert not result.stderr


def test_its_exit_status_is_that_of_the_outcome(run: Run) -> None:
    result = run("run", "toy", "--where", "x", "--rows", "13")
    assert result.exit_code == commands.DIFFERENT
    assert "both sides of a comparison differ" in result.stderr


def test_a_fault_is_one_sentence_and_its_status(run: Run, board: Board) -> None:
    result = run("run", "toy", "--where", "x", "--how", "badly", "--id", "t1")
    assert result.exit_code == 9
    assert result.stderr == "gateway: rows 1 to 9 are gone\n"
    assert board.runs["t1"]["state"] == "failed"


def test_a_dry_run_says_so(run: Run, board: Board) -> None:
    result = run("run", "toy", "--where", "x", "--dry-run")
    assert seen().dry_run
    assert "it was a dry run, and nothing was done" in result.stderr
    assert not board.runs


def test_the_page_is_written(run: Run, tmp_path: Path) -> None:
    run("run", "toy", "--where", "x", "--html", str(tmp_path / "new" / "report.html"))
    assert "<h2>Played</h2>" in (tmp_path / "new" / "report.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_told(run: Run, board: Board, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = run("run", "toy", "--where", "x", "--id", "t1", "--html", str(tmp_path / "file" / "report.html"))
    assert result.exit_code == commands.FAILED
    assert "report.html" in result.stderr or "File exists" in result.stderr
    assert board.runs["t1"]["state"] == "done", "what was done is done"


def test_settings_come_from_options(run: Run, tmp_path: Path) -> None:
    run(
        "run",
        "toy",
        "--where",
        "x",
        "--url",
        URL,
        "--api-key",
        "k",
        "--storage",
        str(tmp_path),
        "--spark",
        "spark.a=1=2",
    )
    pipeline = seen().pipeline
    assert (pipeline.url, pipeline.api_key, pipeline.storage) == (URL, "k", str(tmp_path))
    assert pipeline.settings.spark == {"spark.a": "1=2"}


def test_status_shows_runs_and_cursors(run: Run, board: Board) -> None:
    run("run", "toy", "--where", "x", "--id", "t1")
    cursor = {"name": "archive", "log": "messages", "owner": "", "epoch": 2, "backlog": 1_000, "position": {}}
    board.others["/v1/log/cursors"] = {"cursors": [cursor]}
    said = run("status").stdout
    assert "t1  toy  done" in said
    assert "archive  messages  -" in said
    assert json.loads(run("status", "--json").stdout)["cursors"] == [cursor]
    assert json.loads(run("status", "t1").stdout)["state"] == "done"
    assert run("status", "t2").exit_code == commands.NOT_FOUND


def test_by_the_module_it_is_the_same(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(*arguments: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        said = capsys.readouterr()
        return caught.value.code, said.out, said.err

    code, out, _ = called("run", "toy", "--where", "x")
    assert (code, "Played" in out) == (0, True)
    code, _, err = called("run", "toy", "--where", "x", "--how", "badly")
    assert (code, err) == (9, "gateway: rows 1 to 9 are gone\n")
    assert called("run", "toy", "--where", "x", "--rows", "13")[0] == 7
    assert called("frobnicate")[0] == 2


def test_sigterm_ends_a_run_as_it_should() -> None:
    with pytest.raises(SystemExit) as caught:
        cli._end(15, None)
    assert caught.value.code == 143
