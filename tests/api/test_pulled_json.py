"""Answers of pulls and streams: large ones in pieces, with the same JSON as small ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.api.app import Api
from gateway.api.messages import pulled_json
from gateway.api.messages.pulled_json import SLICE, PiecesAnswer, pieces_of, pulled_message
from gateway.budgets import ALONE
from gateway.config import HttpSettings
from gateway.core import Gateway
from gateway.core.leasing.pulled import LedgerLease, Pulled
from gateway.core.sources.stored import Stored
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream
from tests.core.test_ledger_leases import subscribe

PULL = "/v1/subscriptions/billing:pull"


def pulled(body: bytes, exchange: str = "", headers: dict[str, Any] | None = None) -> Pulled:
    lease = LedgerLease("ack", bytes(16), bytes(16), 1, "s", "b")
    stored = Stored(Message(body, Properties(headers=headers)), exchange, '"payload":""', False, False)
    return Pulled(lease, bytes(16), 1, stored, False, False, False)


def bodies() -> Iterator[tuple[str, bytes]]:
    text = 'é"\\\n\x01€😀 '.encode()
    for shift in range(4):
        yield f"text cut within a character, {shift}", b"x" * shift + text * (2 * SLICE // len(text))
    yield "ASCII", b"a" * (SLICE + 1)
    yield "binary", bytes(range(256)) * (3 * SLICE // 256 + 1)
    for rest in (1, 2, 3):
        yield f"binary with {rest} over", b"\xff" * (SLICE + rest)
    yield "text but for its last byte", b"a" * (2 * SLICE) + b"\xff"
    yield "text whose last character is cut", b"a" * (2 * SLICE) + "é".encode()[:1]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in bodies()])
def test_pieces_are_the_json_of_the_whole(body: bytes) -> None:
    item = pulled(body, '"payload":""', {"payload": '"payload":""', "n": 1})
    pieces = list(pieces_of(item))
    assert b"".join(pieces) == msgspec.json.encode(pulled_message(item))
    assert max(map(len, pieces)) <= 6 * SLICE
    assert len(pieces) > 2


def test_a_small_message_is_one_piece() -> None:
    assert len(list(pieces_of(pulled(b"x" * SLICE)))) == 1


@pytest.mark.parametrize(("version", "length"), [("1.1", None), ("1.0", b"200000")])
async def test_a_caller_that_knows_no_chunks_gets_all_at_once(version: str, length: bytes | None) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    answer = PiecesAnswer(iter([b"a" * 100_000, b"b" * 99_999, b"c"]))
    await answer({"type": "http", "http_version": version}, None, send)  # type: ignore[arg-type]  # it asks for nothing
    assert dict(sent[0]["headers"]).get(b"content-length") == length
    assert b"".join(each.get("body", b"") for each in sent[1:]) == b"a" * 100_000 + b"b" * 99_999 + b"c"
    assert len(sent) == (2 if length else 5)


@pytest.fixture
async def billing(gateway: Gateway) -> None:
    await subscribe(gateway, lease="broker")


async def put(upstream: FakeUpstream, *sent: bytes) -> None:
    for body in sent:
        await upstream.publish_nowait("", "orders", Message(body))


@pytest.mark.usefixtures("billing")
@pytest.mark.parametrize(("count", "size"), [(150, 10), (5, SLICE), (1, 5 * SLICE), (2, 10)])
async def test_an_answer_in_pieces(client: httpx.AsyncClient, upstream: FakeUpstream, count: int, size: int) -> None:
    sent = [b"%04d" % number + b"x" * size for number in range(count)]
    await put(upstream, *sent)
    answer = await client.post(PULL, json={"max_messages": 1_000})
    assert answer.status_code == 200
    assert ("content-length" in answer.headers) == (count == 2)
    assert [item["message"]["payload"].encode() for item in answer.json()["messages"]] == sent


async def ask(api: Api, version: str, hangs_up_after: int | None = None) -> tuple[list[Any], bytes]:
    """Pull over ASGI; a caller who hangs up after so many messages."""
    said: list[Any] = []
    request = [{"type": "http.request", "body": b'{"max_messages": 100}', "more_body": False}]

    async def receive() -> Any:
        if request:
            return request.pop()
        if hangs_up_after is None or len(said) < hangs_up_after:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": "http", "method": "POST", "path": PULL, "raw_path": PULL.encode(), "query_string": b"",
        "http_version": version, "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1), "scheme": "http", "root_path": "",
    }  # fmt: skip
    await api(scope, receive, send)
    return said, b"".join(message.get("body", b"") for message in said)


@pytest.mark.usefixtures("billing")
async def test_http_1_0_gets_its_length(gateway: Gateway, upstream: FakeUpstream) -> None:
    await put(upstream, *(bytes(SLICE) for _ in range(4)))
    said, body = await ask(Api(gateway, HttpSettings()), "1.0")
    assert (b"content-length", b"%d" % len(body)) in said[0]["headers"]
    assert len(json.loads(body)["messages"]) == 4


@pytest.mark.usefixtures("billing")
async def test_who_hangs_up_in_the_middle_gives_all_back(gateway: Gateway, upstream: FakeUpstream) -> None:
    await put(upstream, *(bytes(SLICE) for _ in range(8)))
    said, _ = await ask(Api(gateway, HttpSettings()), "1.1", hangs_up_after=4)
    assert len(said) < 8, "nothing is written for nobody"
    assert len(upstream.queues["orders"].ready) == 8


@pytest.mark.usefixtures("billing")
async def test_others_have_their_turn(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    await put(upstream, *(bytes(8 << 20) for _ in range(3)))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    answer = await client.post(PULL, json={"max_messages": 10})
    task.cancel()
    assert answer.status_code == 200
    assert turns > 10


@pytest.mark.usefixtures("billing")
async def test_a_pull_finds_no_room_among_the_bodies_of_others(gateway: Gateway, upstream: FakeUpstream) -> None:
    api = Api(gateway, HttpSettings())
    budget = gateway.budgets["bytes"]
    budget.configure(10_000, 1.0, 0.0, {})
    await put(upstream, *(bytes(4_000) for _ in range(6)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        budget.take(ALONE, 5_000)
        answer = await client.post(PULL, json={"max_messages": 10})
        assert len(answer.json()["messages"]) == 2
        assert budget.standing().held == 5_000, "what is written is held no longer"
        budget.take(ALONE, 5_000)
        said = problem(await client.post(PULL, json={"max_messages": 10}), 503, "overloaded")
        assert "http.bodies_max" in said["detail"]
    assert len(upstream.queues["orders"].ready) == 4


@pytest.mark.usefixtures("billing")
async def test_an_answer_that_cannot_be_made_gives_all_back(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(body: bytes) -> Iterator[bytes]:
        raise ValueError("on purpose")

    monkeypatch.setattr(pulled_json, "_base64", fail)
    await put(upstream, b"a", b"\xff" * (2 * SLICE))
    with pytest.raises(ValueError, match="on purpose"):
        await ask(Api(gateway, HttpSettings()), "1.1")
    assert len(upstream.queues["orders"].ready) == 2
