"""Requests to other processes: asking them, telling them, and settling for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import structs

from gateway.core.work.peers import Peers, SettleRequest, TellRequest
from gateway.errors import PeerUnavailable
from tests.core.test_ownership import Rows
from tests.core.test_peers import PATH, make, peer


class Answering:
    """Another process, which answers as the test says."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.status, self.body, self.headers = 200, b"yes", ""
        self.seal: str | None = None
        self.requests: list[tuple[bytes, bytes]] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = await reader.readexactly(int(fields[b"content-length"]))
        self.requests.append((head.split(b" ")[1], body))
        seal = self.seal
        if seal is None:
            made = self.peers.seal.answer(fields[b"x-peer-nonce"].decode(), self.status, self.body)
            seal = f"x-peer-seal: {made}\r\n"
        writer.write(
            f"HTTP/1.1 {self.status} X\r\n{seal}{self.headers}content-length: {len(self.body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + self.body
        )
        await writer.drain()
        writer.close()


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    made = make(Rows())
    yield made
    await made.close()


@pytest.fixture
async def other(peers: Peers) -> AsyncIterator[Answering]:
    answering = Answering(peers)
    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    answering.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield answering
    server.close()


def requests(peers: Peers, verb: str, outcome: str) -> float:
    labels = {"verb": verb, "outcome": outcome}
    return peers._metrics.registry.get_sample_value("amqpgw_cluster_requests_total", labels) or 0.0


async def test_another_process_is_asked_and_never_through_a_proxy(
    peers: Peers, other: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    answer = await peers.request(peer(7, url=other.url + "/"), PATH, b"body")
    assert (answer.status, answer.body) == (200, b"yes")
    assert other.requests == [(PATH.encode(), b"body")]
    assert (requests(peers, "tell", "answered"), requests(peers, "tell", "failed")) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seal": ""}, r"its answer \(200\) is not sealed by our secret and says b'yes'"),
        ({"seal": "x-peer-seal: 00\r\n"}, r"its answer \(200\) is not sealed by our secret$"),
        ({"status": 500, "body": b"a fault"}, "host:7: a fault"),
        ({"status": 302, "headers": "location: /elsewhere\r\n", "body": b"go on"}, "host:7: go on"),
        ({"body": bytes(11)}, "its answer is over 10 octets"),
    ],
)
async def test_an_answer_that_is_none_is_refused(
    peers: Peers, other: Answering, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr("gateway.core.work.peers.ANSWER_MAX", 10)
    for name, value in changes.items():
        setattr(other, name, value)
    with pytest.raises(PeerUnavailable, match=expected):
        await peers.request(peer(7, url=other.url), PATH, b"body")
    assert len(other.requests) == 1
    assert (requests(peers, "tell", "answered"), requests(peers, "tell", "failed")) == (0, 1)


async def test_an_answer_may_be_as_long_as_the_limit(
    peers: Peers, other: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.core.work.peers.ANSWER_MAX", 10)
    other.body = bytes(10)
    assert (await peers.request(peer(7, url=other.url), PATH, b"")).body == bytes(10)


async def test_a_process_that_does_not_answer_is_named(peers: Peers, other: Answering) -> None:
    with pytest.raises(PeerUnavailable, match=r"host:7 at http://127\.0\.0\.1:1: \S"):
        await peers.request(peer(7), PATH, b"body")

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(PeerUnavailable, match="TimeoutError"):
        await peers.request(peer(7, url=url), PATH, b"body", 0.05)
    assert requests(peers, "tell", "failed") == 2
    server.close()


async def test_all_others_that_can_be_reached_are_told(peers: Peers, other: Answering) -> None:
    this = structs.replace(peers.me, shard=0, url="http://127.0.0.1:1")
    peers.found([this, peer(1, url=other.url), peer(2, url=""), peer(3, url=other.url)])
    assert [each.shard for each in peers.others] == [1, 2, 3]
    peers.tell("work", {"kind": "job"})
    async with asyncio.timeout(5):
        while len(other.requests) < 2:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    assert [path for path, _ in other.requests] == [PATH.encode()] * 2
    assert msgspec.msgpack.decode(other.requests[0][1], type=TellRequest) == TellRequest("work", {"kind": "job"})
    assert requests(peers, "tell", "failed") == 0


async def test_what_is_told_when_it_closes_is_given_up(peers: Peers) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    peers.found([peer(1, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")])
    peers.tell("work", {})
    await asyncio.sleep(0.01)
    client = peers._client
    assert client is not None
    async with asyncio.timeout(5):
        await peers.close()
    assert not len(peers._telling)
    assert client.is_closed
    server.close()


def test_news_go_to_who_listens(peers: Peers) -> None:
    heard: list[Any] = []
    peers.listen("work", heard.append)
    peers.heard(TellRequest("work", {"kind": "job"}))
    peers.heard(TellRequest("unknown", {}))
    assert heard == [{"kind": "job"}]


async def test_leases_of_this_process_are_settled_for_others(peers: Peers) -> None:
    request = SettleRequest("release", "s", ["a", "b"], {"delay": 3})
    assert await peers.settled(request) == [("a", "LEASE_LOST"), ("b", "LEASE_LOST")]
    asked: list[Any] = []

    async def settle(*arguments: Any, **more: Any) -> list[tuple[str, str]]:
        asked.append((arguments, more))
        return [("a", "SUCCESS"), ("b", "LEASE_LOST")]

    peers.settle_here = settle
    assert await peers.settled(request) == [("a", "SUCCESS"), ("b", "LEASE_LOST")]
    assert asked == [(("release", "s", ["a", "b"]), {"delay": 3})]


async def test_the_ledger_is_asked_only_for_processes_that_are_not_known(peers: Peers) -> None:
    work: Any = peers._ledger.work
    work.rows.alive |= {7: 1}
    work.rows.peers[7] = peer(7)
    assert await peers.of_shard(7) == await peers.of_id(b"\x07" * 8) == peer(7)
    assert await peers.of_shard(7) == peer(7)
    assert work.views == 1
    assert await peers.of_shard(8) is None
    assert await peers.of_id(b"\x08" * 8) is None
    assert work.views == 4
