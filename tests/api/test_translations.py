"""``/v1/translations:explain``: what a message becomes, and that nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.core import Gateway
from gateway.translation import TranslationTarget, target_of
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from tests.api.conftest import problem

PATH = "/v1/translations:explain"
ORDER = {
    "payload": "hello",
    "properties": {"message_id": "m-1", "type": "order", "priority": 200, "content_type": "text/plain"},
    "headers": {"n": {"type": "uint16", "value": 7}, "CC": ["other"], "u": {"type": "uuid", "value": "0" * 32}},
}


async def explain(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def results(found: dict[str, Any]) -> dict[str, str]:
    return {item["field"]: item["result"] for item in found["fields"]}


async def test_towards_0_10(client: httpx.AsyncClient) -> None:
    found = await explain(client, message=ORDER, to="0-10")
    assert (found["to"], found["product"], found["losses"]) == ("0-10", "qpid", [])
    assert results(found) == {
        "content_type": "same",
        "delivery_mode": "same",
        "priority": "mapped",
        "message_id": "mapped",
        "type": "mapped",
        "headers/n": "mapped",
        "headers/u": "same",
        "headers/CC": "carried",
    }
    by_field = {item["field"]: item for item in found["fields"]}
    assert by_field["priority"]["becomes"] == 9
    assert by_field["headers/n"]["value"] == {"type": "uint16", "value": 7}
    assert by_field["headers/n"]["becomes"] == 7
    assert by_field["headers/n"]["why"] == "no uint16 there that holds it: it travels as int32"
    assert "why" not in by_field["content_type"]
    message = found["message"]
    assert message["payload"] == "hello"
    assert message["headers"]["x-jms-type"] == "order"
    assert message["headers"]["x-gateway"]["held"] == {"CC": ["other"]}
    assert message["properties"]["message_id"] == by_field["message_id"]["becomes"]


async def test_towards_classic_versions(client: httpx.AsyncClient) -> None:
    found = await explain(client, message=ORDER, to="0-8", product="qpid", release_headers=["CC"])
    assert (found["to"], found["product"]) == ("0-8", "qpid")
    assert results(found)["priority"] == results(found)["headers/CC"] == "same"
    assert results(found)["headers/u"] == "mapped"


async def test_without_the_reserved_header_there_are_losses(client: httpx.AsyncClient) -> None:
    found = await explain(client, message=ORDER, to="0-10", strip=True)
    assert {(loss["name"], loss["field"]) for loss in found["losses"]} == {
        ("property", "priority"),
        ("property", "message_id"),
        ("header_type", "headers/n"),
        ("held_header", "headers/CC"),
    }
    assert "x-gateway" not in found["message"]["headers"]


async def test_what_came_from_there_passes_as_it_is(client: httpx.AsyncClient) -> None:
    found = await explain(client, message={"properties": {"timestamp": 5}}, to="0-9-1", **{"from": "0-9-1"})
    assert set(results(found).values()) == {"same"}


async def test_texts_that_are_no_text_and_addresses(client: httpx.AsyncClient) -> None:
    properties = {
        "correlation_id": {"type": "binary", "value": "/w=="},
        "reply_to": {"type": "address", "exchange": "x", "routing_key": "k"},
    }
    found = await explain(client, message={"properties": properties}, to="0-9-1")
    values = {item["field"]: item["value"] for item in found["fields"]}
    assert values["correlation_id"] == properties["correlation_id"]
    assert values["reply_to"] == properties["reply_to"]
    assert results(found)["reply_to"] == "mapped"


async def test_a_message_that_cannot_be_sent(client: httpx.AsyncClient, gateway: Gateway) -> None:
    upstream: Any = gateway.broker("fake")
    upstream.target = target_of(V0_9_1, "RabbitMQ", frame_max=4_096)
    found = await explain(client, message={"headers": {"big": "x" * 3_000, "more": "x" * 2_000}}, broker="fake")
    assert [loss["name"] for loss in found["losses"]] == ["content_header"]
    assert "message" not in found
    found = await explain(client, message={"properties": {"message_id": "x" * 256}}, to="0-9-1")
    assert [loss["name"] for loss in found["losses"]] == ["untranslatable"]
    assert results(found)["message_id"] == "lost"


async def test_a_broker_s_own_target(client: httpx.AsyncClient, gateway: Gateway) -> None:
    upstream: Any = gateway.broker("fake")
    upstream.target = target_of(V0_9_1, "RabbitMQ", login="ann")
    message = {"properties": {"user_id": "ann"}}
    assert results(await explain(client, message=message, broker="fake"))["user_id"] == "same"
    found = await explain(client, message=message, to="0-9-1", **{"from": "fake"})
    assert results(found)["user_id"] == "carried"
    assert [loss["name"] for loss in found["losses"]] == ["user_id"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"message": {}}, 422, "invalid_request"),
        ({"message": {}, "to": "0-8", "broker": "fake"}, 422, "invalid_request"),
        ({"message": {}, "to": "1-0"}, 422, "invalid_request"),
        ({"message": {}, "to": "0-10", "product": "rabbitmq"}, 422, "invalid_request"),
        ({"message": {}, "broker": "absent"}, 404, "broker_not_found"),
        ({"message": {}, "to": "0-8", "from": "absent"}, 404, "broker_not_found"),
        ({"message": {"headers": {"x-gateway": {}}}, "to": "0-8"}, 422, "invalid_header"),
        ({"message": {"headers": {"n": {"type": "int8", "value": 300}}}, "to": "0-8"}, 422, "invalid_value"),
        ({"message": {"properties": {"message_id": "x" * 256}}, "to": "0-10", "from": "0-8"}, 422, "invalid_value"),
    ],
)
async def test_what_is_wrong(client: httpx.AsyncClient, body: Any, status: int, code: str) -> None:
    found = problem(await client.post(PATH, json=body), status, code)
    if code == "invalid_value" and "from" not in body:
        assert found["errors"][0]["pointer"].startswith("/message/headers/n")


@pytest.mark.parametrize("name", ["fake", "absent"])
@pytest.mark.parametrize("place", ["broker", "from"])
async def test_a_broker_that_no_scope_names(
    client_with_keys: Callable[..., Any], gateway: Gateway, place: str, name: str
) -> None:
    """It is not told whether it is there, let alone where."""
    upstream: Any = gateway.broker("fake")
    upstream.target = target_of(V0_9_1, "RabbitMQ")
    body = {"message": {}, place: name} | ({"to": "0-8"} if place == "from" else {})
    found = problem(await client_with_keys("publish:other/*", "history").post(PATH, json=body), 403, "forbidden")
    assert found["detail"] == f"'caller' lacks the scope any scope of {name}"
    for scope in (f"consume:{name}/*", f"broker:{name}", "publish:*/x", "admin"):
        assert (await client_with_keys(scope).post(PATH, json=body)).status_code == (404 if name == "absent" else 200)


async def test_a_broker_that_was_never_there(client: httpx.AsyncClient, gateway: Gateway) -> None:
    upstream: Any = gateway.broker("fake")
    upstream.target = None
    found = problem(await client.post(PATH, json={"message": {}, "broker": "fake"}), 503, "broker_unavailable")
    assert "broker fake" in found["detail"]


def test_a_target_says_what_it_is() -> None:
    target = target_of(V0_10, "qpid-cpp")
    assert isinstance(target, TranslationTarget)
    assert (target.product, target.frame_max) == ("other", 0)
