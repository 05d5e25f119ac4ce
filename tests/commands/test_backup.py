"""``gateway backup`` and ``gateway restore``: what they print, what they refuse, and what is there afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway import commands
from gateway.app import running
from gateway.config import load
from gateway.ledger.backups import read_info
from gateway.ledger.db.engine import Database
from gateway.webhooks.settings.secrets import make_key_file
from tests.commands.conftest import Run
from tests.ledgers import sqlite_ledger
from tests.servers import RabbitMQ

HOOK = {"url": "http://127.0.0.1:9/"}


def serves(folder: Path, **settings: Any) -> Any:
    """A gateway with this data folder."""
    config = {
        "http.port": 0, "ops.port": 0, "data_dir": str(folder), "embedded.enabled": True, "embedded.port": 0,
        "outbound.allow": ["127.0.0.1/32"], **settings,
    }  # fmt: skip
    return running(load(None, {}, config))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder of a gateway that has run, with a secret in its ledger."""
    data = tmp_path / "data"
    sqlite_ledger(data)

    async def fill() -> None:
        async with serves(data) as app, httpx.AsyncClient(base_url=app.url, trust_env=False) as client:
            (await client.put("/v1/endpoints/hook", json=HOOK)).raise_for_status()

    asyncio.run(fill())
    return data


@pytest.fixture
def backup(folder: Path, run: Run, tmp_path: Path) -> Path:
    made = tmp_path / "ledger.backup"
    result = run("backup", str(made), "--data-dir", str(folder))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{made}: the ledger as of ")
    assert f"Keep a copy in another place: {folder / 'secrets.key'}" in result.stderr
    return made


def everything(folder: Path) -> dict[str, bytes]:
    """The files of a folder, but locks, which say nothing."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def refused(run: Run, folder: Path, *arguments: str, status: int = commands.REFUSED) -> str:
    """Check that a restore is refused and changes nothing; return the message."""
    before = everything(folder)
    result = run("restore", *arguments, "--data-dir", str(folder))
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    assert everything(folder) == before
    return str(result.stderr)


def test_a_restore(run: Run, folder: Path, backup: Path) -> None:
    info = read_info(backup)
    (folder / "audit.head").write_text(json.dumps({"sequence": 99, "hash": "ab" * 32}))
    result = run("restore", str(backup), "--replace", "--data-dir", str(folder), "--json")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["restored"] is True
    assert said["gone_since"] <= said["gone_until"]
    assert said["audit_log"] is None
    assert Path(said["set_aside"]).stat().st_size > 0
    verified = run("audit", "verify", "--data-dir", str(folder))
    assert verified.exit_code == 0, verified.output
    assert "The end was not checked" not in verified.stderr, "the head was replaced"
    assert len(list(folder.glob("audit.head.before-*"))) == 1
    exported = run("audit", "export", "--data-dir", str(folder))
    row = json.loads(exported.stdout.splitlines()[-1])["entry"]
    assert (row["action"], row["backup_sha256"], row["head"]) == ("ledger.restored", info.sha256, "99:" + "ab" * 32)
    again = run("backup", str(backup), "--data-dir", str(folder))
    assert again.exit_code == 0
    assert read_info(backup).restores == info.restores + 1
    stale = run("backup", str(backup), "--config", str(_config(Path(said["set_aside"]))))
    assert stale.exit_code == commands.REFUSED
    assert "another gateway has taken over" in stale.stderr


def _config(ledger: Path) -> Path:
    made = ledger.with_suffix(".toml")
    made.write_text(f'[ledger]\nurl = "sqlite:///{ledger}"\n')
    return made


def test_into_an_empty_folder(run: Run, folder: Path, backup: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    shutil.copy(folder / "secrets.key", new)
    checked = run("restore", str(backup), "--data-dir", str(new), "--dry-run")
    assert checked.exit_code == 0
    assert "The backup can be restored. Nothing was changed.\n" in checked.stdout
    assert set(everything(new)) == {"secrets.key"}
    result = run("restore", str(backup), "--data-dir", str(new))
    assert result.exit_code == 0, result.stderr
    assert "The ledger is restored.\n" in result.stdout
    assert set(everything(new)) == {"secrets.key", "ledger.db"}
    assert (new / "ledger.db").stat().st_mode & 0o777 == 0o600


def test_a_ledger_that_is_there_and_one_in_use(run: Run, folder: Path, backup: Path) -> None:
    assert f"{folder / 'ledger.db'} is there. To set it aside: --replace" in refused(run, folder, str(backup))
    lock = Database(f"sqlite:///{folder / 'ledger.db'}").lock()
    assert lock is not None
    with lock:
        said = refused(run, folder, str(backup), "--replace", status=commands.UNREACHABLE)
    assert f"is in use by another process (pid {os.getpid()})" in said


def test_keys_that_are_missing_or_wrong(run: Run, folder: Path, backup: Path) -> None:
    (folder / "secrets.key").unlink()
    assert "secrets.key is missing: the ledger has secrets" in refused(run, folder, str(backup), "--replace")
    make_key_file(folder / "secrets.key")
    assert "secrets.key is the wrong file of keys" in refused(run, folder, str(backup), "--replace")


def test_backups_that_are_none(run: Run, folder: Path, backup: Path) -> None:
    with backup.open("r+b") as file:
        file.seek(10_000)
        file.write(b"X" * 16)
    assert "is damaged: its SHA-256" in refused(run, folder, str(backup), "--replace")
    os.truncate(backup, 50_000)
    assert "is cut off: its end is missing" in refused(run, folder, str(backup), "--replace")
    backup.unlink()
    said = refused(run, folder, str(backup), "--replace", status=commands.FAILED)
    assert f"{backup}: No such file or directory. Nothing was changed" in said


def test_a_damaged_ledger_is_replaced(run: Run, folder: Path, backup: Path) -> None:
    (folder / "ledger.db").write_bytes(b"junk" * 4_096)
    result = run("restore", str(backup), "--replace", "--data-dir", str(folder))
    assert result.exit_code == 0, result.stderr
    assert "cannot be read" in result.stderr
    with closing(Database(f"sqlite:///{folder / 'ledger.db'}").readers().connect()) as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM resources WHERE kind = 'endpoint'")).scalar() == 1


def test_what_is_not_there_to_back_up(run: Run, tmp_path: Path) -> None:
    result = run("backup", str(tmp_path / "x"), "--data-dir", str(tmp_path / "none"))
    assert result.exit_code == commands.FAILED
    assert "no gateway has run with this data folder yet" in result.stderr


def test_postgresql_has_tools_of_its_own(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text('[ledger]\nurl = "postgresql://nobody@127.0.0.1:1/none"\n')
    for verb, tool in (("backup", "pg_dump"), ("restore", "pg_restore")):
        result = run(verb, str(tmp_path / "x"), "--config", str(config))
        assert result.exit_code == commands.FAILED
        assert tool in result.stderr
    assert run("restore", "--config", str(config)).exit_code == commands.UNREACHABLE
    assert run("restore", "--data-dir", str(tmp_path)).exit_code == commands.USAGE


def test_follow(folder: Path, tmp_path: Path) -> None:
    """The backup is made again; what fails in between is tried again; Ctrl-C ends it."""
    target = tmp_path / "far" / "ledger.backup"
    target.parent.mkdir()
    command = [sys.executable, "-m", "gateway", "backup", str(target), "--follow", "1", "--data-dir", str(folder)]
    # A shell starts what runs in the background with SIGINT ignored.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        guard = threading.Timer(120, process.kill)
        guard.start()
        try:
            for _ in range(2):
                assert "the ledger as of" in process.stdout.readline()
            away = target.parent.rename(tmp_path / "away")
            while "trying again in 1 s" not in process.stderr.readline():
                assert process.poll() is None
            away.rename(target.parent)
            assert "the ledger as of" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            guard.cancel()
            process.kill()


async def put(client: httpx.AsyncClient, path: str, body: Any) -> None:
    (await client.put(path, json=body)).raise_for_status()


@pytest.mark.broker
async def test_a_restore_beside_a_broker_that_went_on(
    run: Run, tmp_path: Path, rabbitmq: RabbitMQ, unique_name: Callable[[str], str]
) -> None:
    """What the broker holds is delivered. What the ledger held comes marked; what it took since is gone."""
    data, made, queue, stored = tmp_path / "data", tmp_path / "ledger.backup", unique_name("q"), unique_name("stored")
    sqlite_ledger(data)
    settings = {"brokers.rabbit.url": rabbitmq.url("0-9-1"), "embedded.enabled": False}

    async def pull(client: httpx.AsyncClient, name: str, most: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        patient = asyncio.get_running_loop().time() + 20
        while len(found) < most:
            body = {"max_messages": most - len(found), "wait_seconds": 10}
            answer = await client.post(f"/v1/subscriptions/{name}:pull", json=body)
            if answer.status_code == 503 and asyncio.get_running_loop().time() < patient:
                await asyncio.sleep(0.1)  # the gateway is ready before it has reached its brokers
                continue
            answer.raise_for_status()
            got = answer.json()["messages"]
            assert got, f"{len(found)} of {most}"
            found += got
        return found

    async def publish(client: httpx.AsyncClient, name: str, payload: str) -> None:
        body = {"routing_key": name, "payload": payload}
        (await client.post("/v1/brokers/rabbit/exchanges/amq.default:publish", json=body)).raise_for_status()

    async with (
        serves(data, **settings) as app,
        httpx.AsyncClient(base_url=app.url, trust_env=False, timeout=60) as client,
    ):
        for name in (queue, stored):
            await put(client, f"/v1/brokers/rabbit/queues/{name}", {})
        await put(client, "/v1/subscriptions/broker", {"broker": "rabbit", "queue": queue})
        await put(client, "/v1/subscriptions/ledger", {"broker": "rabbit", "queue": stored, "lease": "ledger"})
        for name in (queue, stored):
            await publish(client, name, "before")
        (first,) = await pull(client, "ledger", 1)
        result = await asyncio.to_thread(run, "backup", str(made), "--data-dir", str(data))
        assert result.exit_code == 0, result.stderr
        for name in (queue, stored):
            await publish(client, name, "after")
        await pull(client, "ledger", 1)
        await pull(client, "broker", 1)
    result = await asyncio.to_thread(run, "restore", str(made), "--replace", "--data-dir", str(data))
    assert result.exit_code == 0, result.stderr
    assert "1 messages of the ledger may have been delivered since; they are marked." in result.stdout
    async with (
        serves(data, **settings) as app,
        httpx.AsyncClient(base_url=app.url, trust_env=False, timeout=60) as client,
    ):
        got = await pull(client, "broker", 2)
        assert [each["message"]["payload"] for each in got] == ["before", "after"]
        assert got[0]["redelivered"] is True
        ended = await client.post("/v1/subscriptions/ledger:release", json={"ack_ids": [first["ack_id"]]})
        ended.raise_for_status()
        (again,) = await pull(client, "ledger", 1)
        assert (again["message"]["payload"], again["resent"]) == ("before", True)
        left = await client.post("/v1/subscriptions/ledger:pull", json={"max_messages": 5})
        assert left.json()["messages"] == [], "what the ledger alone held"
