"""A row for each budget: how one client takes of it, asks for more, and what another client does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from tests.budgets import amqp_rows
from tests.budgets.lab import Lab, head, is_held, is_held_at_most, key_of, until
from tests.budgets.row import Row, more_nothing
from tests.faults.http import Http, NoAnswer

BROKER = "/v1/brokers/local-0-9-1"
DEFAULT = f"{BROKER}/exchanges/amq.default:publish"
NOWHERE = f"{BROKER}/exchanges/amq.fanout:publish?mandatory=false"
PIECE = 262_144
"""Bytes of a body that is held."""
LARGE = 65_536
"""Bytes of a message that is leased."""
PUSHED = 1 << 22
"""Bytes that are pushed at a time."""
LATER = 16_384
"""Bytes of a scheduled message."""


# --------------------------------------------------------------------------------------------- another client


async def look(lab: Lab) -> None:
    """One small request."""
    await lab.must("bob", "GET", "/v1/brokers")


async def flow(lab: Lab) -> None:
    """Publish a message, wait for it, acknowledge it."""
    await lab.must("bob", "POST", DEFAULT, {"routing_key": "bob", "payload": "hello"})
    pulled = await lab.must("bob", "POST", "/v1/subscriptions/bob:pull", {"wait": 5, "max_messages": 10})
    ack_ids = [each["ack_id"] for each in pulled["messages"]]
    assert ack_ids
    await lab.must("bob", "POST", "/v1/subscriptions/bob:acknowledge", {"ack_ids": ack_ids})


async def connect(lab: Lab) -> None:
    """A request on a new connection."""
    http = Http(lab.process.port)
    try:
        assert (await lab.ask("bob", "GET", "/v1/brokers", http=http)).status == 200
    finally:
        http.close()


async def probe(lab: Lab) -> None:
    """A probe of the operations port, on a new connection."""
    http = Http(lab.process.ops_port)
    try:
        assert (await http.request("GET", "/livez")).status == 200
    finally:
        http.close()


async def body(lab: Lab) -> None:
    """Publish 100,000 bytes."""
    answer = await lab.ask("bob", "POST", NOWHERE, b"x" * 100_000, content_type="application/octet-stream")
    assert answer.status == 200, answer.body


async def test_endpoint(lab: Lab) -> None:
    """Send a test message to an endpoint."""
    found = await lab.must("bob", "POST", "/v1/endpoints/bob-quick:test")
    assert found["delivered"], found


async def schedule(lab: Lab, client: str = "bob", size: int = 10) -> int:
    """Schedule a message and cancel it; the status."""
    answer = await lab.ask(client, "POST", DEFAULT, {"routing_key": "x", "payload": "x" * size, "delay_seconds": 3_600})
    if answer.status == 202:
        await lab.must(client, "DELETE", f"/v1/scheduled/{answer.json()['id']}")
    return answer.status


async def schedule_other(lab: Lab) -> None:
    """The same of the other client."""
    assert await schedule(lab) == 202


async def publish_once(lab: Lab) -> None:
    """Publish with a key of its own."""
    await lab.must("bob", "POST", DEFAULT, {"routing_key": "bob"}, idempotency_key=f"bob-{lab.number()}")


# ------------------------------------------------------------------------------------------------ one client


@asynccontextmanager
async def hold_requests(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Requests whose body does not come."""
    data = head("POST", DEFAULT, client, "Content-Type: application/json", "Content-Length: 100") + b"{"
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(lab.connection(data))
        yield


async def more_requests(lab: Lab, client: str, at_bound: bool) -> int:
    """A request."""
    return (await lab.ask(client, "GET", "/v1/brokers")).status


@asynccontextmanager
async def hold_streams(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Streams of an empty queue."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            data = head("GET", "/v1/subscriptions/alice:stream?max_outstanding=1", client)
            reader = await stack.enter_async_context(lab.connection(data))
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer + await reader.read(1_000)
        yield


async def more_streams(lab: Lab, client: str, at_bound: bool) -> int:
    """A pull that waits for a moment."""
    return (await lab.ask(client, "POST", "/v1/subscriptions/alice:pull", {"wait": 0.01, "max_messages": 1})).status


@asynccontextmanager
async def hold_leases(lab: Lab, client: str, count: int, size: int = 10) -> AsyncIterator[None]:
    """Leases of messages."""
    count //= size if size > 10 else 1
    path = "/v1/subscriptions/alice"
    for start in range(0, count, 10):
        messages = [{"routing_key": "alice", "payload": "x" * size}] * min(10, count - start)
        await lab.must(client, "POST", DEFAULT, {"messages": messages})
    ack_ids: list[str] = []
    while len(ack_ids) < count:
        most = min(count - len(ack_ids), 2 if size > 10 else 50)  # more are answered in pieces
        pulled = await lab.must(client, "POST", f"{path}:pull", {"max_messages": most, "wait": 1})
        ack_ids += [each["ack_id"] for each in pulled["messages"]]
    try:
        yield
    finally:
        await lab.must(client, "POST", f"{path}:acknowledge", {"ack_ids": ack_ids})


async def more_leases(lab: Lab, client: str, at_bound: bool) -> int:
    """A pull of an empty queue."""
    return (await lab.ask(client, "POST", "/v1/subscriptions/alice:pull", {"wait": 0, "max_messages": 1})).status


@asynccontextmanager
async def hold_bytes(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Bodies that do not end."""
    data = head(
        "POST", NOWHERE, client, "Content-Type: application/octet-stream", f"Content-Length: {PIECE + 1}"
    )  # fmt: skip
    before = (await lab.budget("bytes"))["held"]
    async with AsyncExitStack() as stack:
        for _ in range(count // PIECE):
            await stack.enter_async_context(lab.connection(data + b"x" * PIECE))
        await until(lambda: is_held(lab, "bytes", before + count))
        yield


async def more_bytes(lab: Lab, client: str, at_bound: bool) -> int:
    """A body that is whole."""
    answer = await lab.ask(client, "POST", NOWHERE, b"x" * (PIECE - 1), content_type="application/octet-stream")
    return answer.status


@asynccontextmanager
async def hold_connections(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Connections that have sent a key."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            reader = await stack.enter_async_context(lab.connection(head("GET", "/v1/brokers", client)))
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer + await reader.read(1_000)
        yield


async def more_connections(lab: Lab, client: str, at_bound: bool) -> int:
    """A request on a new connection."""
    async with lab.connection(head("GET", "/v1/brokers", client)) as reader:
        return int((await reader.readuntil(b"\r\n\r\n"))[9:12])


@asynccontextmanager
async def hold_silent(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Connections of the operations port that say nothing."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(lab.connection(port=lab.process.ops_port))
        yield


async def more_silent(lab: Lab, client: str, at_bound: bool) -> int:
    """One more."""
    async with lab.connection(port=lab.process.ops_port):
        return 200


@asynccontextmanager
async def hold_tests(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Test messages to an endpoint that does not answer."""
    https = [Http(lab.process.port) for _ in range(count)]
    lab.hooks.is_slow = True
    before = (await lab.budget("outbound_requests"))["held"]
    tests = [
        asyncio.ensure_future(lab.ask(client, "POST", "/v1/endpoints/alice-slow:test", http=http)) for http in https
    ]
    await until(lambda: is_held(lab, "outbound_requests", before + count))
    try:
        yield
    finally:
        lab.hooks.release()
        await asyncio.gather(*tests, return_exceptions=True)
        for http in https:
            http.close()


async def more_tests(lab: Lab, client: str, at_bound: bool) -> int:
    """A test message to one that does."""
    return (await lab.ask(client, "POST", "/v1/endpoints/alice-quick:test")).status


@asynccontextmanager
async def hold_lookups(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Test messages to hosts whose name server says nothing."""
    answer = lab.process.folder / "answer"
    answer.unlink(missing_ok=True)
    https = [Http(lab.process.port) for _ in range(count)]
    tests = []
    for http in https:
        name = f"silent-{lab.number()}"
        url = f"https://{name}.silent.example/"
        await lab.must("root", "PUT", f"/v1/endpoints/{name}", {"url": url, "deadline": 60})
        tests.append(asyncio.ensure_future(lab.ask(client, "POST", f"/v1/endpoints/{name}:test", http=http)))
    try:
        yield
    finally:
        answer.touch()
        await asyncio.gather(*tests, return_exceptions=True)
        for http in https:
            http.close()


@asynccontextmanager
async def hold_scheduled(lab: Lab, client: str, count: int, size: int = 10) -> AsyncIterator[None]:
    """Scheduled messages."""
    ids = []
    for _ in range(count // size if size > 10 else count):
        message = {"routing_key": "x", "payload": "x" * size, "delay_seconds": 3_600}
        answer = await lab.ask(client, "POST", DEFAULT, message)
        if answer.status == 429 and size > 10:  # what is counted of a message is more than its body
            break
        assert answer.status == 202, answer.body
        ids.append(answer.json()["id"])
    try:
        yield
    finally:
        for each in ids:
            await lab.must(client, "DELETE", f"/v1/scheduled/{each}")


async def more_scheduled(lab: Lab, client: str, at_bound: bool) -> int:
    """One more, for a moment."""
    return await schedule(lab, client)


async def more_scheduled_bytes(lab: Lab, client: str, at_bound: bool) -> int:
    """One more, for a moment."""
    return await schedule(lab, client, LATER if at_bound else 10)


@asynccontextmanager
async def hold_keys(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Messages with an Idempotency-Key, which stay for a day."""
    http = Http(lab.process.port)
    for start in range(0, count, 100):
        messages = [
            {"routing_key": "alice", "key": "known" if count > 1 and not start + each else f"{client}-{lab.number()}"}
            for each in range(min(100, count - start))
        ]
        answer = await http.request("POST", DEFAULT, {"messages": messages}, {"x-api-key": key_of(client)})
        assert answer.status < 300, answer.body
        assert {each["status"] for each in answer.json()["results"]} == {200}
    http.close()
    yield


async def more_keys(lab: Lab, client: str, at_bound: bool) -> int:
    """A new key; below the bound one that is known, for they stay."""
    key = f"more-{lab.number()}" if at_bound else "known"
    http = Http(lab.process.port)
    try:
        message = {"routing_key": "alice", "key": key}
        answer = await http.request("POST", DEFAULT, {"messages": [message]}, {"x-api-key": key_of(client)})
        return int(answer.json()["results"][0]["status"]) if answer.status < 300 else answer.status
    finally:
        http.close()


def who(client: str, kind: str) -> str:
    """Whom a client asks as: bridges and taps take ``admin``."""
    return f"{client}-admin" if kind in ("bridges", "taps") else client


@asynccontextmanager
async def hold_resources(lab: Lab, client: str, count: int, kind: str = "") -> AsyncIterator[None]:
    """Subscriptions, endpoints, bridges or taps."""
    client = who(client, kind)
    names = [f"{client}-{lab.number()}" for _ in range(count)]
    for name in names:
        await lab.must(client, "PUT", f"/v1/{kind}/{name}", settings_of(lab, kind))
    try:
        yield
    finally:
        for name in names:
            await lab.must(client, "DELETE", f"/v1/{kind}/{name}")


def settings_of(lab: Lab, kind: str) -> dict[str, object]:
    """Of a resource of that kind."""
    if kind == "endpoints":
        return {"url": lab.hooks.url("quick")}
    if kind == "bridges":
        return {
            "source": {"broker": "local-0-9-1", "queue": "idle"},
            "target": {"broker": "local-0-9-1", "routing_key": "idle"},
        }
    if kind == "taps":
        return {"broker": "local-0-9-1", "queue": "idle"}
    return {"broker": "local-0-9-1", "queue": "alice"}


async def more_resources(lab: Lab, client: str, at_bound: bool, kind: str = "") -> int:
    """One more, for a moment."""
    client = who(client, kind)
    path = f"/v1/{kind}/{client}-{lab.number()}"
    status = (await lab.ask(client, "PUT", path, settings_of(lab, kind))).status
    if status == 201:
        await lab.must(client, "DELETE", path)
    return status


async def other_resources(lab: Lab, kind: str = "") -> None:
    """The same of the other client."""
    assert await more_resources(lab, "bob", at_bound=False, kind=kind) == 201


@asynccontextmanager
async def hold_pushed(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Messages that are pushed to an endpoint that does not answer."""
    lab.hooks.is_slow = True
    before = (await lab.budget("held_bytes"))["held"]
    messages = [{"routing_key": "alice-pushed", "payload": "x" * LARGE}]
    for _ in range(count // LARGE):
        await lab.must(client, "POST", DEFAULT, {"messages": messages})
    if before + count < PUSHED:  # at the bound, half of it goes back to its queue
        await until(lambda: is_held(lab, "held_bytes", before + count))
    try:
        yield
    finally:
        lab.hooks.release()
        await until(lambda: is_held_at_most(lab, "held_bytes", 0), 60)


async def push(lab: Lab) -> None:
    """Publish a message, and wait until it was pushed."""
    arrived = lab.hooks.arrived
    await lab.must("bob", "POST", DEFAULT, {"routing_key": "bob-pushed", "payload": "hello"})
    async with asyncio.timeout(5):
        await lab.hooks.until(arrived + 1)


@asynccontextmanager
async def hold_rows(lab: Lab, client: str, count: int) -> AsyncIterator[None]:
    """Messages that come again and again, so many rows at a time."""
    messages = [{"routing_key": "nowhere", "mandatory": False}] * max(1, count // 2)

    async def come() -> None:
        http = Http(lab.process.port)
        try:
            while True:
                answer = await lab.ask(client, "POST", DEFAULT, {"messages": messages}, http=http)
                assert answer.status < 300, answer.body
        finally:
            http.close()

    coming = asyncio.create_task(come())
    try:
        yield
        assert not coming.done(), coming.exception()
    finally:
        coming.cancel()
        await asyncio.wait([coming])


ROWS: tuple[Row, ...] = (
    Row("requests", hold_requests, more_requests, look),
    Row("streams", hold_streams, more_streams, flow),
    Row("leases", hold_leases, more_leases, flow),
    Row("lease_bytes", partial(hold_leases, size=LARGE), more_leases, flow, one=LARGE),
    Row("bytes", hold_bytes, more_bytes, body, one=PIECE),
    Row("connections", hold_connections, more_connections, connect),
    Row(
        "ops_connections", hold_silent, more_silent, probe, one=2, beyond=100, is_refused=False,
        bound=lambda share, total, reserve: total - reserve,
    ),
    Row("outbound_requests", hold_tests, more_tests, test_endpoint, alternates=False),
    Row("lookups", hold_lookups, more_nothing, test_endpoint, beyond=20, is_refused=False, alternates=False),
    Row("scheduled", hold_scheduled, more_scheduled, schedule_other),
    Row("scheduled_bytes", partial(hold_scheduled, size=LATER), more_scheduled_bytes, schedule_other, one=LATER),
    *(
        Row(
            kind, partial(hold_resources, kind=kind), partial(more_resources, kind=kind),
            partial(other_resources, kind=kind), label=partial(who, kind=kind),
        )
        for kind in ("subscriptions", "endpoints", "bridges", "taps")
    ),
    Row("idempotency_keys", hold_keys, more_keys, publish_once, alternates=False, stays=True),
    Row(
        "held_bytes", hold_pushed, more_nothing, push, one=LARGE, beyond=32 * LARGE, is_refused=False, alternates=False,
        bound=lambda share, total, reserve: PUSHED,
    ),
    Row("ledger_rows", hold_rows, more_nothing, flow, one=1, beyond=800, is_refused=False),
    *amqp_rows.ROWS,
)  # fmt: skip
"""Each budget that can be measured on a gateway of its own."""
NOT_HERE: dict[str, str] = {
    "cluster_connections": "it takes two processes: tests/api/test_peers.py",
}
"""Budget -> where it is looked at instead."""
__all__ = ["NOT_HERE", "ROWS", "NoAnswer", "Row"]
