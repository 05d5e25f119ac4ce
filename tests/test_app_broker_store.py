"""Brokers over HTTP on real brokers: put, changed under load, deleted; seen by other processes; and secrets kept."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.app import App, running
from gateway.config import Config, load
from gateway.core.broker_documents import BROKER_RESOURCE
from gateway.errors import CommitUnknown
from gateway.ledger import Ledger
from gateway.webhooks.settings import resealing
from gateway.webhooks.settings.secrets import load_seals
from tests import canary
from tests.ledgers import sqlite_ledger
from tests.servers import PostgreSQL
from tests.servers.certificates import MUTUAL

pytestmark = pytest.mark.broker

PEERS = [("rabbitmq40", "0-9-1"), ("brokerj", "0-10")]
BROKER = "/v1/brokers/shop"
PUBLISH = f"{BROKER}/exchanges/amq.default:publish"
ANY = {"if-match": "*"}
ADMIN = {"authorization": "Bearer admin-key"}
CALLER = {"authorization": "Bearer caller-key"}


def configuration(folder: Path, **settings: Any) -> Config:
    return load(
        None, {}, {"http.port": 0, "ops.port": 0, "data_dir": str(folder), "outbound.broker_allow": ["127.0.0.0/8"],
                   "ledger.url": settings.pop("ledger", None) or sqlite_ledger(folder), **settings},
    )  # fmt: skip


@asynccontextmanager
async def gateway(config: Config) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    canary.watch()
    async with running(config) as app, httpx.AsyncClient(base_url=app.url, timeout=60) as client:
        yield app, client


class Peer:
    """A real broker, a login of its own there, and queues."""

    def __init__(self, server: Any, version: str) -> None:
        self.server, self.version = server, version
        self.user, quoted = canary.login(server)
        url: str = server.url(version)
        self.place = url.partition("@")[2]
        self.settings = {"url": f"amqp://{self.user}@{self.place}", "password": canary.CANARY, "connect_timeout": 5}
        self.with_password = f"amqp://{self.user}:{quoted}@{self.place}"
        self.queues: list[str] = []


@pytest.fixture(params=PEERS, ids=lambda peer: " ".join(peer))
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    fixture, version = request.param
    found = Peer(request.getfixturevalue(fixture), version)
    yield found
    for queue in found.queues:
        with suppress(urllib.error.HTTPError, LookupError):  # the test has deleted it
            found.server.delete_queue(queue)


async def state(client: httpx.AsyncClient, *wanted: str, seconds: float = 30, **headers: Any) -> dict[str, Any]:
    """How the broker stands, once that is one of these."""
    async with asyncio.timeout(seconds):
        while True:
            found: dict[str, Any] = (await client.get(BROKER, **headers)).json()
            if found.get("state") in wanted:
                return found
            await asyncio.sleep(0.05)


async def put_queue(client: httpx.AsyncClient, peer: Peer, name: str) -> str:
    peer.queues.append(name)
    answer = await client.put(f"{BROKER}/queues/{name}", json={})
    assert answer.status_code == 201, answer.text
    return name


def problem(answer: httpx.Response, status: int, code: str, words: str = "") -> dict[str, Any]:
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["code"]) == (status, code), answer.text
    assert words in found["detail"], found["detail"]
    return found


async def rows(ledger: Ledger) -> dict[str, Any]:
    found, _ = await ledger.list_resources(BROKER_RESOURCE)
    return {row.name: row.spec for row in found}


async def test_a_broker_is_put_used_changed_and_deleted(
    tmp_path: Path, peer: Peer, unique_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(tmp_path)
    async with gateway(config) as (app, client):
        created = await client.put(BROKER, json=peer.settings)
        assert created.status_code == 201, created.text
        shown = await state(client, "up")
        assert (shown["secrets"], shown["read_only"]) == (["password"], False)
        assert shown["settings"]["url"] == peer.settings["url"]
        assert shown["settings"]["password"] == ""
        etag = created.headers["etag"]
        # the same again, with the password in the URL, changes nothing
        again = await client.put(BROKER, json={"url": peer.with_password, "connect_timeout": 5})
        assert (again.status_code, again.headers["etag"]) == (200, etag)
        problem(await client.put(BROKER, json={**peer.settings, "heartbeat": 5}), 428, "precondition_required")
        queue = await put_queue(client, peer, unique_name("http"))
        body = {"routing_key": queue, "payload": "hello", "mandatory": True}
        assert (await client.post(PUBLISH, json=body)).status_code == 200
        subscription = f"/v1/subscriptions/{queue}"
        assert (await client.put(subscription, json={"broker": "shop", "queue": queue})).status_code == 201
        pulled = (await client.post(f"{subscription}:pull", json={"wait_seconds": 10})).json()["messages"]
        assert [each["message"]["payload"] for each in pulled] == ["hello"]

        # a wrong password: the broker's state says so; what is out stays with its consumer
        wrong = await client.patch(BROKER, json={"password": "wrong"}, headers=ANY)
        assert wrong.status_code == 200, wrong.text
        failed = await state(client, "failed", "down")
        assert failed["reason"], failed
        problem(await client.post(PUBLISH, json=body), 503, "broker_unavailable")
        ids = {"ack_ids": [each["ack_id"] for each in pulled]}
        settled = (await client.post(f"{subscription}:acknowledge", json=ids)).json()["results"]
        assert [each["status"] for each in settled] == ["SUCCESS"]
        problem(await client.patch(BROKER, json={"password": "x"}, headers={"if-match": etag}), 412, "etag_mismatch")
        assert (await client.patch(BROKER, json={"password": canary.CANARY}, headers=ANY)).status_code == 200
        await state(client, "up")
        assert (await client.post(PUBLISH, json=body)).status_code == 200

        # in use, and not any more
        problem(await client.delete(BROKER), 409, "broker_in_use", f"the subscription '{queue}'")
        assert (await client.delete(subscription)).status_code == 204
        later = {**body, "delay_seconds": 3600}
        scheduled = (await client.post(PUBLISH, json=later)).json()["id"]
        problem(await client.delete(BROKER), 409, "broker_in_use", "1 scheduled publish")
        assert (await client.delete(f"/v1/scheduled/{scheduled}")).status_code in (200, 204)
        assert (await rows(app.gateway.ledger)).keys() == {"shop"}

    # a restart keeps it
    async with gateway(config) as (app, client):
        await state(client, "up")
        assert peer.server.queue_depth(queue) == 1
        assert (await client.delete(f"{BROKER}/queues/{queue}")).status_code == 200
        gone = await client.delete(BROKER, headers=ANY)
        assert gone.status_code == 204, gone.text
        problem(await client.get(BROKER), 404, "broker_not_found")
        problem(await client.delete(BROKER), 404, "broker_not_found")
        assert await rows(app.gateway.ledger) == {}
    canary.look_at(tmp_path, "*.db*")
    assert canary.taken() == []


async def test_nothing_is_lost_while_it_is_changed_under_load(
    tmp_path: Path, peer: Peer, unique_name: Callable[[str], str]
) -> None:
    async with gateway(configuration(tmp_path, **{"ledger.intent": "always"})) as (_, client):
        assert (await client.put(BROKER, json=peer.settings)).status_code == 201
        await state(client, "up")
        queue = await put_queue(client, peer, unique_name("load"))
        confirmed: set[str] = set()
        failures: list[str] = []
        stop = False

        async def publish(number: int) -> None:
            count = 0
            while not stop:
                count += 1
                payload = f"{number}-{count}"
                body = {"routing_key": queue, "payload": payload, "mandatory": True}
                answer = await client.post(PUBLISH, json=body)
                if answer.status_code == 200:
                    confirmed.add(payload)
                else:
                    failures.append(answer.text)
                await asyncio.sleep(0.005)

        publishers = [asyncio.create_task(publish(number)) for number in range(6)]
        for change in range(6):
            patch = {"heartbeat": 10 + change, "password": canary.CANARY}
            answer = await client.patch(BROKER, json=patch, headers=ANY)
            assert answer.status_code == 200, answer.text
            assert answer.json()["state"] == "up"
            await asyncio.sleep(0.3)
        stop = True
        await asyncio.gather(*publishers)
        assert failures == []
        assert len(confirmed) > 100
        subscription = f"/v1/subscriptions/{queue}"
        assert (await client.put(subscription, json={"broker": "shop", "queue": queue})).status_code == 201
        found: list[str] = []
        while pulled := (await client.post(f"{subscription}:pull", json={"max_messages": 1000})).json()["messages"]:
            found += [each["message"]["payload"] for each in pulled]
            await client.post(f"{subscription}:acknowledge", json={"ack_ids": [each["ack_id"] for each in pulled]})
        assert sorted(found) == sorted(confirmed)
    assert canary.taken() == []


async def test_a_bridge_goes_on_over_the_new_links(
    tmp_path: Path, peer: Peer, unique_name: Callable[[str], str]
) -> None:
    async with gateway(configuration(tmp_path)) as (_, client):
        assert (await client.put(BROKER, json=peer.settings)).status_code == 201
        await state(client, "up")
        source = await put_queue(client, peer, unique_name("from"))
        target = await put_queue(client, peer, unique_name("to"))
        bridge = {"source": {"broker": "shop", "queue": source}, "target": {"broker": "shop", "routing_key": target}}
        assert (await client.put("/v1/bridges/copy", json=bridge)).status_code == 201
        for change in range(4):
            for number in range(25):
                body = {"routing_key": source, "payload": f"{change}-{number}", "mandatory": True}
                assert (await client.post(PUBLISH, json=body)).status_code == 200
            assert (await client.patch(BROKER, json={"heartbeat": 10 + change}, headers=ANY)).status_code == 200
        async with asyncio.timeout(60):
            while peer.server.queue_depth(target) < 100:
                await asyncio.sleep(0.1)
        assert peer.server.queue_depth(target) == 100
        problem(await client.delete(BROKER), 409, "broker_in_use", "the bridge 'copy'")


async def test_other_processes_see_it(
    tmp_path: Path, postgresql: PostgreSQL, peer: Peer, unique_name: Callable[[str], str]
) -> None:
    url = postgresql.create_database()
    keys = tmp_path / "sealing.keys"
    keys.write_text("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
    keys.chmod(0o600)
    shared: dict[str, Any] = {"ledger": url, "ledger.secrets_file": str(keys)}
    await asyncio.to_thread(Ledger.migrate, url)
    try:
        async with (
            gateway(configuration(tmp_path / "a", **shared)) as (one, client),
            gateway(configuration(tmp_path / "b", **shared)) as (_, other),
        ):
            assert (await client.put(BROKER, json=peer.settings)).status_code == 201
            shown = await state(other, "up")
            assert shown["secrets"] == ["password"]
            queue = await put_queue(other, peer, unique_name("cluster"))
            body = {"routing_key": queue, "payload": "x", "mandatory": True}
            assert (await other.post(PUBLISH, json=body)).status_code == 200
            assert (await other.patch(BROKER, json={"heartbeat": 7}, headers=ANY)).status_code == 200
            async with asyncio.timeout(20):
                while (await client.get(BROKER)).json()["settings"]["heartbeat"] != 7:
                    await asyncio.sleep(0.05)
            await state(client, "up")
            assert (await client.post(PUBLISH, json=body)).status_code == 200
            assert canary.CANARY not in str(await rows(one.gateway.ledger))
            assert (await client.delete(BROKER)).status_code == 204
            async with asyncio.timeout(20):
                while (await other.get(BROKER)).status_code != 404:
                    await asyncio.sleep(0.05)
    finally:
        postgresql.drop_database(url)
    assert canary.taken() == []


async def test_a_worker_bridges_over_it(
    tmp_path: Path, postgresql_ledger: str, peer: Peer, unique_name: Callable[[str], str]
) -> None:
    """It is put at a process that takes no work, and used by one that serves no API."""
    keys = tmp_path / "sealing.keys"
    keys.write_text("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
    keys.chmod(0o600)
    shared: dict[str, Any] = {"ledger": postgresql_ledger, "ledger.secrets_file": str(keys)}
    async with (
        running(configuration(tmp_path / "worker", role="worker", **shared)) as worker,
        gateway(configuration(tmp_path / "api", role="api", **shared)) as (_, client),
    ):
        assert (await client.put(BROKER, json=peer.settings)).status_code == 201
        await state(client, "up")
        source = await put_queue(client, peer, unique_name("from"))
        target = await put_queue(client, peer, unique_name("to"))
        bridge = {"source": {"broker": "shop", "queue": source}, "target": {"broker": "shop", "routing_key": target}}
        assert (await client.put("/v1/bridges/copy", json=bridge)).status_code == 201
        body = {"routing_key": source, "payload": "x", "mandatory": True}
        for number in range(2):
            assert (await client.post(PUBLISH, json=body)).status_code == 200
            async with asyncio.timeout(30):
                while peer.server.queue_depth(target) <= number:
                    await asyncio.sleep(0.05)
            assert worker.gateway.ownership.has("bridge", "copy")
            assert (await client.patch(BROKER, json={"heartbeat": 7}, headers=ANY)).status_code == 200
    assert canary.taken() == []


async def test_the_keys_that_seal_are_changed(tmp_path: Path, peer: Peer) -> None:
    keys = tmp_path / "sealing.keys"
    keys.write_text("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
    keys.chmod(0o600)
    config = configuration(tmp_path, **{"ledger.secrets_file": str(keys)})
    async with gateway(config) as (app, client):
        assert (await client.put(BROKER, json=peer.settings)).status_code == 201
        before = await app.gateway.ledger.read(resealing.used)
        assert before.total() == 1
    keys.write_text("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
    async with gateway(config) as (_, client):
        await state(client, "up")
    ledger = await Ledger.open(config.ledger.url, config.ledger, owner="test")
    try:
        assert await resealing.rotate(ledger, load_seals(str(keys), keys)) == (1, [])
        assert (await ledger.read(resealing.used)).keys().isdisjoint(before)
    finally:
        await ledger.close()
    keys.write_text("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n")
    async with gateway(config) as (_, client):
        await state(client, "up")
    keys.write_text("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
    async with gateway(config) as (_, client):
        found = (await client.get(BROKER)).json()
        assert (found["state"], found["code"]) == ("failed", "configuration")
        assert "sealed with the key" in found["reason"]
        assert [each["name"] for each in (await client.get("/v1/brokers")).json()["brokers"]] == ["shop"]
        problem(await client.post(PUBLISH, json={"payload": "x"}), 404, "broker_not_found")
        repaired = await client.put(BROKER, json=peer.settings, headers=ANY)
        assert repaired.status_code == 200, repaired.text
        await state(client, "up")


async def test_who_may_and_what_the_file_defines(tmp_path: Path, peer: Peer) -> None:
    settings = {
        "api_keys": [
            {"name": "admin", "key": "admin-key", "scopes": ["admin"]},
            {"name": "caller", "key": "caller-key", "scopes": ["broker:*", "publish:*/*", "consume:*/*"]},
        ],
        "brokers.fixed.url": peer.with_password,
    }  # fmt: skip
    async with gateway(configuration(tmp_path, **settings)) as (_, client):
        assert (await client.put(BROKER, json=peer.settings, headers=ADMIN)).status_code == 201
        for method, body in (("PUT", peer.settings), ("PATCH", {"heartbeat": 5}), ("DELETE", None)):
            for headers, status in ((CALLER, 403), ({}, 401)):
                answer = await client.request(method, BROKER, json=body, headers={**headers, **ANY})
                assert answer.status_code == status, answer.text
            fixed = await client.request(method, "/v1/brokers/fixed", json=body, headers={**ADMIN, **ANY})
            problem(fixed, 409, "read_only", "the configuration file")
            local = await client.request(method, "/v1/brokers/local-0-9-1", json=body, headers={**ADMIN, **ANY})
            assert local.status_code in (404, 409), local.text
        seen = (await client.get(BROKER, headers=CALLER)).json()
        assert not {"settings", "secrets"} & seen.keys()
        assert "etag" not in (await client.get(BROKER, headers=CALLER)).headers
        fixed = (await client.get("/v1/brokers/fixed", headers=ADMIN)).json()
        assert (fixed["read_only"], fixed["secrets"]) == (True, ["password"])
        assert fixed["settings"]["url"] == peer.settings["url"]
        trail = (await client.get("/v1/audit", headers=ADMIN)).text
        assert "put_broker" in trail
    assert canary.taken() == []


REFUSED = [
    ({"url": "amqp://169.254.169.254/"}, 422, "address_denied", "link-local, and cloud metadata"),
    ({"url": "amqp://a.example/", "hosts": ["169.254.169.254"]}, 422, "address_denied", "cloud metadata"),
    ({"url": "amqp://a.example/", "redirect_hosts": ["[fd00:ec2::254]"]}, 422, "address_denied", "unique local"),
    ({"url": "amqp://[::ffff:169.254.169.254]/"}, 422, "address_denied", "IPv4-mapped"),
    ({"url": "amqp://a.example/", "management": "http://169.254.169.254/"}, 422, "address_denied", "cloud metadata"),
    ({"url": "amqp://0x7f.1/"}, 422, "invalid_value", "no IPv4 address"),
    ({"url": "amqp://localhost/"}, 422, "address_denied", "broker_allow"),
    ({"url": "http://a.example/"}, 422, "invalid_value", "scheme"),
    ({"url": "amqp://a.example/", "password_file": "/etc/passwd"}, 422, "invalid_value", "file alone"),
    ({"url": "amqps://a.example/", "tls": {"ca_file": "/etc/passwd"}}, 422, "invalid_value", "tls.ca_file"),
    ({"url": "amqps://a.example/", "tls": {"cert": "x"}}, 422, "invalid_value", "without a key"),
    ({"url": "amqps://a.example/", "tls": {"ca": "not PEM"}}, 422, "invalid_value", "tls.ca"),
    ({"url": "amqp://a:b@a.example/", "password": "c"}, 422, "invalid_value", "another one"),
    ({"url": "amqp://a.example/", "password": "c" * 9000}, 422, "invalid_value", "the limit is 8192"),
    ({"url": "amqp://a.example/", "hosts": ["a"] * 65}, 422, "invalid_value", "at most 64"),
    ({"url": "amqp://a.example/", "no_such": 1}, 422, "invalid_request", "no_such"),
]  # fmt: skip


async def test_what_is_refused(tmp_path: Path) -> None:
    async with gateway(configuration(tmp_path, **{"outbound.broker_allow": ["10.0.0.0/8"]})) as (app, client):
        for body, status, code, words in REFUSED:
            answer = await client.put(BROKER, json=body)
            found = answer.json()
            assert (answer.status_code, found["code"]) == (status, code), (body, answer.text)
            assert words in answer.text, (body, answer.text)
        bad = await client.put("/v1/brokers/a%20b", json={"url": "amqp://a.example/"})
        assert bad.status_code == 422
        assert await rows(app.gateway.ledger) == {}
        # a name that leads to a denied address is refused when the gateway connects
        assert (await client.put(BROKER, json={"url": "amqp://10.0.0.1/"})).status_code == 201
        app.gateway.brokers["shop"].resolve.rules.replace(  # type: ignore[union-attr]
            app.gateway.brokers["shop"].resolve.rules.beside((), "broker_allow")  # type: ignore[union-attr]
        )
        patched = await client.patch(BROKER, json={"heartbeat": 5}, headers=ANY)
        problem(patched, 422, "address_denied")


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_ledger(tmp_path)
    found: str = request.getfixturevalue("postgresql_ledger")
    return found


async def test_no_more_than_the_limit(tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.broker_store.store.BROKERS_MAX", 2)
    async with gateway(configuration(tmp_path, ledger=ledger_url)) as (_, client):
        for name in ("a", "b"):
            assert (await client.put(f"/v1/brokers/{name}", json={"url": "amqp://127.0.0.1:1/"})).status_code == 201
        third = await client.put("/v1/brokers/c", json={"url": "amqp://127.0.0.1:1/"})
        problem(third, 413, "limit_exceeded", "the limit is 2")
        replaced = await client.put("/v1/brokers/a", json={"url": "amqp://127.0.0.1:2/"}, headers=ANY)
        assert replaced.status_code == 200


async def test_what_is_stored_though_its_change_fails_counts(
    tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat finds nothing to change; the broker of before would go on until the next start."""
    async with gateway(configuration(tmp_path, ledger=ledger_url)) as (app, client):
        ledger, brokers = app.gateway.ledger, app.gateway.brokers

        def cut_off(name: str) -> None:
            real = getattr(ledger, name)

            async def cut(kind: str, *arguments: Any) -> Any:
                found = await real(kind, *arguments)
                if kind != BROKER_RESOURCE:
                    return found
                monkeypatch.setattr(ledger, name, real)
                raise CommitUnknown("cut off")

            monkeypatch.setattr(ledger, name, cut)

        for port in (1, 2):
            body = {"url": f"amqp://127.0.0.1:{port}/"}
            etag = {} if port == 1 else ANY
            cut_off("put_resource")
            problem(await client.put(BROKER, json=body, headers=etag), 503, "commit_unknown")
            assert (await client.put(BROKER, json=body, headers=etag)).status_code == 200
            assert brokers["shop"].settings.url == body["url"]
            assert (await client.get(BROKER)).json()["settings"]["url"] == body["url"]
        cut_off("delete_resource")
        problem(await client.delete(BROKER), 503, "commit_unknown")
        problem(await client.delete(BROKER), 404, "broker_not_found")
        assert "shop" not in brokers
        assert (await client.get(BROKER)).status_code == 404


async def test_secrets_stay_where_they_went(tmp_path: Path, ledger_url: str) -> None:
    """A secret that is not given stays; it goes nowhere else without being given again."""
    async with gateway(configuration(tmp_path, ledger=ledger_url)) as (app, client):
        url = "amqp://shop@127.0.0.1:1/"
        assert (await client.put(BROKER, json={"url": url, "password": canary.CANARY})).status_code == 201
        shown = (await client.get(BROKER)).json()
        etag = (await client.get(BROKER)).headers["etag"]
        same = await client.put(BROKER, json=shown["settings"])
        assert (same.status_code, same.headers["etag"]) == (200, etag)
        patched = await client.patch(
            BROKER, json={"heartbeat": 5}, headers={"if-match": etag, "content-type": "application/merge-patch+json"}
        )
        assert (patched.status_code, patched.json()["secrets"]) == (200, ["password"])
        assert patched.headers["etag"] != etag
        problem(await client.patch(BROKER, json={"heartbeat": 6}), 428, "precondition_required")
        problem(await client.delete(BROKER, headers={"if-match": etag}), 412, "etag_mismatch")
        for change in (
            {"url": "amqp://shop@127.0.0.1:2/"}, {"url": "amqp://other@127.0.0.1:1/"}, {"hosts": ["127.0.0.2"]},
            {"allow_plain_without_tls": True}, {"redirect_hosts": ["127.0.0.2"]}, {"tls": {"server_name": "other"}},
        ):  # fmt: skip
            refused = await client.patch(BROKER, json=change, headers=ANY)
            problem(refused, 422, "invalid_value", "password: it must be given again")
        moved = await client.patch(BROKER, json={"url": "amqp://shop:new@127.0.0.1:2/"}, headers=ANY)
        assert (moved.status_code, moved.json()["settings"]["url"]) == (200, "amqp://shop@127.0.0.1:2/")
        management = f"http://watcher:{quote(canary.CANARY, safe='')}@127.0.0.1:3"
        watched = await client.patch(BROKER, json={"management": management, "password": "x"}, headers=ANY)
        assert watched.json()["settings"]["management"] == "http://watcher@127.0.0.1:3"
        assert watched.json()["secrets"] == ["management", "password"]
        stored = await rows(app.gateway.ledger)
        assert "new" not in str(stored["shop"]["settings"])
        assert canary.CANARY not in str(stored)
    assert canary.taken() == []


@pytest.mark.parametrize(
    ("kind", "version", "name"), [("rabbitmq-tls", "0-9-1", MUTUAL), ("brokerj-tls", "0-10", "localhost")]
)
async def test_certificates_are_texts(
    tmp_path: Path, private_server: Callable[[str], Any], kind: str, version: str, name: str
) -> None:
    server = private_server(kind)
    ca, certificate, key = (
        Path(path).read_text(encoding="ascii")
        for path in (
            server.certificates.ca_file, server.certificates.cert_file("client"), server.certificates.key_file("client")
        )
    )  # fmt: skip
    url = f"amqps://guest:guest@127.0.0.1:{server.tls_port}/?version={version}"
    async with gateway(configuration(tmp_path)) as (app, client):
        tls = {"ca": ca, "cert": certificate, "key": key, "server_name": name}
        assert (await client.put(BROKER, json={"url": url, "tls": tls})).status_code == 201
        shown = await state(client, "up", "failed", "down")
        assert (shown["state"], shown["reason"], shown["secrets"]) == ("up", "", ["password", "tls.key"])
        assert (shown["settings"]["tls"]["key"], shown["settings"]["tls"]["ca"]) == ("", ca)
        lines = [line for line in key.splitlines() if len(line) == 64]
        said = str(await rows(app.gateway.ledger)) + (await client.get(BROKER)).text
        assert not [line for line in lines if line in said]
        wrong = await client.patch(BROKER, json={"tls": {"ca": certificate}}, headers=ANY)
        problem(wrong, 422, "invalid_value", "it must be given again")
        patch = {"tls": {"ca": certificate, "key": key}, "password": "guest"}
        assert (await client.patch(BROKER, json=patch, headers=ANY)).status_code == 200
        failed = await state(client, "failed")
        assert failed["code"] == "certificate_refused"
