"""The configuration: all that is wrong with it at once, and never a secret."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from gateway import commands
from gateway.commands.doctor.settings import VARIABLES
from gateway.config import ENVIRONMENT
from gateway.exits import FAILED, USAGE
from tests.doctor.conftest import Look

SECRET = "hunter2-is-nobodys-business"
GOOD = f'[brokers.orders]\nurl = "amqp://shop:{SECRET}@127.0.0.1:5672/"\n'


def test_where_all_is_well(look: Look) -> None:
    found = look(GOOD + '[[api_keys]]\nname = "shop"\nsha256 = "' + "0" * 64 + '"\n')
    assert (found.failed, found.warned, found.exit) == ([], [], 0)
    assert found.one("config.file").what == "it can be used: role all, 1 broker, 1 api key"


@pytest.mark.parametrize(
    ("text", "where", "do"),
    [
        ("dta_dir = '.'", "dta_dir", "Write data_dir."),
        ("[brokrs.a]\nurl = 'amqp://h'", "brokrs", "Write brokers."),
        ("[http]\nprot = 1", "http.prot", "Write port."),
        ("[brokers.a]\nurl = 'amqp://h'\npasword_file = 'x'", "brokers.a.pasword_file", "Write password_file."),
        ("[[api_keys]]\nname = 'a'\nkye = 'x'", "api_keys[0].kye", "Write key."),
        ("[brokers.a]\nurl = 'amqp://h'\ntls = {cafile = 'x'}", "brokers.a.tls.cafile", "Write ca_file."),
        ("drain_timeout = 3", "drain_timeout", "It belongs to [http]."),
        ("[ops]\nzzz = 3", "ops.zzz", "Take it out. ops has: host, port"),
        ("zzz = 3", "zzz", "Take it out. The top of the file has: role,"),
    ],
)
def test_a_name_that_is_no_setting(look: Look, text: str, where: str, do: str) -> None:
    found = look(text)
    finding = found.one("config.unknown")
    assert finding.what == f"there is no setting {where}"
    assert finding.do.startswith(do)
    assert found.exit == USAGE


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[http]\nport = 'x'", "http.port", "expected an integer, got a string"),
        ("role = 'boss'", "role", "'boss' is not one of "),
        ("[brokers.a]\nurl = 'amqp://h'\nheartbeat = -1", "brokers.a.heartbeat", "expected a number >= 0.0, got -1"),
        ("[brokers.a]\nrequired = true", "brokers.a.url", "it is required, and missing"),
        ("[brokers.'a b']\nurl = 'amqp://h'", 'brokers."a b"', "this name is not allowed: expected a string"),
        ("[[api_keys]]\nsha256 = 'x'", "api_keys[0].name", "it is required, and missing"),
        ("[http.tls]\nclients = 'none'", "http.tls.clients", "'none' is not one of "),
        ("http = 3", "http", "expected an object, got an integer"),
    ],
)
def test_a_value_that_does_not_fit(look: Look, text: str, where: str, what: str) -> None:
    found = look(text)
    finding = found.one("config.value")
    assert finding.where.endswith(f"gateway.toml: {where}")
    assert finding.what.startswith(what)
    assert found.exit == USAGE


def test_everything_is_told_at_once(look: Look) -> None:
    found = look("rol = 'api'\n[http]\nport = 'x'\n[ops]\nprot = 3\n[brokers.a]\nurl = 'amqp://h'\nheartbeat = 'x'\n")
    assert found.failed == ["config.unknown"] * 2 + ["config.value"] * 2


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[brokers.a]\nurl = 'http://h'", "brokers.a.url: broker URL: scheme is 'http'"),
        ("[subscriptions.s]\nbroker = 'none'\nqueue = 'q'", "subscriptions.s.broker: there is no broker 'none'"),
        (GOOD + "[subscriptions.s]\nbroker = 'orders'", "subscriptions.s.queue: neither queue nor exchange is given"),
    ],
)
def test_settings_that_do_not_go_together(look: Look, text: str, what: str) -> None:
    finding = look(text).one("config.rule")
    assert finding.what.startswith(what)


def test_a_file_that_is_no_toml(look: Look) -> None:
    found = look("[http\nport = 1")
    assert "it is no TOML" in found.one("config.file").what
    assert "line 1" in found.one("config.file").what
    assert found.exit == USAGE


def test_a_file_that_is_no_json(look: Look) -> None:
    assert "it is no JSON" in look("{", file="gateway.json").one("config.file").what
    assert look("[]", file="gateway.json").one("config.file").what == "it is no object of JSON"


def test_a_file_that_is_not_there(look: Look, tmp_path: Path) -> None:
    import asyncio

    from gateway.commands import doctor

    report = asyncio.run(doctor.examine(str(tmp_path / "none.toml"), {}, frozenset({"config"}), 1))
    assert [finding.what for finding in report.findings] == ["there is no such file"]


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    import asyncio

    from gateway.commands import doctor

    path = tmp_path / "gateway.toml"
    path.write_bytes(b"role = '\xff'")
    report = asyncio.run(doctor.examine(str(path), {}, frozenset({"config"}), 1))
    assert [finding.what for finding in report.findings] == ["it is not UTF-8, at octet 8"]


def test_a_file_with_secrets_that_everybody_may_read(look: Look, tmp_path: Path) -> None:
    import asyncio

    from gateway.commands import doctor

    look(GOOD)
    path = tmp_path / "gateway.toml"
    path.chmod(0o644)
    report = asyncio.run(doctor.examine(str(path), {}, frozenset({"config"}), 1))
    assert [finding.check for finding in report.findings] == ["config.file", "config.rights"]
    assert (report.exit(), report.exit(strict=True)) == (0, FAILED)


# ------------------------------------------------------------------------------------------------- variables


def test_a_variable_that_nobody_knows(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_LEDGER_ULR", "sqlite:///x")
    found = look(GOOD)
    finding = found.one("config.variable")
    assert (finding.where, finding.do) == ("GATEWAY_LEDGER_ULR", "GATEWAY_LEDGER_URL may be meant.")
    assert found.exit == 0


def test_variables_that_kubernetes_makes(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATEWAY_SERVICE_HOST", "GATEWAY_SERVICE_PORT_HTTP", "GATEWAY_PORT_8080_TCP_ADDR", "GATEWAY_PORT"):
        monkeypatch.setenv(name, "10.0.0.1")
    assert look(GOOD).all("config.variable") == []
    monkeypatch.setenv("GATEWAY_HTTP_PORT", "tcp://10.0.0.1:8080")
    finding = look(GOOD).one("config.variable")
    assert finding.where == "GATEWAY_HTTP_PORT"
    assert "enableServiceLinks: false" in finding.do


def test_a_variable_that_does_not_fit(look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GATEWAY_HTTP_PORT", "many")
    monkeypatch.setenv("GATEWAY_LEDGER_URL_FILE", str(tmp_path / "none"))
    found = look(GOOD)
    assert [finding.where for finding in found.all("config.variable")] == [
        "GATEWAY_HTTP_PORT", "GATEWAY_LEDGER_URL_FILE",
    ]  # fmt: skip
    assert found.exit == USAGE


def test_every_variable_of_the_command_line_is_known() -> None:
    settings = {*ENVIRONMENT, *(f"{name}_FILE" for name in ENVIRONMENT)}

    def variables(command: click.Command, context: click.Context) -> set[str]:
        found = {
            parameter.envvar
            for parameter in command.params
            if isinstance(parameter, click.Option) and isinstance(parameter.envvar, str)
        }
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                found |= variables(inner, click.Context(inner, parent=context, info_name=name))
        return found

    found = variables(commands.cli, click.Context(commands.cli))
    assert found - settings == VARIABLES


# --------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "[http]\nport = 'x'",
        GOOD + "oops",
        GOOD.replace("5672", "x"),
        f"[brokers.a]\nurl = 'amqp://a:{SECRET}@/'",
        f"[ledger]\nurl = 'mysql://a:{SECRET}@h/d'",
        f"[[api_keys]]\nname = 'a'\nkey = '{SECRET}'\nscopes = ['{SECRET}x']",
        f"[[api_keys]]\nname = 'a'\nkey = '{SECRET}'\nsha256 = 'x'",
        f"[endpoints.e]\nurl = 'https://u:{SECRET}@hooks.example/'",
        f"[endpoints.e]\nurl = 'https://127.0.0.1:1/'\nauth = {{kind = 'none', secret = '{SECRET}'}}",
        f"[endpoints.e]\nurl = 'https://127.0.0.1:1/'\nheaders = {{authorization = '{SECRET}'}}",
        f"[endpoints.e]\nurl = 'https://127.0.0.1:1/'\ntls = {{key = '{SECRET}'}}",
    ],
)
def test_no_secret_is_shown(look: Look, text: str) -> None:
    found = look(text, "config", "access", "files", "ledger", "outbound", within=1.0)
    assert found.failed
    assert SECRET not in found.text
    assert SECRET not in str(found.report.as_dict())


def test_no_secret_of_a_variable_is_shown(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_LEDGER_URL", f"mysql://a:{SECRET}@h/d")
    monkeypatch.setenv("GATEWAY_HTTP_PORT", f"amqp://a:{SECRET}@h")
    found = look(GOOD, "config", "ledger", within=1.0)
    assert found.failed
    assert SECRET not in found.text
