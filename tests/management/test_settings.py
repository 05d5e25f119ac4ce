"""The setting ``management``, the doctor's check of it, and ``gateway queues find``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import load, parse_management_url
from gateway.errors import ConfigurationError
from gateway.exits import REFUSED, UNREACHABLE, USAGE
from tests.commands.conftest import Run, gateway, run
from tests.doctor.conftest import Look, look
from tests.servers import RabbitMQ

__all__ = ["gateway", "look", "run"]
AMQP = "amqp://guest:guest@127.0.0.1:1/"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h:15672", ("http://h:15672", None, None)),
        ("https://u:p%40%2F@h/", ("https://h", "u", "p@/")),
        ("https://u@[::1]:8443/rabbit/", ("https://[::1]:8443/rabbit", "u", None)),
        ("http://:@h", ("http://h", "", "")),
    ],
)
def test_a_url_taken_apart(url: str, parts: tuple[str, str | None, str | None]) -> None:
    found = parse_management_url(url)
    assert (found.base, found.user, found.password) == parts


@pytest.mark.parametrize(
    "url",
    ["amqp://h", "h:15672", "http://", "http://h:0", "http://h:x", "http://u:se/cret@h", "http://[", "http://h?a=b",
     "http://h#a", "http://@h", "ftp://u:secret@h", ""],
)  # fmt: skip
def test_a_wrong_url_is_refused_without_its_password(url: str, tmp_path: Path) -> None:
    if url:
        path = tmp_path / "gateway.toml"
        path.write_text(f'[brokers.shop]\nurl = "{AMQP}"\nmanagement = "{url}"\n')
        with pytest.raises(
            ConfigurationError, match=r"gateway\.toml: brokers\.shop\.management: management URL: "
        ) as caught:
            load(path, {})
        assert "cret" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        parse_management_url(url)


def test_the_doctor_says_whether_it_answers(look: Look, rabbitmq40: RabbitMQ) -> None:
    port = rabbitmq40.state.ports["management"]
    broker = f'[brokers.shop]\nurl = "{rabbitmq40.url("0-9-1")}"\n'
    fine = look(f'{broker}management = "http://127.0.0.1:{port}"\n', "brokers")
    assert (fine.one("broker.management").severity.value, fine.exit) == ("ok", 0), fine.text
    wrong = look(f'{broker}management = "http://guest:not-the-word@127.0.0.1:{port}"\n', "brokers")
    finding = wrong.one("broker.management")
    assert (finding.severity.value, finding.exit, wrong.exit) == ("fail", REFUSED, REFUSED)
    assert finding.what.startswith("The management API refuses the login (401).")
    assert "not-the-word" not in wrong.text
    assert wrong.failed == ["broker.management"], "the broker itself is well"
    away = look(f'{broker}management = "http://127.0.0.1:1"\n', "brokers")
    assert (away.failed, away.exit) == (["broker.management"], UNREACHABLE)
    assert "cannot be reached" in away.one("broker.management").what
    assert not look(broker, "brokers").all("broker.management")


def test_a_file_with_its_password_is_nobody_elses_to_read(look: Look, tmp_path: Path) -> None:
    text = '[brokers.shop]\nurl = "amqp://guest@127.0.0.1:1/"\nmanagement = "http://watcher:the-word@127.0.0.1:1"\n'
    assert "config.rights" not in look(text).warned
    from gateway.commands import doctor

    path = tmp_path / "gateway.toml"
    path.chmod(0o644)
    report = asyncio.run(doctor.examine(str(path), {"data_dir": str(tmp_path / "d")}, frozenset({"config"}), 1.0))
    assert "config.rights" in [finding.check for finding in report.findings]
    broken = look(text.replace("[brokers.shop]", "[brokers.shop]\nulr = 1"))
    assert (broken.exit, "the-word" in broken.text) == (USAGE, False)


def test_queues_are_found_from_the_command_line(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_URL", gateway)
    for name in ("find-orders", "find-invoices"):
        assert run("queues", "declare", "local-0-9-1", name).exit_code == 0
    found = run("queues", "find", "FIND-", "--broker", "local-0-9-1", "--sort=-name")
    assert found.exit_code == 0, found.stderr
    head, *rows = (line.split() for line in found.stdout.splitlines())
    assert head[:3] == ["BROKER", "NAME", "DEPTH"]
    assert [row[:6] for row in rows] == [
        ["local-0-9-1", "find-orders", "0", "0", "0", "0"],
        ["local-0-9-1", "find-invoices", "0", "0", "0", "0"],
    ]
    assert found.stderr == ""
    some = run("queues", "find", "find-", "--broker", "local-0-9-1", "--limit", "1")
    assert some.stderr == "1 of 2 queues; give a TEXT, or a larger --limit\n"
    body: Any = json.loads(run("queues", "find", "find-", "--json").stdout)
    assert {row["name"] for row in body["queues"]} == {"find-orders", "find-invoices"}
    assert {each["source"] for each in body["brokers"]} == {"embedded"}
    assert run("queues", "find", "--broker", "none").exit_code == 3
    assert run("queues", "find", "--sort", "size").exit_code == USAGE
