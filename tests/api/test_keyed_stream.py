"""Messages with a key of their own, and messages of the message log, over HTTP."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import httpx
import msgspec
import pytest

from gateway.amqp.message import Properties
from gateway.amqp.values import Typed
from gateway.errors import LedgerUnavailable
from gateway.fidelity import annotation
from gateway.ledger.pending.keyring import Keyring
from gateway.notation.logged import logged
from tests.api.conftest import problem
from tests.api.test_stream import NDJSON, PATH, line, post
from tests.core.fakes import FakeUpstream


def lines(count: int, first: int = 0, **more: Any) -> bytes:
    return b"".join(line(payload=str(n), key=f"k{n}", **more) for n in range(first, first + count))


async def test_a_stream_that_is_sent_again_publishes_nothing(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    """Cut off anywhere, and sent again from its beginning, in other pieces and with other spaces."""
    first = await post(client, lines(1_300))
    assert [(result["status"], result["key"]) for result in first] == [(200, "done")] * 1_300
    again = await post(client, lines(1_400).replace(b'":', b'" : '))
    assert [(result["status"], result["key"]) for result in again] == [(200, "repeated")] * 1_300 + [
        (200, "done")
    ] * 100
    assert [result["id"] for result in again[:1_300]] == [result["id"] for result in first]
    assert [sent.body for _, _, sent in upstream.published] == [b"%d" % n for n in range(1_400)]


async def test_a_batch_has_keys_too(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    messages = [{"routing_key": "orders", "key": "a"}, {"routing_key": "nowhere", "mandatory": True, "key": "b"}]
    for how in ("done", "repeated"):
        response = await client.post(PATH, json={"messages": messages})
        results = response.json()["results"]
        assert (response.status_code, [(each["status"], each["key"]) for each in results]) == (
            207, [(200, how), (422, how)]
        )  # fmt: skip
    assert len(upstream.published) == 2


async def test_each_line_is_told_what_is_its_own(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    body = line(key="k", payload="1") + line(key="k", payload="2") + line(payload="3") + line(key="k", payload="1")
    results = await post(client, body)
    assert [(result["status"], result.get("key")) for result in results] == [
        (200, "done"), (422, None), (200, None), (200, "repeated"),
    ]  # fmt: skip
    assert results[1]["problem"]["code"] == "idempotency_key_reused"
    assert [sent.body for _, _, sent in upstream.published] == [b"1", b"3"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"key": ""}, "invalid_request"),
        ({"key": "x" * 256}, "invalid_request"),
        ({"key": "a\nb"}, "invalid_request"),
        ({"key": "\u00e4"}, "invalid_request"),
        ({"key": 7}, "invalid_request"),
        ({"key": "k", "not_before": 4_000_000_000}, "invalid_value"),
    ],
)
async def test_a_key_that_is_none_costs_only_its_line(
    client: httpx.AsyncClient, upstream: FakeUpstream, message: dict[str, Any], code: str
) -> None:
    results = await post(client, line(**message) + line(key="x" * 255))
    assert [result.get("problem", {}).get("code") for result in results] == [code, None]
    assert len(upstream.published) == 1


async def test_a_key_and_what_does_not_go_with_it(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    response = await client.post(PATH, json={"routing_key": "orders", "key": "k"})
    assert "Idempotency-Key" in problem(response, 422, "invalid_request")["detail"]
    batch = {"messages": [{"routing_key": "orders", "key": "k"}]}
    response = await client.post(PATH, json=batch, headers={"idempotency-key": "whole"})
    problem(response, 422, "invalid_parameter")
    response = await client.post(PATH, json=batch, headers={"prefer": "respond-async"})
    problem(response, 422, "invalid_parameter")
    response = await client.post(PATH, content=line(key="k"), headers={**NDJSON, "prefer": "respond-async"})
    assert "respond-async" in msgspec.json.decode(response.content)["problem"]["detail"]
    assert not upstream.published


async def test_a_ledger_that_is_away_is_told_for_each(
    client: httpx.AsyncClient, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(*args: Any) -> Any:
        raise LedgerUnavailable("full")

    monkeypatch.setattr(Keyring, "claim", claim)
    results = await post(client, lines(2))
    assert [(result["status"], result.get("key"), result["problem"]["retryable"]) for result in results] == [
        (503, None, True)
    ] * 2
    assert not upstream.published


# -------------------------------------------------------------------------------- messages of the message log

EVERYTHING = Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"n": Typed("int8", 3), "t": {"x": [1, None]}, "b": b"\x00\xff"},
    priority=9,
    correlation_id=b"\xff",
    reply_to="there",
    expiration="60000",
    message_id="m",
    timestamp=7,
    type="t",
    user_id="somebody",
    app_id="a",
    cluster_id="c",
)


def of_log(properties: Properties, body: bytes = b"\x00\xff", **more: Any) -> bytes:
    payload = b64encode(body).decode()
    return line(payload=payload, payload_encoding="base64", logged=logged(properties), **more)


async def sent_of(client: httpx.AsyncClient, upstream: FakeUpstream, content: bytes) -> Properties:
    [result] = await post(client, content)
    assert result["status"] == 200, result
    return upstream.published[-1][2].properties


@pytest.mark.parametrize("keyed", [{}, {"key": "k"}])
async def test_a_message_of_the_log_is_what_it_was(
    client: httpx.AsyncClient, upstream: FakeUpstream, keyed: dict[str, str]
) -> None:
    """``delivery_mode`` was not set, and is not set; it came from a broker, so what another must not see is carried."""
    found = await sent_of(client, upstream, of_log(EVERYTHING, **keyed))
    headers = dict(found.headers or {})
    assert headers.pop("x-gateway")
    assert {**EVERYTHING.headers} == headers  # type: ignore[dict-item]
    found.headers = EVERYTHING.headers
    assert found == EVERYTHING
    assert upstream.published[-1][2].body == b"\x00\xff"
    assert upstream.published[-1][2].relayed


async def test_no_headers_are_not_empty_ones(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    upstream.settings = msgspec.structs.replace(upstream.settings, annotate=False)
    assert (await sent_of(client, upstream, of_log(Properties(headers={})))).headers == {}
    assert (await sent_of(client, upstream, of_log(Properties()))) == Properties()


@pytest.mark.parametrize("mark", [{"resent": "1"}, {}])
async def test_what_may_be_there_twice_still_says_so(
    client: httpx.AsyncClient, upstream: FakeUpstream, mark: dict[str, str]
) -> None:
    before = Properties(headers={"x-gateway": {"id": "old", **mark}})
    found = await sent_of(client, upstream, of_log(before))
    assert annotation(found, "resent") == mark.get("resent")
    assert annotation(found, "id") not in (None, "old")
    upstream.settings = msgspec.structs.replace(upstream.settings, annotate=False)
    assert (await sent_of(client, upstream, of_log(before))).headers is None


async def test_earlier_ways_are_not_its(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    before = {"x-death": [{"queue": "q"}], "CC": ["c"], "x-gateway": {"id": "old", "origin": "o", "hops": "3"}, "k": 1}
    found = await sent_of(client, upstream, of_log(Properties(headers=before)))
    assert annotation(found, "id") != "old"
    assert annotation(found, "origin") is None
    headers = found.headers or {}
    assert set(headers) == {"k", "x-gateway"}
    assert headers["x-gateway"]["held"] == {"CC": ["c"]}  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"logged": {}, "headers": {"a": 1}}, "/logged"),
        ({"logged": {}, "properties": {}}, "/logged"),
        ({"logged": {"properties": {"colour": "red"}}}, "/logged/properties/colour"),
        ({"logged": {"undecodable_properties": "AAAA", "dialect": "rabbitmq"}}, "/logged/undecodable_properties"),
    ],
)
async def test_what_is_wrong_with_it_is_pointed_at(client: httpx.AsyncClient, more: Any, pointer: str) -> None:
    [result] = await post(client, line(**more))
    assert (result["problem"]["code"], result["problem"]["errors"][0]["pointer"]) == ("invalid_value", pointer)
