"""Secrets in the ledger: brought under another key while somebody else writes; and variables that come in files."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.commands import cli
from gateway.config import ENVIRONMENT, EndpointAuth, EndpointSettings, LedgerSettings, load
from gateway.errors import ConfigurationError
from gateway.ledger import Ledger
from gateway.ledger.access.audit import PURPOSE
from gateway.webhooks.settings import resealing
from gateway.webhooks.settings.documents import Documents, EndpointStateDocument
from gateway.webhooks.settings.endpoints import ENDPOINT_RESOURCE, STATE
from gateway.webhooks.settings.keys import make, seal
from gateway.webhooks.settings.secrets import Seals

OLD, NEW = bytes(32), bytes([7]) * 32
SECRET = "canary-of-the-endpoint"
BOTH = Seals([NEW, OLD])


async def fill(ledger: Ledger, seals: Seals, names: tuple[str, ...] = ("a", "b")) -> list[str]:
    """Endpoints with a secret and two signing keys each; the keys."""
    documents = Documents(seals, {}, "")
    told = []
    for name in names:
        settings = EndpointSettings(url="https://hooks.example/", auth=EndpointAuth(kind="bearer", secret=SECRET))
        spec = msgspec.to_builtins(documents.spec(name, settings))
        await ledger.put_resource(ENDPOINT_RESOURCE, name, spec)
        keys = [make(scheme, lambda size: bytes(range(size)), 1.0) for scheme in ("v1", "v1a")]
        state = EndpointStateDocument(keys=seal(seals, name, keys, ()))
        await ledger.put_resource(STATE, name, msgspec.to_builtins(state))
        told += [str(key.key) for key in keys]
    return told


async def opened(ledger: Ledger, seals: Seals, name: str) -> Any:
    spec, state = await ledger.get_resource(ENDPOINT_RESOURCE, name), await ledger.get_resource(STATE, name)
    return Documents(seals, {}, "").make(name, spec, state)


async def test_everything_comes_under_the_new_key(ledger: Ledger) -> None:
    await fill(ledger, Seals([OLD]))
    assert await ledger.read(resealing.used) == {Seals([OLD]).name: 6}
    assert (await opened(ledger, Seals([NEW]), "a")).trouble
    assert await resealing.rotate(ledger, BOTH) == (6, [])
    assert await ledger.read(resealing.used) == {BOTH.name: 6}
    held = await opened(ledger, Seals([NEW]), "b")
    assert (held.trouble, held.endpoint.settings.auth.secret) == ("", SECRET)
    assert {key.scheme for key in held.endpoint.keys} <= {"v1", "v1a"}
    assert len(held.state.keys) == 2
    assert await resealing.rotate(ledger, BOTH) == (0, [])


async def test_what_cannot_be_opened_stays(ledger: Ledger) -> None:
    await fill(ledger, Seals([OLD]), ("a",))
    await fill(ledger, Seals([bytes([9]) * 32]), ("lost",))
    done, failed = await resealing.rotate(ledger, BOTH)
    assert done == 3
    assert [text.partition(":")[0] for text in failed] == ["lost", "lost"]
    await ledger.put_resource(ENDPOINT_RESOURCE, "odd", {"settings": 7})
    assert "another release" in (await resealing.rotate(ledger, BOTH))[1][1]


async def test_others_write_meanwhile(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(ledger, Seals([OLD]), ("a",))
    put, changes = ledger.put_resource, [1]

    async def meanwhile(kind: str, name: str, spec: Any, if_match: str | None = None) -> Any:
        if changes and kind == STATE:
            there = await ledger.get_resource(kind, name)
            assert there is not None
            await put(kind, name, {**there.spec, "paused": bool(changes.pop())})
        return await put(kind, name, spec, if_match)

    monkeypatch.setattr(ledger, "put_resource", meanwhile)
    assert await resealing.rotate(ledger, BOTH) == (3, [])
    held = await opened(ledger, Seals([NEW]), "a")
    assert (held.trouble, held.state.paused) == ("", True)
    await fill(ledger, Seals([OLD]), ("b",))
    changes += [1, 0] * 100
    _, failed = await resealing.rotate(ledger, BOTH)
    assert len(failed) == 1
    assert "repeat" in failed[0]


async def test_an_endpoint_that_is_deleted_meanwhile(ledger: Ledger) -> None:
    assert await resealing._rotate(ledger, BOTH, STATE, None) == 0


def test_the_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    file = tmp_path / "keys"
    file.write_bytes(b64encode(OLD) + b"\n")

    async def prepare() -> None:
        ledger = await Ledger.open(url, LedgerSettings(), owner="test", migrate=True)
        await fill(ledger, Seals([OLD]))
        await ledger.close()
        ledger = await Ledger.open(url, LedgerSettings(), owner="test", audit_keys=Seals([OLD]).derived(PURPOSE))
        await ledger.audit.append([(1, {"action": "a"}), (2, {"action": "b"})])
        await ledger.close()

    asyncio.run(prepare())

    def run(*arguments: str) -> Result:
        environ = {"GATEWAY_SECRETS_FILE": str(file), "GATEWAY_CONFIG": None}
        return CliRunner().invoke(cli, ["secrets", *arguments, "--data-dir", str(tmp_path)], env=environ)

    def listed() -> dict[str, int]:
        return {row["key"]: row["secrets"] for row in json.loads(run("list", "--json").stdout)["keys"]}

    assert list(listed().values()) == [6]
    file.write_bytes(b64encode(NEW) + b"\n" + b64encode(OLD) + b"\n")
    assert list(listed().values()) == [0, 6]
    done = run("rotate")
    assert (done.exit_code, done.stderr) == (0, "6 secrets are sealed again\n")
    assert list(listed().values()) == [6, 0]
    assert [row["audit_rows"] for row in json.loads(run("list", "--json").stdout)["keys"]] == [0, 2]
    file.write_bytes(b64encode(bytes([9]) * 32) + b"\n")
    assert "MISSING" in run("list").stdout
    failed = run("rotate")
    assert failed.exit_code == 6
    assert SECRET not in failed.output
    assert SECRET.encode() not in (tmp_path / "ledger.db").read_bytes()


# --------------------------------------------------------------------------------------- variables in files


@pytest.fixture
def named(tmp_path: Path) -> Callable[[bytes], str]:
    def write(octets: bytes) -> str:
        path = tmp_path / "value"
        path.write_bytes(octets)
        return str(path)

    return write


def test_a_variable_in_a_file(named: Callable[[bytes], str]) -> None:
    file = named(b"postgresql://gateway:secret@db/gateway\n")
    assert load(None, {"GATEWAY_LEDGER_URL_FILE": file}).ledger.url == "postgresql://gateway:secret@db/gateway"
    assert load(None, {"GATEWAY_HTTP_PORT_FILE": named(b"81")}).http.port == 81


def test_files_that_are_none(named: Callable[[bytes], str]) -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_LEDGER_URL_FILE: /nowhere"):
        load(None, {"GATEWAY_LEDGER_URL_FILE": "/nowhere"})
    with pytest.raises(ConfigurationError, match="both set"):
        load(None, {"GATEWAY_LEDGER_URL_FILE": named(b"x"), "GATEWAY_LEDGER_URL": "y"})
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load(None, {"GATEWAY_LEDGER_URL_FILE": named(b"\xff")})


def test_no_variable_is_another_ones_file() -> None:
    assert not {f"{name}_FILE" for name in ENVIRONMENT} & ENVIRONMENT.keys()
