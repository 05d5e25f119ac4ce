"""``gateway taps``: put, shown, paused, deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from gateway import commands
from tests.commands.conftest import Run

Gateway = Callable[..., Result]


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A verb on the gateway that runs."""
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


@pytest.fixture
def orders(ask: Gateway, unique_name: Callable[[str], str]) -> Iterator[str]:
    """A tap on a queue of its name."""
    name = unique_name("orders")
    assert ask("queues", "declare", "local-0-9-1", name).exit_code == 0
    put = ask("taps", "put", name, "-", input=f'broker = "local-0-10"\nqueue = "{name}"\n')
    assert put.exit_code == 0, put.stderr
    assert put.stderr == f"{name}: from local-0-10 {name} into the message log\n"
    yield name
    ask("taps", "delete", name, "--yes")


def shown(ask: Gateway, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask("taps", "get", name, "--json").stdout)
    return found


def test_put_get_list_and_delete(ask: Gateway, orders: str) -> None:
    table = ask("taps", "get", orders).stdout
    fields = dict(line.split(maxsplit=1) for line in table.splitlines() if not line.startswith(("{", " ", "}")))
    assert (fields["name"], fields["version"]) == (orders, "0-10")
    assert json.loads(table[table.index("{") :]) == shown(ask, orders)["settings"]
    listed = ask("taps", "list").stdout.splitlines()
    assert listed[0].split()[:4] == ["NAME", "STATE", "FROM", "SPOOLED"]
    (line,) = [line for line in listed if line.startswith(orders)]
    assert f"local-0-10 {orders}" in line
    assert orders in [each["name"] for each in json.loads(ask("taps", "list", "--json").stdout)["taps"]]
    assert ask("taps", "delete", orders, "--yes").stderr == "deleted\n"
    for verb in ("get", "pause", "resume"):
        assert ask("taps", verb, orders).exit_code == commands.NOT_FOUND
    assert ask("taps", "delete", orders, "--yes").exit_code == commands.NOT_FOUND


def test_pause_and_resume(ask: Gateway, orders: str) -> None:
    assert ask("taps", "pause", orders).stderr == f"{orders} is paused\n"
    published = ask("publish", "local-0-9-1", "amq.default", orders, "hello")
    assert published.exit_code == 0, published.output
    assert json.loads(ask("taps", "pause", orders, "--json").stdout)["state"] == "paused"
    assert shown(ask, orders)["spooled"] == 0
    assert ask("taps", "resume", orders).exit_code == 0
    deadline = time.monotonic() + 20
    while shown(ask, orders)["spooled"] != 1:
        assert time.monotonic() < deadline, shown(ask, orders)
        time.sleep(0.05)


def test_replacing(ask: Gateway, orders: str) -> None:
    text = json.dumps(shown(ask, orders)["settings"] | {"prefetch": 7})
    refused = ask("taps", "put", orders, "-", input=text)
    assert (refused.exit_code, "precondition_required" in refused.stderr) == (commands.REFUSED, True)
    replaced = ask("taps", "put", orders, "-", "--replace", "--json", input=text)
    assert json.loads(replaced.stdout)["settings"]["prefetch"] == 7


def test_wrong_settings(ask: Gateway, orders: str) -> None:
    wrong = ask("taps", "put", "other", "-", input='broker = "local-0-8"\n')
    assert (wrong.exit_code, "queue: neither queue nor exchange is given" in wrong.stderr) == (commands.USAGE, True)
