"""Under load, on real brokers: the configuration is read again twenty times, and certificates are renewed on disk. No
request fails, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import trustme

from tests import pairings
from tests.deploy.load import Receiver
from tests.faults.http import Answer, Http, NoAnswer, NotSent
from tests.ledgers import sqlite_ledger
from tests.servers import BrokerJ, RabbitMQ, RabbitMQWithTls
from tests.servers.certificates import MUTUAL
from tests.servers.process import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RELOADS = int(os.environ.get("GATEWAY_RELOADS", "20" if pairings.runs_all() else "8"))
RATE = float(os.environ.get("GATEWAY_RELOAD_RATE", "60"))
"""Messages a second of all publishers together: more by hand, less where the machine has other work to do."""
PUBLISHERS = 4


class Https(Http):
    """The same over TLS, each request on a connection of its own."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self._context = context

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.close()
        try:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self.port, limit=1 << 20, ssl=self._context
            )
        except OSError as error:
            raise NotSent(str(error)) from error
        self._busy = True
        return self._reader, self._writer


@dataclass
class Load:
    """Publishers, and a consumer that pulls; what was asked for, and what came of it."""

    client: Callable[[], Http]
    queues: tuple[str, ...]
    pulled_from: str = ""
    """A subscription."""
    published: dict[str, set[int]] = field(default_factory=dict)
    pulled: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    requests: int = 0
    _stop: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)

    def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._publish()) for _ in range(PUBLISHERS)]
        if self.pulled_from:
            self._tasks.append(asyncio.create_task(self._pull()))

    async def end(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def ask(self, client: Http, path: str, body: Any) -> Answer | None:
        self.requests += 1
        try:
            answer = await client.request("POST", path, body)
        except (NoAnswer, NotSent) as error:
            self.failures.append(f"{path}: {error!r}")
            return None
        if answer.status != 200:
            self.failures.append(f"{path}: {answer.status} {answer.body[:300]!r}")
            return None
        return answer

    async def _publish(self) -> None:
        client = self.client()
        while not self._stop:
            number = next(self._numbers)
            queue = self.queues[number % len(self.queues)]
            message = {"routing_key": queue, "payload": str(number), "mandatory": True,
                       "properties": {"message_id": f"m-{number}"}}  # fmt: skip
            if await self.ask(client, "/v1/brokers/rabbit/exchanges/amq.default:publish", message) is not None:
                self.published.setdefault(queue, set()).add(number)
            await asyncio.sleep(PUBLISHERS / RATE)
        client.close()

    async def _pull(self) -> None:
        client, path = self.client(), f"/v1/subscriptions/{self.pulled_from}"
        queue = self.queues[-1]
        while not self._stop or set(self.pulled) < self.published.get(queue, set()):
            answer = await self.ask(client, f"{path}:pull", {"max_messages": 50, "wait": 0.5})
            items = [] if answer is None else answer.json()["messages"]
            self.pulled.update(int(item["message"]["payload"]) for item in items)
            if items:
                await asyncio.sleep(0.2)  # they are out while the brokers are replaced
                body = {"ack_ids": [item["ack_id"] for item in items]}
                answer = await self.ask(client, f"{path}:acknowledge", body)
                results = [] if answer is None else answer.json()["results"]
                self.failures += [f"acknowledge: {item}" for item in results if item["status"] != "SUCCESS"]
        client.close()


class Gateway:
    """``gateway serve`` as a process, with a configuration file that changes."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.path = folder / "gateway.json"
        self.config = {
            "http": {"port": 0}, "ops": {"port": 0}, "data_dir": str(folder / "data"), "log_level": "info", **config,
        }  # fmt: skip
        self.ports: dict[str, int] = {}
        self.process: asyncio.subprocess.Process
        self.events: Counter[str] = Counter()
        self.warnings: list[str] = []

    def write(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.config))
        part.replace(self.path)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        sqlite_ledger(self.folder / "data")
        self.write()
        ports_file = self.folder / "ports.json"
        self.process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--config", str(self.path), "--ports-file", str(ports_file),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONWARNINGS": "error"}, limit=1 << 22,
        )  # fmt: skip
        assert process.stdout is not None
        listening = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(60):
                assert (await process.stdout.readline()).startswith(b"ready"), self.warnings
            self.ports = json.loads(ports_file.read_text())
            yield
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await process.wait() == 0, self.warnings
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await listening

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        async for text in self.process.stderr:
            line = json.loads(text)
            self.events[line["event"]] += 1
            if line["level"] in ("warning", "error"):
                self.warnings.append(text.decode())

    async def until(self, event: str, times: int, within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            while self.events[event] < times:
                await asyncio.sleep(0.02)


async def up(client: Http, *brokers: str) -> None:
    async with asyncio.timeout(60):
        for broker in brokers:
            while (await client.request("GET", f"/v1/brokers/{broker}")).json()["state"] != "up":
                await asyncio.sleep(0.1)


async def declare(client: Http, broker: str, *queues: str) -> None:
    for queue in queues:
        answer = await client.request("PUT", f"/v1/brokers/{broker}/queues/{queue}", {})
        assert answer.status in (200, 201), answer.body


def turned(config: dict[str, Any], turn: int) -> None:
    """Change something of everything that may change."""
    brokers = config["brokers"]
    match turn % 5:
        case 0:  # every link is made anew
            brokers["rabbit"]["publish_channels"] = 20 + turn
            brokers["qpid"]["publish_window"] = 500 + turn
        case 1:
            config["bridges"]["over"]["prefetch"] = 100 + turn
        case 2:
            config["endpoints"]["hook"]["headers"] = {"x-turn": str(turn)}
            config["subscriptions"]["pulled"]["ack_deadline_seconds"] = 30 + turn
        case 3:
            config["subscriptions"]["pushed"]["prefetch"] = 50 + turn
            config["http"]["body_max"] = (1 << 20) + turn
        case 4:
            config["log_level"] = "info"
            brokers[f"more-{turn}"] = dict(brokers["rabbit"])
            brokers.pop(f"more-{turn - 5}", None)
            brokers["rabbit"]["url"] = brokers["rabbit"]["url"].replace("version=0-9-1", "version=auto")
            config["outbound"]["allow"] = ["127.0.0.0/8", f"10.0.0.{turn}"]


async def test_reloads_under_load(
    rabbitmq: RabbitMQ, brokerj: BrokerJ, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    source, target, pulled = (unique_name(name) for name in ("reload-source", "reload-target", "reload-pulled"))
    port, receiver = free_port(), Receiver()
    await receiver.start(port)
    gateway = Gateway(
        tmp_path,
        {
            "brokers": {"rabbit": {"url": rabbitmq.url("0-9-1")}, "qpid": {"url": brokerj.url("0-10")}},
            "outbound": {"allow": ["127.0.0.0/8"]},
            "bridges": {
                "over": {
                    "source": {"broker": "rabbit", "queue": source},
                    "target": {"broker": "qpid", "routing_key": target},
                }
            },
            "endpoints": {"hook": {"url": f"http://127.0.0.1:{port}/", "schedule": [0, 0.5, 1, 2, 5]}},
            "subscriptions": {
                "pushed": {"broker": "qpid", "queue": target, "push": "hook"},
                "pulled": {"broker": "rabbit", "queue": pulled},
            },
        },
    )
    async with gateway.running():
        control = Http(gateway.ports["http"])
        await up(control, "rabbit", "qpid")
        await declare(control, "rabbit", source, pulled)
        await declare(control, "qpid", target)
        load = Load(lambda: Http(gateway.ports["http"]), (source, source, pulled), "pulled")
        load.begin()
        longest = 0.0
        for turn in range(RELOADS):
            await asyncio.sleep(0.3)
            turned(gateway.config, turn)
            gateway.write()
            began = monotonic()
            if turn % 2:
                gateway.process.send_signal(signal.SIGHUP)
                await gateway.until("config.reloaded", turn + 1)
            else:
                answer = await control.request("POST", "/v1/admin:reload")
                assert (answer.status, answer.json()["status"]) == (200, "applied"), answer.body
                assert answer.json()["complete"], answer.body
                await gateway.until("config.reloaded", turn + 1)
            longest = max(longest, monotonic() - began)
        await load.end()
        bridged = load.published[source]
        async with asyncio.timeout(60):
            while not bridged <= receiver.came.keys():
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        control.close()
    await receiver.close()
    doubled = sum(each > 1 for each in receiver.came.values()) + sum(each > 1 for each in load.pulled.values())
    print(
        f"{RELOADS} reloads, the longest {longest:.2f} s; {load.requests} requests, {len(load.failures)} failed; "
        f"{len(bridged)} bridged and pushed, {len(load.published[pulled])} pulled; lost 0, doubled {doubled}"
    )
    assert load.failures == []
    assert load.published[pulled] <= load.pulled.keys()
    assert (receiver.came.keys() | load.pulled.keys()) <= bridged | load.published[pulled]
    assert doubled == 0
    assert gateway.events["config.not_reloaded"] == 0
    assert not [line for line in gateway.warnings if '"error"' in line], gateway.warnings


class Authority:
    """Signs what the gateway and its neighbours show each other, and is itself a file of theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()

    def write(self, name: str, content: trustme.Blob) -> str:
        """As who renews certificates does it: aside, then in place of the old one."""
        part = self.folder / f"{name}.part"
        content.write_to_path(part)
        part.replace(self.folder / name)
        return str(self.folder / name)

    def renew(self) -> None:
        """Another authority, and certificates of it."""
        self.ca = trustme.CA()
        self.issue()

    def issue(self) -> None:
        made = self.ca.issue_cert("127.0.0.1", "localhost")
        self.write("server.pem", made.private_key_and_cert_chain_pem)
        self.write("ca.pem", self.ca.cert_pem)

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(self.folder / "server.pem"))
        return context


async def test_certificates_are_renewed_under_load(
    private_server: Callable[[str], RabbitMQWithTls], tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    """Of the API; of an endpoint; and ours for the broker, which asks for one and hangs up on every link."""
    rabbit = private_server("rabbitmq-tls")
    ours, hooks, amqp = (tmp_path / name for name in ("ours", "hooks", "amqp"))
    for folder in (ours, hooks, amqp):
        folder.mkdir()
    api, endpoint = Authority(ours), Authority(hooks)
    api.issue()
    endpoint.issue()

    def install(name: str) -> None:
        for suffix, file in (("pem", rabbit.certificates.cert_file(name)), ("key", rabbit.certificates.key_file(name))):
            part = amqp / f"client.{suffix}.part"
            part.write_bytes(Path(file).read_bytes())
            part.replace(amqp / f"client.{suffix}")

    install("client")
    queue = unique_name("renewed")
    came: Counter[int] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            body = await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
            came[int(json.loads(body)["message"]["payload"])] += 1
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    shown = endpoint.server()
    receiver = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=shown)
    where = f"https://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/"
    gateway = Gateway(
        tmp_path,
        {
            "http": {"port": 0, "tls": {"cert_file": str(ours / "server.pem")}},
            "brokers": {
                "rabbit": {
                    "url": f"amqps://guest:guest@localhost:{rabbit.tls_port}/?version=0-9-1",
                    "tls": {
                        "ca_file": rabbit.certificates.ca_file, "server_name": MUTUAL,
                        "cert_file": str(amqp / "client.pem"), "key_file": str(amqp / "client.key"),
                    },
                    "reconnect_min": 0.1, "reconnect_max": 1.0,
                }
            },
            "outbound": {"allow": ["127.0.0.0/8"]},
            "endpoints": {
                "hook": {"url": where, "tls": {"ca_file": str(hooks / "ca.pem")}, "schedule": [0, *[0.5] * 60]}
            },
            "subscriptions": {"pushed": {"broker": "rabbit", "queue": queue, "push": "hook"}},
        },
    )  # fmt: skip
    async with receiver, gateway.running():
        trusted = api.client()
        control = Https(gateway.ports["http"], trusted)
        await up(control, "rabbit")
        await declare(control, "rabbit", queue)
        load = Load(lambda: Https(gateway.ports["http"], trusted), (queue,))
        load.begin()
        await asyncio.sleep(1.0)

        # Of the API: whoever connects anew sees the new one within five seconds, and trusts both meanwhile.
        api.renew()
        api.ca.configure_trust(trusted)
        renewed_at, only_new = monotonic(), api.client()
        while True:
            probe = Https(gateway.ports["http"], only_new)
            try:
                await probe.request("GET", "/openapi.json")
                probe.close()
                break
            except NotSent:
                assert monotonic() - renewed_at < 15.0  # five on a machine that keeps up
                await asyncio.sleep(0.1)
        seen_after = monotonic() - renewed_at

        # Of the endpoint: requests fail and are repeated until the new authority is in the file.
        endpoint.renew()
        shown.load_cert_chain(str(hooks / "server.pem"))
        await asyncio.sleep(1.0)

        # Ours for the broker: one that it does not take, until it is renewed; then within five seconds again.
        assert load.failures == []
        await load.end()
        install("foreign")
        rabbit.close_connections()
        async with asyncio.timeout(20):
            while (found := (await control.request("GET", "/v1/brokers/rabbit")).json())["state"] != "failed":
                await asyncio.sleep(0.1)
        assert found["code"] == "certificate_refused"
        install("client")
        renewed_at = monotonic()
        await up(control, "rabbit")
        back_after = monotonic() - renewed_at
        more = Load(lambda: Https(gateway.ports["http"], trusted), (queue,), _numbers=count(1_000_000))
        more.begin()
        await asyncio.sleep(1.0)
        await more.end()

        published = load.published[queue] | more.published[queue]
        async with asyncio.timeout(60):
            while not published <= came.keys():
                await asyncio.sleep(0.1)
        control.close()
    print(
        f"{load.requests + more.requests} requests, {len(load.failures) + len(more.failures)} failed; "
        f"{len(published)} pushed, lost 0; seen after {seen_after:.2f} s, the broker is back after {back_after:.2f} s"
    )
    assert more.failures == []
    assert back_after < 5.0
    assert came.keys() == published
