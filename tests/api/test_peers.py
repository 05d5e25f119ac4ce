"""The port for other processes: sealed requests over real HTTP, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import msgspec
import pytest
from starlette.responses import JSONResponse, Response

from gateway.access.scopes import Grant, Principal
from gateway.api.http.connections import Connections
from gateway.api.http.guard import Bounds
from gateway.api.resources import peers as module
from gateway.api.resources.peers import FORWARDED, PROCESS, RUNNING_MAX, CallAnswer, CallRequest, PeerPort, ask
from gateway.app import _listen, _port, _serving
from gateway.budgets import BudgetBounds, Budgets
from gateway.core.work.peers import Peers, SettleRequest
from gateway.errors import LedgerUnavailable, PeerUnavailable
from gateway.observing.telemetry import Metrics
from tests.core.test_ownership import FakeLedger, Rows

SECRET = b"s" * 32


class Stub:
    """An API that says what it was asked."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body = (await receive())["body"]
        answer = {"path": scope["raw_path"].decode(), "body": body.decode(), "by": scope[FORWARDED].name}
        await JSONResponse(answer, 201, {"etag": '"e"'})(scope, receive, send)


class Place:
    """Two processes; the second one has an open port."""

    def __init__(self) -> None:
        rows = Rows()
        ledgers: list[Any] = [FakeLedger(rows, shard) for shard in (0, 1)]
        self.one, self.two = (
            Peers(ledger, Metrics("test"), name=f"host:{ledger.shard}", secret=SECRET) for ledger in ledgers
        )
        self.api = Stub()
        self.url = ""
        self.rows = rows

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.post(self.url + path, content=body, headers=headers)

    def sealed(self, path: str, body: bytes) -> dict[str, str]:
        return self.one.seal.headers("POST", path, self.one.me.id, self.two.me.id, body)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    async with AsyncExitStack() as stack:
        listener = _listen("127.0.0.1", 0, "cluster")
        stack.callback(listener.close)
        place.url = f"http://127.0.0.1:{_port(listener)}"
        place.two.reached_at(place.url)
        for peers, shard in ((place.one, 0), (place.two, 1)):
            place.rows.peers[shard] = peers.describe(shard, 1, frozenset())
        await stack.enter_async_context(_serving(PeerPort(place.two, place.api, 1_000), listener, 1.0))
        yield place
        await place.one.close()
        await place.two.close()


async def test_connections_that_say_nothing_keep_no_process_out() -> None:
    place, budgets = Place(), Budgets(BudgetBounds(totals={"cluster_connections": 40}))
    of_cluster = budgets["cluster_connections"]
    async with AsyncExitStack() as stack:
        listener = _listen("127.0.0.1", 0, "cluster")
        stack.callback(listener.close)
        port = _port(listener)
        place.url = f"http://127.0.0.1:{port}"
        place.two.reached_at(place.url)
        for peers, shard in ((place.one, 0), (place.two, 1)):
            place.rows.peers[shard] = peers.describe(shard, 1, frozenset())
        bounds = Bounds(connections=Connections(of_cluster))
        await stack.enter_async_context(_serving(PeerPort(place.two, place.api, 1_000), listener, 1.0, bounds))
        request = CallRequest("GET", b"/v1/bridges", b"", {}, b"", "ann", False, [])
        assert (await ask(place.one, place.two.me, request, 5.0)).status == 201
        for _ in range(120):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
        await asyncio.sleep(0.05)
        assert of_cluster.held <= 40
        assert of_cluster.refusals["dropped"] > 80
        assert of_cluster.held_by(PROCESS) == 1, "the other process is no stranger, and keeps its connection"
        assert (await ask(place.one, place.two.me, request, 5.0)).status == 201
        await place.one.close()
        await place.two.close()


async def test_a_call_is_answered_for_its_principal(place: Place) -> None:
    request = CallRequest(
        "POST", b"/v1/bridges/b%2F1:pause", b"x=1", {"if-match": '"e"'}, b"body", "ann", False, [("consume", "b", "*")]
    )
    answer = await ask(place.one, place.two.me, request, 5.0)
    assert answer.status == 201
    assert msgspec.json.decode(answer.body) == {"path": "/v1/bridges/b%2F1:pause", "body": "body", "by": "ann"}
    assert (b"etag", b'"e"') in answer.headers
    (scope,) = place.api.scopes
    assert scope[FORWARDED] == Principal("ann", False, (Grant("consume", "b", "*"),))
    assert (scope["method"], scope["query_string"], scope["headers"]) == ("POST", b"x=1", [(b"if-match", b'"e"')])


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer secret"}, {"x-api-key": "secret"}])
async def test_nobody_comes_in_without_a_seal(place: Place, headers: dict[str, str]) -> None:
    for path in ("/peer/call", "/peer/settle", "/peer/tell"):
        assert (await place.post(path, b"", headers)).status_code == 403
    assert place.api.scopes == []
    for path in ("/", "/v1/bridges", "/metrics", "/peer/none", "/peer/call/"):
        assert (await place.post(path, b"", headers)).status_code == 404
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{place.url}/peer/tell")).status_code == 404


async def test_a_request_that_is_sent_again_is_refused(place: Place) -> None:
    heard: list[Any] = []
    place.two.listen("t", heard.append)
    body = msgspec.msgpack.encode({"topic": "t", "news": {"name": "n"}})
    headers = place.sealed("/peer/tell", body)
    assert [(await place.post("/peer/tell", body, headers)).status_code for _ in range(3)] == [200, 403, 403]
    assert heard == [{"name": "n"}]


async def test_what_is_sealed_and_senseless_is_a_bad_request(place: Place) -> None:
    for path in ("/peer/call", "/peer/settle", "/peer/tell"):
        assert (await place.post(path, b"\xc1", place.sealed(path, b"\xc1"))).status_code == 400


async def test_a_body_over_the_limit_is_refused(place: Place) -> None:
    body = bytes(1_000 + (1 << 16) + 1)
    assert (await place.post("/peer/call", body, place.sealed("/peer/call", body))).status_code == 413


async def test_of_a_stranger_little_is_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the port can make it hold ``UNSEALED_MAX`` octets, and no more: the head is looked at first."""
    monkeypatch.setattr(module, "UNSEALED_MAX", 100)
    short, long = b"x" * 100, b"x" * 101
    sealed = place.sealed("/peer/call", long)
    away = place.one.seal.headers("POST", "/peer/call", place.one.me.id, b"another!", long)
    heads: list[dict[str, str]] = [
        {}, sealed | {"x-peer-head": "0" * 64}, sealed | {"x-peer-length": "900"}, sealed | {"x-peer-time": "1.000"},
        {name: value for name, value in sealed.items() if name != "x-peer-head"}, away,
    ]  # fmt: skip
    for headers in heads:
        assert (await place.post("/peer/call", short, headers)).status_code == 403
        assert (await place.post("/peer/call", long, headers)).status_code == 413
    assert (await place.post("/peer/call", long, sealed)).status_code == 400, "read, and senseless"


async def slow(place: Place, path: str, headers: dict[str, str]) -> asyncio.StreamWriter:
    """A request whose body does not come."""
    host, _, port = place.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    lines = [f"POST {path} HTTP/1.1", "host: here", "content-length: 10", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    await writer.drain()
    return writer


async def test_strangers_hold_none_of_the_places_of_peers(place: Place) -> None:
    """One that has overheard a sealed head is a stranger from the second time on."""
    place.two.listen("t", lambda news: None)
    overheard = place.sealed("/peer/tell", b"0123456789")
    heads = [{}, {"x-peer-nonce": "00" * 16}, {"x-peer-seal": "0" * 64, "x-peer-head": "0" * 64}, overheard]
    held = [await slow(place, "/peer/tell", heads[index % 4]) for index in range(RUNNING_MAX * 2)]
    try:
        async with asyncio.timeout(10):
            while (await place.post("/peer/tell", b"", {})).status_code != 503:
                await asyncio.sleep(0.05)
        body = msgspec.msgpack.encode({"topic": "t", "news": {}})
        assert (await place.post("/peer/tell", body, place.sealed("/peer/tell", body))).status_code == 200
    finally:
        for writer in held:
            writer.close()


async def test_a_place_of_a_stranger_is_free_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRANGER_WITHIN", 0.3)
    held = [await slow(place, "/peer/tell", {}) for _ in range(module.STRANGERS_PER_ADDRESS)]
    async with asyncio.timeout(10):
        while (await place.post("/peer/tell", b"", {})).status_code != 403:
            await asyncio.sleep(0.05)
    for writer in held:
        writer.close()


async def test_no_answer_is_sealed_for_a_stranger(place: Place) -> None:
    body = msgspec.msgpack.encode({"topic": "t", "news": {}})
    sealed = place.sealed("/peer/tell", body)
    assert "x-peer-seal" in (await place.post("/peer/tell", body, sealed)).headers
    requests = [
        ("/peer/tell", body, sealed),  # again
        ("/peer/tell", b"", {"x-peer-nonce": "00" * 16}),
        ("/peer/tell", b"other", place.sealed("/peer/tell", body)),
        ("/peer/tell", body + b"longer", place.sealed("/peer/tell", body)),
        ("/peer/call", body, place.sealed("/peer/tell", body)),
        ("/peer/none", body, place.sealed("/peer/none", body)),
    ]
    for path, content, headers in requests:
        answer = await place.post(path, content, headers)
        assert answer.status_code in (403, 404, 413)
        assert "x-peer-seal" not in answer.headers
    place.two.me = msgspec.structs.replace(place.two.me, id=b"another!")
    headers = place.one.seal.headers("POST", "/peer/tell", place.one.me.id, b"gone" * 2, body)
    assert "x-peer-seal" in (await place.post("/peer/tell", body, headers)).headers, "for another process, and sealed"


async def test_no_more_is_read_than_was_announced(place: Place) -> None:
    headers = place.sealed("/peer/call", b"x" * 10)
    assert (await place.post("/peer/call", b"x" * 11, headers)).status_code == 413


async def test_a_process_of_the_release_before_is_heard(place: Place) -> None:
    body = msgspec.msgpack.encode({"topic": "t", "news": {}})
    headers = place.sealed("/peer/tell", body)
    del headers["x-peer-head"], headers["x-peer-length"]
    assert (await place.post("/peer/tell", body, headers)).status_code == 200


async def test_all_are_told_and_who_is_away_is_no_trouble(place: Place) -> None:
    heard: list[Any] = []
    place.two.listen("work", heard.append)
    gone = msgspec.structs.replace(place.two.me, id=b"gone" * 2, shard=9, url="http://127.0.0.1:1")
    place.one.found([place.one.me, place.two.me, gone])
    place.one.tell("work", {"kind": "bridge"})
    async with asyncio.timeout(30):
        while not heard or place.one._telling:
            await asyncio.sleep(0.01)
    assert heard == [{"kind": "bridge"}]


async def test_leases_are_settled_by_who_holds_them(place: Place) -> None:
    asked: list[Any] = []

    async def settle_here(verb: str, subscription: str, ack_ids: Any, **arguments: Any) -> list[tuple[str, str]]:
        asked.append((verb, subscription, list(ack_ids), arguments))
        return [(ack_id, "SUCCESS") for ack_id in ack_ids]

    place.two.settle_here = settle_here
    owner = place.two.me.id
    assert await place.one.settle(owner, "extend", "s", ["a", "b"], seconds=20) == [("a", "SUCCESS"), ("b", "SUCCESS")]
    assert asked == [("extend", "s", ["a", "b"], {"seconds": 20})]
    place.two.settle_here = None
    assert await place.one.settle(owner, "release", "s", ["a"]) == [("a", "LEASE_LOST")]

    async def failing(*_: Any, **__: Any) -> list[tuple[str, str]]:
        raise LedgerUnavailable("the ledger is away")

    place.two.settle_here = failing
    with pytest.raises(PeerUnavailable, match="the ledger is away"):
        await place.one.settle(owner, "release", "s", ["a"])


async def test_a_process_that_is_gone_or_is_another_now_is_an_error(place: Place) -> None:
    away = msgspec.structs.replace(place.two.me, url="http://127.0.0.1:1")
    with pytest.raises(PeerUnavailable, match="host:1"):
        await place.one.request(away, "/peer/tell", b"")
    other = msgspec.structs.replace(place.two.me, id=b"another!")
    with pytest.raises(PeerUnavailable, match="for another process"):
        await place.one.request(other, "/peer/tell", b"")
    stranger: Any = Peers(place.one._ledger, Metrics("test"), secret=b"t" * 32)
    with pytest.raises(PeerUnavailable, match="not sealed by our secret"):
        await stranger.request(place.two.me, "/peer/tell", b"")
    await stranger.close()
    value = place.one._metrics.registry.get_sample_value
    assert value("amqpgw_cluster_requests_total", {"verb": "tell", "outcome": "failed"}) == 2


async def test_an_answer_whose_seal_is_nonsense_is_an_error(place: Place) -> None:
    """A stranger has taken the port."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await Response(b"", 200, {"x-peer-seal": "\xe9"})(scope, receive, send)

    listener = _listen("127.0.0.1", 0, "cluster")
    async with _serving(answer, listener, 1.0):
        taken = msgspec.structs.replace(place.two.me, url=f"http://127.0.0.1:{_port(listener)}")
        with pytest.raises(PeerUnavailable, match="not sealed by our secret"):
            await place.one.request(taken, "/peer/tell", b"")
    listener.close()


async def test_too_much_at_once_is_refused(place: Place) -> None:
    begun = 0
    going = asyncio.Event()

    async def slow(*_: Any, **__: Any) -> list[tuple[str, str]]:
        nonlocal begun
        begun += 1
        await going.wait()
        return []

    place.two.settle_here = slow
    body = msgspec.msgpack.encode(SettleRequest("release", "s", ["a"]))
    tasks = [
        asyncio.create_task(place.post("/peer/settle", body, place.sealed("/peer/settle", body)))
        for _ in range(RUNNING_MAX)
    ]
    async with asyncio.timeout(20):
        while begun < RUNNING_MAX:
            await asyncio.sleep(0.01)
    refused = await place.post("/peer/settle", body, place.sealed("/peer/settle", body))
    assert refused.status_code == 503
    going.set()
    assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}


def test_an_answer_survives_the_way() -> None:
    answer = CallAnswer(204, [(b"link", b"<x>")], b"")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=CallAnswer) == answer
