"""The audit log of a whole gateway: its head in a file and at an endpoint, a key that is replaced, and a cut."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner, Result

from gateway.app import App, running
from gateway.commands import cli
from gateway.config import load
from tests.webhooks.test_push_app import Hook, hook

__all__ = ["hook"]


@asynccontextmanager
async def gateway(folder: Path, hook: Hook) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    """One that asks for a key, and sends heads every second."""
    file = folder / "gateway.toml"
    file.write_text(
        f"""
        data_dir = "{folder}/data"
        http.port = 0
        ops.port = 0
        outbound = {{ allow = ["127.0.0.1/32"] }}
        ledger.secrets_file = "{folder}/secrets.key"
        audit = {{ send_endpoint = "siem", send_every = 1, send_file = "{folder}/heads.ndjson" }}

        [[api_keys]]
        name = "root"
        key = "root-secret"
        scopes = ["admin"]

        [endpoints.siem]
        url = "http://127.0.0.1:{hook.port}/in"
        format = "raw"
        """
    )
    headers = {"host": "localhost", "authorization": "Bearer root-secret"}
    async with (
        running(load(file, {})) as app,
        httpx.AsyncClient(base_url=app.url, headers=headers, trust_env=False) as client,
    ):
        yield app, client


def put_keys(folder: Path, *numbers: int) -> None:
    lines = [b64encode(bytes([number]) * 32).decode() for number in numbers]
    (folder / "secrets.key").write_text("\n".join(lines) + "\n")


async def change(client: httpx.AsyncClient, count: int) -> None:
    for number in range(count):
        body = {"client": f"client-{number}", "scopes": ["history"]}
        made = await client.post("/v1/keys", json=body)
        made.raise_for_status()
        (await client.post(f"/v1/keys/{made.json()['id']}:revoke")).raise_for_status()


async def command(folder: Path, *arguments: str) -> Result:
    line = [*arguments, "--config", str(folder / "gateway.toml")]
    return await asyncio.to_thread(CliRunner().invoke, cli, line, catch_exceptions=False)


async def heads_of(hook: Hook) -> list[Any]:
    async with asyncio.timeout(20):
        while not hook.got:
            await asyncio.sleep(0.05)
    return [json.loads(body) for _, body in hook.got]


async def test_a_head_goes_out_and_a_cut_is_named(tmp_path: Path, hook: Hook) -> None:
    put_keys(tmp_path, 1)
    async with gateway(tmp_path, hook) as (_, client):
        await change(client, 3)
        async with asyncio.timeout(20):
            while True:  # a row may come behind the head that was sent
                hook.got.clear()
                head = (await heads_of(hook))[-1]
                found = await command(tmp_path, "audit", "verify", "--head", head["head"])
                assert found.exit_code == 0, found.output
                if found.stdout == head["head"] + "\n":
                    break
        assert hook.got[0][0]["webhook-signature"].startswith("v1,")
        assert hook.got[0][0]["amqp-type"] == "amqp.audit-head"
    put_keys(tmp_path, 2, 1)  # another key from now on
    async with gateway(tmp_path, hook) as (app, client):
        await change(client, 2)
        used = json.loads((await command(tmp_path, "audit", "verify", "--json")).stdout)
        assert (used["broken"], used["rows"], used["first_with_mac"]) == (None, 20, 1)
        with closing(sqlite3.connect(tmp_path / "data" / "ledger.db")) as connection, connection:
            keys = {key for (key,) in connection.execute("SELECT mac_key FROM audit_log")}
            assert len(keys) == 2
            connection.execute("DELETE FROM audit_log WHERE sequence > 15")
        await change(client, 1)
        page = (await client.get(f"{app.ops_url}/metrics")).text
        async with asyncio.timeout(20):
            while "amqpgw_audit_log_broken 1.0" not in page:
                await asyncio.sleep(0.05)
                page = (await client.get(f"{app.ops_url}/metrics")).text
        found = await command(tmp_path, "audit", "verify", "--json")
        assert (found.exit_code, json.loads(found.stdout)["broken"]) == (9, 16)
    assert json.loads((tmp_path / "data" / "audit.head").read_text())["sequence"] == 20
    assert json.loads((tmp_path / "heads.ndjson").read_text().splitlines()[0])["broken"] == ""
