"""``gateway brokers``: shown with and without the verb, put, changed and deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway import commands
from tests import canary
from tests.commands.conftest import Canned, Run

SHOWN = {
    "name": "shop", "state": "up", "reason": "", "version": "0-9-1", "product": "RabbitMQ", "product_version": "4",
    "host": "h", "port": 5672, "virtual_host": "/",
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ((), "/v1/brokers"),
        (("show",), "/v1/brokers"),
        (("shop",), "/v1/brokers/shop"),
        (("show", "shop"), "/v1/brokers/shop"),
        (("get", "shop"), "/v1/brokers/shop"),
        (("show", "put"), "/v1/brokers/put"),
        (("--json", "shop"), "/v1/brokers/shop"),
    ],
)
def test_the_verb_may_be_left_out(run: Run, canned: Canned, arguments: tuple[str, ...], path: str) -> None:
    canned.answer(200, SHOWN if path != "/v1/brokers" else {"brokers": [SHOWN]})
    result = run("brokers", *arguments, "--url", canned.url)
    assert result.exit_code == commands.DONE, result.output
    assert "shop" in result.stdout
    assert [asked[:2] for asked in canned.asked] == [("GET", path)]


def test_the_verbs_are_in_the_help(run: Run) -> None:
    found = run("brokers", "--help")
    assert found.exit_code == commands.DONE, found.output
    for verb in ("show", "put", "patch", "delete"):
        assert f"  {verb} " in found.stdout


def test_what_does_not_connect_stays_and_fails(run: Run, gateway: str) -> None:
    settings = b'[brokers.nobody]\nurl = "amqp://shop@127.0.0.1:1/"\npassword = "first"\n'
    put = run("brokers", "put", "nobody", "-", "--url", gateway, input=settings)
    assert put.exit_code == commands.FAILED, put.output
    assert "state: down: 127.0.0.1:1" in put.stderr
    shown = json.loads(run("brokers", "nobody", "--url", gateway, "--json").stdout)
    assert (shown["secrets"], shown["settings"]["url"]) == (["password"], "amqp://shop@127.0.0.1:1/")
    other = run("brokers", "put", "nobody", "-", "--url", gateway, input=b'{"url": "amqp://127.0.0.1:2/"}')
    assert other.exit_code == commands.USAGE
    assert "password: it must be given again" in other.stderr
    other = run("brokers", "put", "nobody", "-", "--url", gateway, input=settings + b"heartbeat = 5\n")
    assert other.exit_code == commands.REFUSED
    assert "Replace the other settings: --replace" in other.stderr
    replaced = run("brokers", "put", "nobody", "-", "--replace", "--url", gateway, input=settings + b"heartbeat = 5\n")
    assert replaced.exit_code == commands.FAILED
    patched = run("brokers", "patch", "nobody", "-", "--url", gateway, "--json", input=b'{"heartbeat": null}')
    assert json.loads(patched.stdout)["settings"]["heartbeat"] == 20
    denied = run("brokers", "put", "far", "-", "--url", gateway, input=b'{"url": "amqp://169.254.169.254/"}')
    assert denied.exit_code == commands.REFUSED
    assert "broker_allow" in denied.stderr
    deleted = run("brokers", "delete", "nobody", "--yes", "--url", gateway)
    assert (deleted.exit_code, deleted.stderr) == (commands.DONE, "deleted\n")
    assert run("brokers", "delete", "nobody", "--yes", "--url", gateway).exit_code == commands.NOT_FOUND
    fixed = run("brokers", "delete", "local-0-9-1", "--yes", "--url", gateway)
    assert fixed.exit_code == commands.REFUSED


@pytest.mark.broker
def test_a_real_broker(run: Run, gateway: str, rabbitmq40: Any, tmp_path: Path) -> None:
    user, _ = canary.login(rabbitmq40)
    file = tmp_path / "shop.toml"
    place = rabbitmq40.url("0-9-1").partition("@")[2]
    file.write_text(f'url = "amqp://{user}@{place}"\npassword = "{canary.CANARY}"\n')
    put = run("brokers", "put", "shop", str(file), "--url", gateway)
    assert (put.exit_code, put.stderr) == (commands.DONE, "shop is up\n")
    wrong = run("brokers", "patch", "shop", "-", "--url", gateway, input=b'password = "wrong"')
    assert wrong.exit_code == commands.FAILED
    assert run("brokers", "patch", "shop", str(file), "--url", gateway).exit_code == commands.DONE
    deleted = run("brokers", "delete", "shop", "--yes", "--url", gateway, "--json")
    assert (deleted.exit_code, json.loads(deleted.stdout)) == (commands.DONE, {})
    assert canary.taken() == []
