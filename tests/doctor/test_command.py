"""``gateway doctor``, as it is called, and beside a gateway that runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.commands import cli
from gateway.commands.doctor import findings
from gateway.commands.doctor.findings import CHECKS, HIDDEN, Report
from gateway.exits import FAILED, NOT_FOUND, UNREACHABLE, USAGE
from tests.doctor.conftest import Look
from tests.servers import RabbitMQ
from tests.servers.process import free_port


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], catch_exceptions=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(f'data_dir = "{tmp_path}/data"\n[http]\nport = 0\n[ops]\nport = 0\n')
    path.chmod(0o600)
    return path


def test_without_a_configuration(tmp_path: Path) -> None:
    result = doctor("--data-dir", str(tmp_path / "data"), "--only", "files", "--only", "ledger", "--only", "config")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("ok    config.file  no file: development")
    assert result.stderr.endswith(" 0 failures\n")
    assert list(tmp_path.iterdir()) == []


def test_as_json(file: Path) -> None:
    result = doctor("--config", str(file), "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["form"], found["result"], found["fail"]) == (0, 1, "warn", 0)
    assert set(found) == {"form", "result", "ok", "warn", "fail", "findings"}
    assert {tuple(each) for each in found["findings"]} == {("check", "severity", "where", "what", "why", "do")}
    assert len(found["findings"]) == found["ok"] + found["warn"]


def test_people_see_what_where_why_and_what_to_do(file: Path) -> None:
    result = doctor("--config", str(file), "--quiet", "--only", "access")
    assert result.stdout.splitlines()[:3] == [
        "warn  access.callers  http.host 127.0.0.1: everybody on this machine may call the API, and do everything",
        "      why: The configuration names no key, issuer or certificate, so that it listens on loopback only.",
        '      do: Set access.required = "always", and make keys: gateway keys create --help. '
        'After that, http.host = "0.0.0.0" lets other machines call it.',
    ]
    assert result.stderr == "1 ok, 1 warnings, 0 failures\n"


def test_strictly(file: Path) -> None:
    assert doctor("--config", str(file), "--only", "access").exit_code == 0
    assert doctor("--config", str(file), "--only", "access", "--strict").exit_code == FAILED


def test_the_status_is_that_of_the_first_failure(file: Path) -> None:
    with file.open("a") as text:
        text.write(f'[brokers.a]\nurl = "amqp://127.0.0.1:{free_port()}"\n')
    result = doctor("--config", str(file))
    assert result.exit_code == UNREACHABLE
    assert "FAIL  broker.tcp  brokers.a" in result.stdout
    with file.open("a") as text:
        text.write('[cluster]\nsecret_file = "/nowhere/at/all"\n')
    assert doctor("--config", str(file)).exit_code == USAGE


def test_a_configuration_that_cannot_be_used_is_told_whatever_is_asked(file: Path) -> None:
    file.write_text("oops")
    result = doctor("--config", str(file), "--only", "brokers")
    assert (result.exit_code, "config.file" in result.stdout) == (USAGE, True)


def test_the_pipeline_is_asked_only_where_it_is_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.pipeline import doctor as of_pipeline

    made = [
        of_pipeline.Finding("java", "FAIL", "there is no Java", NOT_FOUND), of_pipeline.Finding("key", "note", "hm"),
        of_pipeline.Finding("clock", "ok", "as the gateway's"),
    ]  # fmt: skip
    monkeypatch.setattr(of_pipeline, "examine_pipeline", lambda _: made)
    assert "pipeline: " not in doctor("--config", str(file)).stdout
    result = doctor("--config", str(file), "--pipeline")
    assert "FAIL  pipeline  pipeline: java: there is no Java" in result.stdout
    assert result.exit_code == NOT_FOUND


def test_a_defect_of_the_doctor_hides_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.commands.doctor import files

    def break_off(*_: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(files, "examine", break_off)
    result = doctor("--config", str(file))
    assert "FAIL  fault  files: it could not be looked at: RuntimeError: oops" in result.stdout
    assert "ok    ledger.reach" in result.stdout
    assert result.exit_code == FAILED


def test_every_check_is_in_the_table_once_and_looks_at_something() -> None:
    assert all(check.looks_at and check.exit for check in CHECKS.values())


# -------------------------------------------------------------------------------------------------- findings


def test_what_others_said_is_printable_and_short() -> None:
    report = Report()
    report.ok("broker.tcp", "a\x1b[2Jb", "line\nline " + "x" * 2_000)
    (finding,) = report.findings
    assert finding.where == "a\\x1b[2Jb"
    assert finding.what.startswith("line line xxx")
    assert len(finding.what) <= findings.TEXT_MAX + 1


def test_a_secret_is_hidden_before_a_text_is_cut() -> None:
    report = Report(["topsecret"])
    report.part().ok("broker.tcp", "x", "y")
    part = report.part()
    part.ok("broker.tcp", "x", "x" * (findings.TEXT_MAX - 4) + "topsecret")
    assert "tops" not in part.findings[0].what


def test_secrets_are_hidden_and_names_are_not() -> None:
    report, other = Report(), Report()
    report.hide(["guest", "topsecret", "", "abc"], public=["guest"])
    other.fail("broker.login", "x", "guest and topsecret and abc", why="topsecret", do="topsecret")
    report.take(other)
    (finding,) = report.findings
    assert (finding.what, finding.why, finding.do) == (f"guest and {HIDDEN} and abc", HIDDEN, HIDDEN)


# --------------------------------------------------------------------------------------- a gateway that runs


@pytest.fixture
def running(tmp_path: Path, rabbitmq: RabbitMQ) -> Iterator[tuple[Path, int]]:
    """The configuration of a gateway that runs, and its process."""
    http, ops, amqp = free_port(), free_port(), free_port()
    path = tmp_path / "gateway.toml"
    path.write_text(
        f'data_dir = "{tmp_path}/data"\n[http]\nport = {http}\n[ops]\nport = {ops}\n'
        f"[embedded]\nenabled = true\nport = {amqp}\n"
        f'[brokers.rabbit]\nurl = "{rabbitmq.url("0-9-1")}"\nrequired = true\n'
    )
    path.chmod(0o600)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "--config", str(path)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready")
        yield path, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


def ask(path: Path) -> dict[str, Any]:
    """What a process of its own finds: SQLite's locks belong to processes."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "doctor", "--config", str(path), "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.broker
def test_beside_a_gateway_that_runs(running: tuple[Path, int]) -> None:
    path, pid = running
    names = sorted(each.name for each in (path.parent / "data").iterdir())
    deadline = time.monotonic() + 20
    while True:  # its broker may not be up at once
        found = ask(path)
        if (found["result"] == "warn" and "not ready" not in json.dumps(found)) or time.monotonic() > deadline:
            break
    texts = {(each["check"], each["where"].partition(" ")[0]): each["what"] for each in found["findings"]}
    assert found["fail"] == 0, found
    ours = f"(pid {pid})"
    for setting, said in (("ops", "a gateway that runs has it, ready: "), ("http", ""), ("embedded", "")):
        text = texts["listen.port", f"{setting}.port"]
        assert text.startswith(said or "a gateway that runs has it: ")
        assert text.endswith(ours)
    assert texts["ledger.processes", "SQLite"] == f"the process {pid} has it; SQLite serves one process"
    assert texts["ledger.reach", "SQLite"] == "it can be read"
    assert sorted(each.name for each in (path.parent / "data").iterdir()) == names


def test_a_look_is_cheap(look: Look) -> None:
    """Help of the verb imports nothing of the service."""
    code = "import sys; from gateway.commands import cli; cli(['doctor', '-h'], standalone_mode=False);"
    code += "print(sorted(name for name in sys.modules if name.startswith(('gateway.', 'cryptography', 'httpx'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    for name in ("gateway.app", "gateway.config", "cryptography", "httpx"):
        assert f"'{name}'" not in loaded
