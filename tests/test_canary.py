"""The planted secret is found where it is, however it is written; and what knows secrets does not tell them."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from click.testing import CliRunner

from gateway import commands
from gateway.config import load, parse_broker_url
from gateway.errors import GatewayError
from gateway.observing.telemetry import log
from tests import canary, suites
from tests.canary import CANARY, look, taken
from tests.suites import Suite

QUOTED = quote(CANARY, safe="")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What was seen, which is not held against this test."""
    monkeypatch.delenv(canary.VARIABLE, raising=False)
    yield taken
    taken()


@pytest.mark.parametrize(
    "said",
    [
        CANARY, f"amqp://guest:{QUOTED}@localhost", CANARY.encode().hex(), CANARY.encode().hex().upper(),
        *(b64encode(b"\0guest"[:length] + CANARY.encode() + b"!").decode() for length in range(7)),
    ],
)  # fmt: skip
def test_it_is_seen_however_it_is_written(said: str, seen: Callable[[], list[str]]) -> None:
    assert look(f"before {said} after", "here")
    (note,) = seen()
    assert note.startswith("here: …before")
    assert not look("amqp://guest:***@localhost", "here")
    assert seen() == []


def test_it_is_seen_in_logs_answers_files_and_on_the_command_line(
    seen: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log("test.event", logging.ERROR, url=f"amqp://guest:{QUOTED}@localhost")
    assert "log of gateway" in seen()[0]
    monkeypatch.setattr(canary, "CHUNK", 10)
    (tmp_path / "ledger.db").write_bytes(bytes(95) + CANARY.encode() + bytes(95))
    canary.look_at(tmp_path, "*.db")
    assert "ledger.db" in seen()[0]
    CliRunner().invoke(commands.cli, [f"no-such-verb-{CANARY}"])
    assert "command line" in seen()[0]


def test_a_suite_in_which_it_is_seen_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "BIN", Path("/bin"))
    monkeypatch.delenv(canary.VARIABLE, raising=False)  # that of the suite in which this runs
    said, _ = suites.run(Suite("s", check=(("echo", CANARY),)), {}, tmp_path)
    assert not said.ok
    assert "a planted secret was seen: what the suite printed" in said.why
    written = f'echo "log of gateway: {CANARY}" > "${canary.VARIABLE}"'
    told, _ = suites.run(Suite("t", check=(("sh", "-c", written),)), {}, tmp_path)
    assert "a planted secret was seen: log of gateway" in told.why
    assert suites.run(Suite("u", check=(("echo", "hello"),)), {}, tmp_path)[0].ok
    taken()


BAD_URLS = (
    "amqp://user:{}@host:port/", "amqp://user:{}@:5672/", "http://user:{}@host/", "amqp://user:{}@host/a/b",
    "amqp://user:{}@host/?version=9", "amqp://user:{}@host/?password={}&x=1", "amqp://user:{}@host/#x",
    "amqp://user:{}@[::1/", "user:{}@host", "amqp://user:{}@host:99999/", "amqp://us er:{}@ho\tst:1/\x7f",
)  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
@pytest.mark.parametrize("secret", [CANARY, QUOTED], ids=["as it is", "quoted"])
def test_urls_that_are_wrong(url: str, secret: str, tmp_path: Path) -> None:
    """They are refused with a sentence that has no password in it, by whomever."""
    url = url.replace("{}", secret)
    files = [tmp_path / f"{number}.json" for number in range(3)]
    for file, more in zip(files, ({}, {"nonsense": 1}, {"heartbeat": url}), strict=True):
        file.write_text(json.dumps({"brokers": {"b": {"url": url, **more}}}))
    for refuse in (lambda: parse_broker_url(url), *(partial(load, file, {}) for file in files)):
        said = ""
        try:
            refuse()
        except GatewayError as error:
            said = str(error)
        assert CANARY not in said
        assert QUOTED not in said
    CliRunner().invoke(commands.cli, ["probe", url, "--timeout", "1"])  # what it prints is looked at


SECRETS: tuple[dict[str, Any], ...] = (
    {"api_keys": [{"name": "a", "key": CANARY, "sha256": CANARY}]},
    {"api_keys": [{"name": "a", "key": CANARY, "scopes": ["nonsense"]}]},
    {"api_keys": [{"name": "a", "sha256": CANARY}]},
    {"api_keys": [{"name": "a", "key_file": 7, "key": CANARY}]},
    {"endpoints": {"e": {"url": "https://x.example", "auth": {"kind": "basic", "secret": CANARY}}}},
    {"endpoints": {"e": {"url": f"https://user:{QUOTED}@x.example/"}}},
    {"endpoints": {"e": {"url": f"ftp://x.example/{QUOTED}"}}},
    {"endpoints": {"e": {"url": "https://x.example", "headers": {"x-key": CANARY + "\n"}}}},
    {"ledger": {"url": f"postgresql://u:{QUOTED}@127.0.0.1:1/none"}},
    {"ledger": {"url": f"postgresql://u:{CANARY}@127.0.0.1:port/none"}},
    {"ledger": {"url": f"mysql://u:{QUOTED}@127.0.0.1/none"}},
    {"ledger": {"url": f"nonsense {CANARY}"}},
    {"ledger": {"url": f"sqlite:////proc/none/{QUOTED}?x={QUOTED}"}},
    {"embedded": {"enabled": True, "port": -1, "users": [{"name": "u", "password": CANARY}]}},
)


@pytest.mark.parametrize("document", SECRETS, ids=lambda document: msgspec.json.encode(document)[:60].decode())
def test_a_gateway_that_cannot_start_says_why_and_nothing_more(document: dict[str, Any], tmp_path: Path) -> None:
    """A wrong setting beside a secret, or in one. What is printed and logged is looked at."""
    document = {"data_dir": str(tmp_path / "data"), "http": {"port": 0}, "ops": {"port": 0}, **document}
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps(document))
    for verb in (["migrate"], ["keys", "list", "--offline"], ["audit", "verify"]):
        result = CliRunner().invoke(commands.cli, [*verb, "--config", str(file)])
        assert "Traceback" not in result.output
        look(repr(result.exception), f"exception of {verb[0]}")
