"""``gateway keys``: made, listed, replaced, revoked; and the first one of all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from gateway.access.keys import StoredKeys, is_key
from gateway.config import LedgerSettings
from gateway.ledger import Ledger
from tests.commands.conftest import Run


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


def test_a_life(ask: Callable[..., Result], unique_name: Callable[[str], str]) -> None:
    client = unique_name("shop")
    made = ask(
        "keys", "create", client, "--scope", "history", "--scope", "publish:local-0-9-1/x", "--environment", "test"
    )
    assert made.exit_code == 0, made.stderr
    secret = made.stdout.strip()
    assert is_key(secret)
    assert secret.startswith("amqpgw_test_")
    assert f"for {client}, history, publish:local-0-9-1/x" in made.stderr
    key_id = made.stderr.partition(":")[0]

    listed = ask("keys", "list").stdout
    (row,) = [line for line in listed.splitlines() if key_id in line]
    assert f"{secret[:16]}…" in row
    assert secret not in listed

    new = json.loads(ask("keys", "rotate", key_id, "--days", "0", "--overlap", "1", "--json").stdout)
    assert (new["client"], new["scopes"], new["expires_at"]) == (client, ["history", "publish:local-0-9-1/x"], None)
    full = ask("keys", "create", client, "--scope", "admin")
    assert full.exit_code == 4
    assert "2 live keys" in full.stderr

    assert "is revoked" in ask("keys", "revoke", key_id, "--yes").stderr
    assert json.loads(ask("keys", "revoke", new["id"], "--yes", "--json").stdout)["live"] is False
    ids = [key["id"] for key in json.loads(ask("keys", "list", "--json").stdout)["keys"]]
    assert not {key_id, new["id"]} & set(ids)
    ids = [key["id"] for key in json.loads(ask("keys", "list", "--all", "--json").stdout)["keys"]]
    assert {key_id, new["id"]} <= set(ids)
    assert ask("keys", "revoke", "none", "--yes").exit_code == 3


def test_the_list_marks_what_opens_nothing(ask: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        {
            "id": f"id-{state}", "client": "shop", "hint": "amqpgw_live_1234", "state": state, "live": state == "live",
            "expires_at": None, "last_used_at": None, "scopes": ["history"],
        }
        for state in ("live", "expired", "revoked", "refused")
    ]  # fmt: skip
    keys[-1]["refusal"] = "the row is not as the gateway wrote it"
    monkeypatch.setattr("gateway.commands.client.ApiClient.ask", lambda *_, **__: {"keys": keys})
    listed = ask("keys", "list")
    assert [line.split()[:4:3] for line in listed.stdout.splitlines()[1:]] == [
        ["id-live", "live"], ["id-refused", "refused"],
    ]  # fmt: skip
    assert "id-refused opens nothing: the row is not as the gateway wrote it" in listed.stderr
    lines = ask("keys", "list", "--all").stdout.splitlines()[1:]
    assert [line.split()[3] for line in lines] == ["live", "expired", "revoked", "refused"]


def test_the_first_key_is_made_in_the_ledger(run: Run, tmp_path: Path) -> None:
    made = run("keys", "create", "root", "--scope", "admin", "--offline", "--data-dir", str(tmp_path), "--json")
    assert made.exit_code == 0, made.stderr
    key = json.loads(made.stdout)

    async def find() -> str:
        ledger = await Ledger.open(f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="test")
        stored = StoredKeys(ledger)
        await stored.start()
        principal = stored.find(key["key"].encode())
        by = (await stored.get(key["id"])).created_by
        await stored.close()
        await ledger.close()
        assert principal is not None
        assert principal.admin
        return by

    assert asyncio.run(find()).startswith("offline:")
    wrong = run("keys", "create", "root", "--scope", "root", "--offline", "--data-dir", str(tmp_path))
    assert wrong.exit_code == 2
    assert "scopes" in wrong.stderr
