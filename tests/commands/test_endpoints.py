"""``gateway endpoints``: put, shown, tested, steered, deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gateway import commands
from tests.commands.conftest import Canned, Run

Gateway = Callable[..., Result]
URL = "https://hooks.example/in"
TOML = f'url = "{URL}"\nsigning = ["v1", "v1a"]\n'


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A verb on the gateway that runs."""
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


@pytest.fixture
def shop(ask: Gateway, unique_name: Callable[[str], str]) -> Iterator[str]:
    """An endpoint."""
    name = unique_name("shop")
    put = ask("endpoints", "put", name, "-", input=TOML)
    assert put.exit_code == 0, put.stderr
    assert put.stdout.startswith("whsec_")
    assert len(put.stdout.splitlines()) == 1, "a public key is no secret"
    assert f"{name} is active: {URL}" in put.stderr
    assert "is shown this once" in put.stderr
    yield name
    ask("endpoints", "delete", name, "--yes")


def test_put_get_list_and_delete(ask: Gateway, shop: str) -> None:
    again = ask("endpoints", "put", shop, "-", input=TOML)
    assert (again.exit_code, again.stdout) == (0, ""), "the key is not shown again"
    assert f"gateway endpoints rotate {shop}" in again.stderr
    shown = ask("endpoints", "get", shop).stdout
    assert "whsec_" not in shown
    assert "whpk_" in shown
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines()[:9] if len(line.split(maxsplit=1)) == 2)
    assert (fields["name"], fields["state"], fields["secrets"]) == (shop, "active", "-")
    settings = json.loads(shown[shown.index("{") :])
    assert settings == json.loads(ask("endpoints", "get", shop, "--json").stdout)["settings"]
    (line,) = [line for line in ask("endpoints", "list").stdout.splitlines() if line.startswith(shop)]
    assert line.split() == [shop, "active", URL, "json", "v1", "v1a", "none", "-", "-"]
    listed = json.loads(ask("endpoints", "list", "--json").stdout)["endpoints"]
    assert shop in [each["name"] for each in listed]
    assert ask("endpoints", "delete", shop, "--yes").stderr == "deleted\n"
    for verb in ("get", "pause", "resume", "enable", "verify", "rotate", "test"):
        assert ask("endpoints", verb, shop).exit_code == commands.NOT_FOUND


def test_replacing(ask: Gateway, shop: str, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text(f'[endpoints.{shop}]\nurl = "{URL}"\nrate = 5\n')
    refused = ask("endpoints", "put", shop, str(file))
    assert (refused.exit_code, "precondition_required" in refused.stderr) == (commands.REFUSED, True)
    replaced = ask("endpoints", "put", shop, str(file), "--replace", "--json")
    assert json.loads(replaced.stdout)["settings"]["rate"] == 5
    other = ask("endpoints", "put", "other", str(file))
    assert (other.exit_code, "there is no [endpoints.other] in it" in other.stderr) == (commands.USAGE, True)
    denied = ask("endpoints", "put", shop, "-", "--replace", input='{"url": "https://10.0.0.1/"}')
    assert (denied.exit_code, "address_denied" in denied.stderr) == (commands.REFUSED, True)


def test_pause_resume_and_enable(ask: Gateway, shop: str) -> None:
    assert ask("endpoints", "pause", shop).stderr == f"{shop} is paused: paused\n"
    assert json.loads(ask("endpoints", "resume", shop, "--json").stdout)["state"] == "active"
    assert ask("endpoints", "enable", shop).stderr == f"{shop} is active\n"


def test_rotate(ask: Gateway, shop: str) -> None:
    rotated = ask("endpoints", "rotate", shop, "--scheme", "v1", "--overlap", "60")
    lines = rotated.stderr.splitlines()
    assert lines[0].split()[:2] == ["KEY", "SCHEME"]
    assert [line.split()[1] for line in lines[1:4]] == ["v1", "v1", "v1a"]
    assert rotated.stdout.startswith("whsec_")
    assert len(rotated.stdout.splitlines()) == 1, "it can go to a file as it is"
    finished = json.loads(ask("endpoints", "rotate", shop, "--finish", "--json").stdout)
    assert len(finished["signing_keys"]) == 2
    until = json.loads(ask("endpoints", "rotate", shop, "--until-finish", "--json").stdout)
    assert [key["until"] for key in until["signing_keys"]] == [None] * 4


def test_an_endpoint_that_does_not_answer(ask: Gateway, shop: str) -> None:
    """Names that lead nowhere are not looked up on the machine of a test."""
    found = ask("endpoints", "test", shop)
    assert found.exit_code == commands.REFUSED
    assert f"the endpoint '{shop}' did not take it" in found.stderr
    assert "verdict" in found.stdout


RESULT: dict[str, Any] = {
    "id": "m", "delivered": True, "status": 200, "verdict": "delivered", "reason": "200: success", "retry_after": None,
    "content_type": "text/plain", "body": "ok\x1b[31m", "body_encoding": "string", "truncated": False, "seconds": 0.01,
}  # fmt: skip


def test_an_endpoint_that_takes_it(run: Run, canned: Canned) -> None:
    canned.answer(200, RESULT)
    found = run("endpoints", "test", "shop", "--url", canned.url)
    assert found.exit_code == 0
    assert "\x1b" not in found.stdout
    assert ["status", "200"] in [line.split() for line in found.stdout.splitlines()]
    assert canned.asked[-1][:2] == ("POST", "/v1/endpoints/shop:test")
    assert json.loads(run("endpoints", "test", "shop", "--url", canned.url, "--json").stdout) == RESULT


def test_verify(run: Run, canned: Canned) -> None:
    canned.answer(200, {"name": "shop", "state": "unverified", "reason": "not verified: it answered 405"})
    found = run("endpoints", "verify", "shop", "--url", canned.url)
    assert found.stderr == "shop is unverified: not verified: it answered 405\n"
