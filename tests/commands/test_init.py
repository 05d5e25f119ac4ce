"""The command line as a whole: help, exit statuses, and what it costs to start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway import __version__, commands, errors
from gateway.commands import exit_status
from tests.commands.conftest import Run


def test_help_names_every_verb_and_every_exit_status(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for verb, (_, text) in commands.VERBS.items():
        assert verb in result.stdout
        assert text in result.stdout
    for status, meaning in commands.EXIT_STATUS.items():
        assert f"{status}  {meaning}" in result.stdout


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
    ("error", "status"),
    [
        (errors.ConfigurationError, commands.USAGE),
        (errors.NotFound, commands.NOT_FOUND),
        (errors.PreconditionFailed, commands.REFUSED),
        (errors.EncodeError, commands.REFUSED),
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


def gateway_help(*arguments: str) -> tuple[str, float]:
    """What ``python -m gateway … --help`` printed, and the CPU time it took, in seconds."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, *arguments, "-m", "gateway", "--help"], capture_output=True, text=True, check=True
    )
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout + done.stderr, spent


def test_help_imports_nothing_that_it_does_not_need() -> None:
    said, _ = gateway_help("-X", "importtime")
    assert "click" in said
    for heavy in ("asyncio", "httpx", "msgspec", "sqlalchemy", "starlette", "gateway.app"):
        assert f" {heavy}\n" not in said


def test_help_is_there_before_anyone_notices() -> None:
    assert min(gateway_help()[1] for _ in range(5)) < 0.15
