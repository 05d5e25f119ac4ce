"""The rendered manifests as processes: migrated, started, under load, all of them replaced, and nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.helm import Object, of_kind, template
from tests.deploy.kubelet import Cluster, Pod, PodHttp
from tests.deploy.load import Load, Receiver
from tests.servers import BrokerJ, PostgreSQL, RabbitMQ
from tests.servers.process import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RATE = float(os.environ.get("GATEWAY_DEPLOY_RATE", "100"))
"""Requests a second of the publishers: 500 by hand, less where the machine has other work to do. What came of it is
written to the file that ``GATEWAY_DEPLOY_FIGURES`` names."""


@dataclass
class Service:
    """A release that runs."""

    cluster: Cluster
    objects: list[Object]
    key: str
    api: list[Pod] = field(default_factory=list)
    workers: list[Pod] = field(default_factory=list)

    def deployment(self, role: str) -> Object:
        return next(
            each for each in of_kind(self.objects, "Deployment") if each["metadata"]["name"].endswith(f"-{role}")
        )

    def pod(self, role: str) -> Pod:
        made: Object = self.deployment(role)["spec"]["template"]
        return Pod(self.cluster, role, made)

    async def roll(self, role: str) -> list[float]:
        """Replace every pod, as the strategy says: one more first, ready; then one less. How long each took to end."""
        assert self.deployment(role)["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        pods = self.api if role == "api" else self.workers
        seconds = []
        for old in list(pods):
            new = self.pod(role)
            await new.start()
            pods.append(new)
            await new.wait_ready()
            seconds.append(await old.terminate())
            pods.remove(old)
        return seconds


@asynccontextmanager
async def running(
    folder: Path,
    rabbitmq: RabbitMQ,
    brokerj: BrokerJ,
    postgresql: PostgreSQL,
    config: dict[str, Any],
    mode: str = "job",
    secrets_as: str = "file",
) -> AsyncIterator[Service]:
    url = postgresql.create_database()
    key = secrets.token_hex(24)
    values = {
        "ledger": {"existingSecret": "db"},
        "cluster": {"existingSecret": "cluster", "port": free_port()},
        "seal": {"existingSecret": "seal"},
        "secretsAs": secrets_as,
        "secretMounts": [{"name": "brokers", "existingSecret": "brokers"}],
        "ports": {"http": free_port(), "ops": free_port()},
        "migrations": {"mode": mode},
        "drain": {"delaySeconds": 4},
        "probes": {"readiness": {"periodSeconds": 1, "failureThreshold": 1}},
        "config": {
            "brokers": {
                "rabbit": {
                    "url": f"amqp://guest@127.0.0.1:{rabbitmq.port}/?version=0-9-1",
                    "password_file": "/etc/amqp-gateway/secrets/brokers/rabbit",
                    "required": True,
                },
                "qpid": {
                    "url": f"amqp://guest@127.0.0.1:{brokerj.port}/default?version=0-10",
                    "password_file": "/etc/amqp-gateway/secrets/brokers/qpid",
                    "required": True,
                },
            },
            "api_keys": [{"name": "test", "sha256": sha256(key.encode()).hexdigest(), "scopes": ["admin"]}],
            **config,
        },
    }
    objects = template(values)
    shared = {
        "db": {"url": url},
        "cluster": {"secret": secrets.token_hex(32)},
        "seal": {"key": b64encode(secrets.token_bytes(32)).decode()},
        "brokers": {"rabbit": rabbitmq.password, "qpid": brokerj.password},
    }
    service = Service(Cluster(folder, objects, shared), objects, key)
    try:
        if mode == "job":
            (job,) = (each for each in of_kind(objects, "Job") if each["metadata"]["name"].endswith("migrate"))
            migration = Pod(service.cluster, "migrate", job["spec"]["template"])
            assert await migration.run(job["spec"]["activeDeadlineSeconds"]) == 0
        for role, pods in (("worker", service.workers), ("api", service.api)):
            for _ in range(service.deployment(role)["spec"]["replicas"]):
                pods.append(pod := service.pod(role))
                await pod.start()
        await asyncio.gather(*(pod.wait_ready() for pod in (*service.api, *service.workers)))
        yield service
    finally:
        for pod in (*service.api, *service.workers):
            await pod.close()
        postgresql.drop_database(url)


async def until(condition: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


async def test_all_processes_are_replaced_under_load(
    tmp_path: Path, rabbitmq: RabbitMQ, brokerj: BrokerJ, postgresql: PostgreSQL, unique_name: Callable[[str], str]
) -> None:
    pull, push, bridge, target = (unique_name(word) for word in ("pull", "push", "bridge", "target"))
    hook = free_port()
    config = {
        "outbound": {"allow": ["127.0.0.0/8"]},
        "endpoints": {"hook": {"url": f"http://127.0.0.1:{hook}/"}},
        "subscriptions": {
            "pulled": {"broker": "rabbit", "queue": pull},
            "pushed": {"broker": "rabbit", "queue": push, "push": "hook"},
            "bridged": {"broker": "qpid", "queue": target},
        },
        "bridges": {
            "over": {
                "source": {"broker": "rabbit", "queue": bridge},
                "target": {"broker": "qpid", "routing_key": target},
            }
        },
    }
    receiver = Receiver()
    async with AsyncExitStack() as stack:
        await receiver.start(hook)
        stack.push_async_callback(receiver.close)
        service = await stack.enter_async_context(running(tmp_path, rabbitmq, brokerj, postgresql, config))
        headers = {"Authorization": f"Bearer {service.key}"}
        first = PodHttp(service.api[0].address, service.api[0].port("http"))
        for broker, queue in (("rabbit", pull), ("rabbit", push), ("rabbit", bridge), ("qpid", target)):
            answer = await first.request("PUT", f"/v1/brokers/{broker}/queues/{queue}", {"durable": True}, headers)
            assert answer.status == 201, answer.body
        first.close()
        load = Load(lambda: service.api, service.key, (pull, push, bridge), RATE)
        began = time.monotonic()
        load.begin("pulled")
        await asyncio.sleep(3)
        ends = {role: await service.roll(role) for role in ("api", "worker")}
        await asyncio.sleep(3)
        seconds = time.monotonic() - began
        await load.end()
        pods = [*service.api, *service.workers]
        assert len({pod.pid for pod in pods}) == 4
        assert not any(pod.failed_liveness for pod in pods)

        clients: dict[str, PodHttp] = {}
        while await load.take(clients, "pulled"):
            pass
        bridged: Counter[int] = Counter()
        await until(lambda: rabbitmq.queue_depth(bridge) == 0, 60)
        while numbers := await load.take(clients, "bridged", 3.0):
            bridged.update(numbers)
        await until(lambda: load.published[push] <= receiver.came.keys(), 60)
        for client in clients.values():
            client.close()
        await receiver.close()
        await asyncio.sleep(0.2)  # the connections close

        result = {
            "requests": load.requests,
            "a second": round(load.requests / seconds),
            "published": {place.split("-")[0]: len(numbers) for place, numbers in load.published.items()},
            "failed": len(load.failures),
            "lost": {
                "pull": len(load.published[pull] - load.pulled.keys()),
                "push": len(load.published[push] - receiver.came.keys()),
                "bridge": len(load.published[bridge] - bridged.keys()),
            },
            "twice": {
                "pull": sum(number in load.published[pull] and times > 1 for number, times in load.pulled.items()),
                "push": sum(times > 1 for times in receiver.came.values()),
                "bridge": sum(times > 1 for times in bridged.values()),
            },
            "unmarked": len(load.unmarked),
            "ends": {role: [round(each, 1) for each in found] for role, found in ends.items()},
        }
        print(result)
        if file := os.environ.get("GATEWAY_DEPLOY_FIGURES"):
            await asyncio.to_thread(Path(file).write_text, json.dumps(result))
        assert load.failures == []
        assert result["lost"] == {"pull": 0, "push": 0, "bridge": 0}, result
        assert (result["twice"]["push"], result["twice"]["bridge"], result["unmarked"]) == (0, 0, 0), result  # type: ignore[index]


async def test_the_time_to_a_first_message(
    tmp_path: Path,
    rabbitmq: RabbitMQ,
    brokerj: BrokerJ,
    postgresql: PostgreSQL,
    unique_name: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue = unique_name("first")
    began = time.monotonic()
    config = {"subscriptions": {"first": {"broker": "rabbit", "queue": queue}}}
    async with running(tmp_path, rabbitmq, brokerj, postgresql, config) as service:
        headers = {"Authorization": f"Bearer {service.key}"}
        client = PodHttp(service.api[0].address, service.api[0].port("http"))
        answer = await client.request("PUT", f"/v1/brokers/rabbit/queues/{queue}", {"durable": True}, headers)
        assert answer.status == 201, answer.body
        message = {"routing_key": queue, "payload": "hi"}
        answer = await client.request("POST", "/v1/brokers/rabbit/exchanges/amq.default:publish", message, headers)
        assert answer.status == 200, answer.body
        published = time.monotonic() - began
        answer = await client.request("POST", "/v1/subscriptions/first:pull", {"max_messages": 1}, headers)
        pulled = time.monotonic() - began
        client.close()
        assert [each["message"]["payload"] for each in json.loads(answer.body)["messages"]] == ["hi"]
    with capsys.disabled():
        print(f"\nfrom the values of the chart to a first message: {published:.1f} s, pulled after {pulled:.1f} s")


async def test_init_containers_migrate_before_each_start(
    tmp_path: Path, rabbitmq: RabbitMQ, brokerj: BrokerJ, postgresql: PostgreSQL
) -> None:
    async with running(tmp_path, rabbitmq, brokerj, postgresql, {}, "init", "env") as service:
        assert all(pod.ready for pod in (*service.api, *service.workers))
        logs = [(pod.folder / "migrate.log").read_text() for pod in (*service.api, *service.workers)]
        assert logs == ["The ledger is up to date.\n"] * 4
        assert "amqpgw_cluster_processes 4.0" in await service.api[0].metrics()
        (port,) = {pod.port("ops") for pod in service.workers}
        assert "http" not in {each["name"] for each in service.workers[0].container["ports"]}
        assert port == service.api[0].port("ops")
