"""A backup under load, a kill, and a restore: what the broker held is delivered, duplicates are marked, and of what the
ledger alone held only that is gone which came after the backup.

Four queues are published to all the time, and each is taken from in another way: leases that the broker holds, leases
that the ledger holds, a webhook, and scheduled publishes. The backup is made in the middle of it. On SQLite that is
``gateway backup``, once or again and again; on PostgreSQL ``pg_dump``. Then the gateway is killed, the backup is
restored as docs/how-to/backup.md says, and everything is drained.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from gateway.ledger import id_text
from tests.faults.harness import GATEWAY_ROOT, GatewayProcess
from tests.faults.ledgers import Place, Postgres, SqliteFile
from tests.servers import RabbitMQ
from tests.servers.process import HOST

LEASED, STORED, PUSHED, LATER = WAYS = ("leased", "stored", "pushed", "later")
"""How a queue is taken from; the last one is that of scheduled publishes."""
BEFORE, BETWEEN = 1.5, 2.0
"""How long the load runs before the backup, and between the backup and the kill, in seconds."""
DELAY: Final = 2
"""Of scheduled publishes, in seconds."""
QUIET: Final = 4.0
"""For how long nothing may come, in seconds, before all is taken to be delivered; more than :data:`DELAY`."""
COMMIT: Final = 1.0
"""How long before its commit an entry may have got its time, in seconds; the restore goes by commits."""
PUBLISHERS: Final = 4
"""For each queue."""


@dataclass
class History:
    """What was promised, and what came."""

    promised: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Way -> payload of a publish that was answered with 2xx -> id of the message."""
    came: dict[str, dict[str, list[bool]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    """Way -> payload -> whether each delivery was marked as a possible duplicate."""
    settled: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Way -> payloads that a consumer was done with."""
    last: float = 0.0

    def take(self, way: str, found: dict[str, Any]) -> None:
        """A delivery."""
        marked = bool(found["redelivered"] or found["resent"])
        self.came[way][found["message"]["payload"]].append(marked)
        self.last = time.monotonic()


@contextmanager
def database(kind: str) -> Iterator[Place]:
    with SqliteFile() if kind == "sqlite" else Postgres() as place:
        yield place


def tool(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command[0]}: {done.stderr}"


def gateway_command(process: GatewayProcess, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *arguments, "--config", str(process.config)]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return {**kept, "PYTHONPATH": str(GATEWAY_ROOT)}


class Run:
    """One run."""

    def __init__(self, place: Place, rabbitmq: RabbitMQ, folder: Path, queue: str) -> None:
        self.place = place
        self.folder = folder
        self.queue = queue
        self.history = History()
        self.hook = 0
        self.tables: dict[str, Any] = {
            "data_dir": str(folder / "data"),
            "ledger": {"url": place.url, "shard_lease": 2.0},
            "embedded": {"enabled": False},
            "outbound": {"allow": ["127.0.0.1/32"]},
            "brokers": {"b": {"url": rabbitmq.url("0-9-1"), "reconnect_min": 0.1, "reconnect_max": 0.5}},
        }
        self.gateway = GatewayProcess(folder, self.tables)
        self.stopping = False

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://{HOST}:{self.gateway.port}", trust_env=False, timeout=20)

    # ------------------------------------------------------------------------------------------------ parties

    @asynccontextmanager
    async def endpoint(self) -> Any:
        """An endpoint that fails at the first attempt of every third message, which then waits in the ledger."""
        failed: set[str] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                    length = int(head.partition("content-length:")[2].split()[0])
                    body = json.loads(await reader.readexactly(length))
                    payload = body["message"]["payload"]
                    fails = int(payload.rpartition("-")[2]) % 3 == 0 and payload not in failed
                    failed.add(payload)
                    await asyncio.sleep(0.01)
                    status = b"500 Internal Server Error" if fails else b"200 OK"
                    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
                    await writer.drain()
                    if not fails:
                        self.history.take(PUSHED, body)
                        self.history.settled[PUSHED].add(payload)
            except (OSError, EOFError):
                pass  # the gateway hung up, or was killed
            except asyncio.CancelledError:
                pass  # the run is over
            finally:
                writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        self.hook = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def declare(self) -> None:
        async with self.client() as client:

            async def put(path: str, body: Any) -> None:
                (await client.put(path, json=body)).raise_for_status()

            hook = {"url": f"http://127.0.0.1:{self.hook}/", "schedule": [0.0, *[1.5] * 20], "breaker_failures": 1000}
            await put("/v1/endpoints/hook", hook)
            more: dict[str, dict[str, Any]] = {STORED: {"lease": "ledger"}, PUSHED: {"push": "hook"}}
            for way in WAYS:
                await put(f"/v1/brokers/b/queues/{self.queue}-{way}", {})
                queue = {"broker": "b", "queue": f"{self.queue}-{way}"}
                await put(f"/v1/subscriptions/{way}", {**queue, **more.get(way, {})})

    async def publish(self, way: str, who: int) -> None:
        """Publish one message after the other until the load ends or the gateway is gone."""
        async with self.client() as client:
            number = 0
            while not self.stopping:
                number += 1
                payload = f"{way}-{who}-{number}"
                body: dict[str, Any] = {"routing_key": f"{self.queue}-{way}", "payload": payload}
                if way == LATER:
                    body["delay_seconds"] = DELAY
                try:
                    answer = await client.post("/v1/brokers/b/exchanges/amq.default:publish", json=body)
                except httpx.TransportError:
                    return
                assert answer.status_code == (202 if way == LATER else 200), answer.text
                self.history.promised[way][payload] = answer.json()["id"]
                await asyncio.sleep(0.02)

    async def consume(self, way: str, pause: float) -> None:
        """Pull and acknowledge until cancelled or the gateway is gone."""
        async with self.client() as client:
            while True:
                try:
                    body = {"max_messages": 10, "wait_seconds": 1}
                    answer = await client.post(f"/v1/subscriptions/{way}:pull", json=body)
                    answer.raise_for_status()
                    found = answer.json()["messages"]
                    for each in found:
                        self.history.take(way, each)
                    ids = [each["ack_id"] for each in found]
                    await asyncio.sleep(pause)
                    if ids:
                        # It is done with them, and the broker may hear of it even if the kill takes the answer away.
                        self.history.settled[way].update(each["message"]["payload"] for each in found)
                        answer = await client.post(f"/v1/subscriptions/{way}:acknowledge", json={"ack_ids": ids})
                        answer.raise_for_status()
                except httpx.TransportError:
                    return

    # ------------------------------------------------------------------------------------------------- backups

    @asynccontextmanager
    async def followed(self, file: Path) -> Any:
        """``gateway backup --follow 1``; killed with the gateway."""
        command = gateway_command(self.gateway, "backup", str(file), "--follow", "1")
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not file.exists():
                assert process.poll() is None
                await asyncio.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()

    async def back_up(self, file: Path) -> None:
        if isinstance(self.place, Postgres):
            await asyncio.to_thread(tool, "pg_dump", "--format=custom", f"--file={file}", self.place.url)
        else:
            await asyncio.to_thread(self.command, "backup", str(file))

    def restore(self, file: Path) -> dict[str, Any]:
        """As the page says; what it prints."""
        if not isinstance(self.place, Postgres):
            return self.command("restore", str(file), "--replace", "--json")
        name = f"restored_{os.urandom(6).hex()}"
        old = self.place.url
        new = old.rpartition("/")[0] + f"/{name}"
        tool("psql", "--no-psqlrc", "--quiet", f"--command=CREATE DATABASE {name}", old)
        tool("pg_restore", "--exit-on-error", f"--dbname={new}", str(file))
        self.tables["ledger"]["url"] = new
        self.gateway.configure(self.tables)
        return self.command("restore", "--json")

    def command(self, *arguments: str) -> dict[str, Any]:
        """A command of the gateway's. It is tried again while the lease of the killed gateway lasts."""
        deadline = time.monotonic() + 20
        while True:
            command = gateway_command(self.gateway, *arguments)
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
            if "is in use" not in done.stderr or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout)) if "--json" in arguments else {}

    # ------------------------------------------------------------------------------------------------- the run

    async def loaded(self, follow: bool) -> Path:
        """Load, the backup in the middle of it, and the kill; the backup's file."""
        file = self.folder / "ledger.backup"
        self.gateway.start()
        await self.declare()
        tasks = [asyncio.create_task(self.publish(way, who)) for way in WAYS for who in range(PUBLISHERS)]
        tasks += [asyncio.create_task(self.consume(way, 0.2)) for way in (LEASED, STORED, LATER)]
        await asyncio.sleep(BEFORE)
        if follow:
            async with self.followed(file):
                await asyncio.sleep(BETWEEN)
                shipped = file.stat().st_mtime_ns
                async with asyncio.timeout(30):
                    while file.stat().st_mtime_ns == shipped:
                        await asyncio.sleep(0.02)
                await asyncio.sleep(0.5)  # what is promised now is in no backup
                self.gateway.kill()
        else:
            await self.back_up(file)
            await asyncio.sleep(BETWEEN)
            self.gateway.kill()
        self.stopping = True
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        return file

    async def left(self) -> str:
        """A delivery that the ledger still holds; empty: there is none."""
        async with self.client() as client:
            found = (await client.get("/v1/deliveries?limit=1")).raise_for_status().json()["deliveries"]
            return str(found[0]) if found else ""

    async def drained(self) -> None:
        """Consume until nothing comes any more."""
        self.gateway.start()
        self.history.last = time.monotonic()
        tasks = [asyncio.create_task(self.consume(way, 0.0)) for way in (LEASED, STORED, LATER)]
        deadline, left = time.monotonic() + 60, ""
        while time.monotonic() < self.history.last + QUIET or (left := await self.left()):
            assert time.monotonic() < deadline, f"deliveries do not end: {left}"
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.gateway.terminate()

    def check(self, said: dict[str, Any], kept: dict[tuple[str, str], float]) -> None:
        """
        Args:
            said: by the restore.
            kept: kind of event and id of the message -> when, in seconds, as the ledger has it that was replaced.
        """
        since, until = (datetime.fromisoformat(said[name]).timestamp() for name in ("gone_since", "gone_until"))
        assert since < until
        gone: dict[str, int] = {}
        doubled = 0
        for way in WAYS:
            promised, came, settled = self.history.promised[way], self.history.came[way], self.history.settled[way]
            assert len(promised) > 20, f"{way}: there was no load"
            unmarked = [payload for payload, marks in came.items() if not all(marks[1:])]
            assert not unmarked, f"{way}: duplicates without a mark: {unmarked[:5]}"
            missing = {payload: promised[payload] for payload in promised if payload not in settled}
            gone[way] = len(missing)
            twice = sum(len(marks) > 1 for marks in came.values())
            doubled += twice
            print(f"{way}: {len(promised)} promised, {len(settled)} settled, {len(missing)} gone, {twice} came twice")
            took = "scheduled" if way == LATER else "taken"
            for payload, message_id in missing.items():
                at = kept.get((took, message_id))
                assert at is not None, f"{payload} is gone, and the ledger never held it"
                assert since - COMMIT <= at <= until, (
                    f"{payload} is gone: {took} at {at}, and the restore said {since} to {until}"
                )
        assert gone[LEASED] == 0, "these were never in the ledger"
        assert gone[LATER] > 0, "the ledger held nothing since the backup: this run shows nothing"
        assert doubled, "nothing came twice: this run shows nothing"
        print(f"all marked; the restore said {since:.3f} to {until:.3f}")


def happened(place: Place) -> dict[tuple[str, str], float]:
    """When the ledger took messages: scheduled ones, stored ones, and those that were handed out in the same commit."""
    taken = "'scheduled', 'stored', 'delivered'"
    rows = place.query(f"SELECT kind, message_id, at FROM events WHERE kind IN ({taken}) ORDER BY at DESC")
    return {("scheduled" if kind == "scheduled" else "taken", id_text(bytes(of))): at / 1e6 for kind, of, at in rows}


@pytest.mark.broker
@pytest.mark.parametrize(
    ("kind", "follow"),
    [("sqlite", False), ("postgresql", False), pytest.param("sqlite", True, marks=pytest.mark.long)],
    ids=["sqlite", "postgresql", "sqlite-followed"],
)
async def test_a_backup_under_load_a_kill_and_a_restore(
    kind: str, follow: bool, rabbitmq: RabbitMQ, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    with database(kind) as place:
        run = Run(place, rabbitmq, tmp_path, unique_name("backup"))
        try:
            run.gateway.run("migrate")
            async with run.endpoint():
                file = await run.loaded(follow)
                kept = happened(place)
                said = run.restore(file)
                await run.drained()
            run.check(said, kept)
        finally:
            run.gateway.close()
