"""The command line as a whole: help, exit statuses, and what it costs to start."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway import __version__, commands, errors
from gateway.commands import exit_status
from gateway.commands.demo import wait_for_ports
from gateway.pipeline.jobs.base import JOBS
from tests.commands.conftest import Run


def test_help_names_every_verb_and_every_exit_status(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for verb, (_, text) in commands.VERBS.items():
        assert verb in result.stdout
        assert text in result.stdout
    for status, meaning in commands.EXIT_STATUS.items():
        assert f"{status:<3} {meaning}" in result.stdout


@pytest.mark.parametrize("verb", commands.VERBS)
def test_every_verb_has_help_that_begins_as_the_table_says(run: Run, verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: cli {verb}")


def test_the_version(run: Run) -> None:
    assert run("--version").stdout == f"gateway, version {__version__}\n"


@pytest.mark.parametrize("arguments", [["frobnicate"], ["publish"], ["pull", "--max", "x", "s"], ["brokers", "--what"]])
def test_wrong_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == commands.USAGE
    assert not result.stdout
    assert "Usage:" in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("publsh", "publish"), ("queues lst", "list"), ("replays wach r1", "watch"), ("queues list --jsn", "--json")],
)
def test_what_is_meant_is_said(run: Run, typed: str, meant: str) -> None:
    result = run(*typed.split())
    assert result.exit_code == commands.USAGE
    assert f"Did you mean '{meant}'?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_verbs_and_options(run: Run, shell: str) -> None:
    script = run("completion", shell)
    assert script.exit_code == 0
    assert f"_GATEWAY_COMPLETE={shell}_complete" in script.stdout
    found = {
        words: completed(shell, words) for words in ("gateway re", "gateway replays wa", "gateway queues list --js")
    }
    assert "replays" in found["gateway re"]
    assert "replay" not in found["gateway re"], "a former name"
    assert found["gateway replays wa"] == ["watch"]
    assert found["gateway queues list --js"] == ["--json"]


def completed(shell: str, words: str) -> list[str]:
    """What the script of a shell gets for a line, without the help of each word."""
    last = words.split()[-1] if shell == "fish" else str(words.count(" "))
    environment = {"_GATEWAY_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": last}
    said = CliRunner().invoke(commands.cli, env=environment, prog_name="gateway").stdout.split("\n")
    if shell == "zsh":
        return said[1::3]
    return [line.partition(",")[2].partition("\t")[0] for line in said if line]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ConfigurationError, commands.USAGE),
        (errors.NotFound, commands.NOT_FOUND),
        (errors.PreconditionFailed, commands.REFUSED),
        (errors.EncodeError, commands.USAGE),
        (errors.AuthenticationFailed, commands.REFUSED),
        (errors.BrokerUnavailable, commands.UNREACHABLE),
        (errors.ProtocolMismatch, commands.UNREACHABLE),
        (errors.OutcomeUnknown, commands.FAILED),
        (errors.GatewayError, commands.FAILED),
    ],
)
def test_every_error_has_its_status(error: type[errors.GatewayError], status: int) -> None:
    assert exit_status(error) == status


def test_an_error_of_the_gateway_is_one_sentence_and_its_status(run: Run) -> None:
    result = run("serve", "--config", "/nowhere/gateway.toml")
    assert result.exit_code == commands.USAGE
    assert result.stderr == "gateway: /nowhere/gateway.toml: No such file or directory\n"


def imported_by(*arguments: str) -> tuple[str, list[str]]:
    """What a Python with these arguments printed, and the modules that it imported."""
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    return done.stdout, [
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
    ]


def test_help_imports_nothing_that_it_does_not_need() -> None:
    said, modules = imported_by("-m", "gateway", "--help")
    assert "serve" in said
    assert "click" in modules
    for heavy in ("asyncio", "httpx", "msgspec", "sqlalchemy", "starlette", "gateway.app"):
        assert heavy not in modules


def test_help_is_there_before_anyone_notices() -> None:
    """It takes what click takes, which a benchmark could tell in seconds: here the modules are counted."""
    _, modules = imported_by("-m", "gateway", "--help")
    _, click = imported_by("-c", "import click")
    assert len(modules) < len(click) + 60


SPARK = ("pyspark", "pyarrow", "pandas", "numpy", "py4j", "adbc_driver_manager")


def spark_in(modules: list[str]) -> list[str]:
    """What of these belongs to Spark."""
    return [name for name in modules if name.startswith(SPARK)]


def test_help_of_the_pipeline_imports_no_spark() -> None:
    for arguments in (["pipeline", "--help"], ["pipeline", "run", "--help"], ["pipeline", "jobs"]):
        said, modules = imported_by("-m", "gateway", *arguments)
        assert "rollup" in said or "reconcile" in said
        assert spark_in(modules) == []
        for heavy in ("httpx", "sqlalchemy", "starlette", "gateway.app"):
            assert heavy not in modules


@pytest.mark.parametrize("job", JOBS)
def test_help_of_a_job_imports_no_spark(job: str) -> None:
    said, modules = imported_by("-m", "gateway.pipeline", "run", job, "--help")
    assert "--dry-run" in said
    assert spark_in(modules) == []


def test_the_service_imports_no_spark(tmp_path: Path) -> None:
    ports = tmp_path / "ports.json"
    command = [sys.executable, "-X", "importtime", "-m", "gateway", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--http-port", "0", "--ops-port", "0", "--amqp-port", "0", "--ports-file", str(ports)]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
    try:
        wait_for_ports(process, ports)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    lines = (tmp_path / "said").read_text(encoding="utf-8", errors="replace").splitlines()
    modules = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
    assert "gateway.app" in modules
    assert spark_in(modules) == []
    assert [
        name for name in modules if name.startswith("gateway.pipeline.") and name != "gateway.pipeline.schema"
    ] == []
