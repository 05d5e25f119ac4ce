"""What becomes of one message: rules without I/O."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.bridges.bridge import check
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.routes import KEY_MAX, VIA_MAX, BridgeRoute, RouteOutcome
from gateway.core.leasing.consuming import own_id
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.ledger import MessageIds, id_text
from tests.bridges.conftest import bridge_settings
from tests.translation.ends import ENDS

TOKEN = "b@12345678"
ID = MessageIds()()


def route(**settings: Any) -> BridgeRoute:
    return BridgeRoute("b", bridge_settings(**settings), TOKEN, own_id)


def item(message: Message | None = None, **properties: Any) -> BridgeDelivery:
    if message is None:
        message = Message(b"body", Properties(**properties))
    delivery: Any = SimpleNamespace(message=message, exchange="ex", routing_key="a.b", queue="in")
    return BridgeDelivery(delivery, 1)


def test_a_bridge_is_checked_before_it_is_kept() -> None:
    """Its settings, as its route would refuse them, and the brokers that it names."""
    asked: list[str] = []
    check("b", bridge_settings(), asked.append)
    assert asked == ["old", "new"]
    with pytest.raises(EncodeError, match="selector: '\\('"):
        check("b", bridge_settings(selector="("), asked.append)


def broken() -> Message:
    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("no properties")

    return Message(b"body", None, RawProperties(b"\xff", "x", decode))


def reserved(**entries: Any) -> dict[str, Any]:
    return {"headers": {"x-gateway": entries}}


# ---------------------------------------------------------------------------------------------- origin ids


@pytest.mark.parametrize(
    ("properties", "key", "new"),
    [
        ({}, "", False),
        ({"message_id": ""}, "", False),
        ({"message_id": "m"}, "old/m", True),
        ({"message_id": "m", **reserved(id=id_text(ID))}, id_text(ID), False),
        ({"message_id": "m", **reserved(id=id_text(ID), origin="o")}, "o", False),
        ({"message_id": "m", **reserved(id="forged")}, "old/m", True),
        ({"message_id": "m", **reserved(origin="x" * KEY_MAX)}, "x" * KEY_MAX, False),
        ({"message_id": "m", **reserved(origin="x" * (KEY_MAX + 1))}, "old/m", True),
        ({"message_id": "m", **reserved(origin=b"octets")}, "old/m", True),
        ({"message_id": "m\udcff\0"}, "old/m\\udcff\\x00", True),
        ({"message_id": "m\0"}, "old/m\\x00", True),
        ({"message_id": "mé"}, "old/mé", True),
    ],
)
def test_origin_id(properties: dict[str, Any], key: str, new: bool) -> None:
    found = item(**properties)
    assert route().look(found) is RouteOutcome.FORWARD
    assert (found.key, found.new) == (key, new)


def test_an_id_is_kept_and_the_entries_say_where_it_has_been() -> None:
    found = item(**reserved(id=id_text(ID), hops="2", via="x@1,y@2", resent="1"))
    way = route()
    assert way.look(found) is RouteOutcome.FORWARD
    assert found.id == ID
    assert way.entries(found) == {"id": id_text(ID), "hops": "3", "via": f"x@1,y@2,{TOKEN}", "resent": "1"}


@pytest.mark.parametrize(("more", "kept"), [(0, True), (1, False)])
def test_where_it_has_been_is_as_long_as_a_gateway_can_have_written_it(more: int, kept: bool) -> None:
    via = "x" * (VIA_MAX + more)
    found = item(**reserved(id=id_text(ID), via=via))
    route().look(found)
    assert found.via == (via if kept else "")


def test_entries_of_one_that_comes_first() -> None:
    found = item(message_id="m")
    way = route()
    way.look(found)
    found.text = "its-id"
    assert way.entries(found) == {"id": "its-id", "hops": "1", "via": TOKEN, "origin": "old/m"}


# --------------------------------------------------------------------------------------------------- loops


@pytest.mark.parametrize(
    ("entries", "outcome"),
    [
        ({"via": TOKEN}, RouteOutcome.LOOPED),
        ({"via": f"x@1,{TOKEN},y@2"}, RouteOutcome.LOOPED),
        ({"via": f"x{TOKEN}"}, RouteOutcome.FORWARD),
        ({"via": "b@87654321"}, RouteOutcome.FORWARD),
        ({"hops": "8"}, RouteOutcome.LOOPED),
        ({"hops": "7"}, RouteOutcome.FORWARD),
        ({"hops": "-8"}, RouteOutcome.FORWARD),
        ({"hops": "9999"}, RouteOutcome.LOOPED),
        ({"hops": "99999"}, RouteOutcome.FORWARD),
        ({"hops": "\u0668"}, RouteOutcome.FORWARD),
    ],
)
def test_loops(entries: dict[str, str], outcome: RouteOutcome) -> None:
    found = item(**reserved(**entries))
    assert route().look(found) is outcome
    assert bool(found.reason) is (outcome is RouteOutcome.LOOPED)
    assert found.code == ("looped" if outcome is RouteOutcome.LOOPED else "not_forwarded")


# ------------------------------------------------------------------------------------- selector, routing key


def test_a_selector() -> None:
    way = route(selector="JMSPriority > 4")
    assert way.look(item(priority=5)) is RouteOutcome.FORWARD
    found = item(priority=3)
    assert way.look(found) is RouteOutcome.FILTERED
    assert (found.reason, found.code) == ("the selector does not match", "filtered")


@pytest.mark.parametrize(
    ("key", "becomes"), [(None, "a.b"), ("", ""), ("fixed", "fixed"), ("{exchange}.{routing_key}.{queue}", "ex.a.b.in")]
)
def test_routing_keys(key: str | None, becomes: str) -> None:
    found = item()
    assert route(target={"broker": "new", "routing_key": key}).look(found) is RouteOutcome.FORWARD
    assert found.routing_key == becomes


def test_a_template_without_its_header() -> None:
    found = item()
    assert route(target={"broker": "new", "routing_key": "{header:x}"}).look(found) is RouteOutcome.POISON
    assert "no header 'x'" in found.reason


def test_properties_that_cannot_be_read_pass_unless_they_are_asked_for() -> None:
    assert route().look(item(broken())) is RouteOutcome.FORWARD
    found = item(broken())
    assert route(selector="a = 1").look(found) is RouteOutcome.POISON
    assert "cannot be read" in found.reason


# ----------------------------------------------------------------------------------------------- whose queue


@pytest.mark.parametrize(
    ("source", "queue", "own", "discards"),
    [
        ({"broker": "old", "queue": "in"}, "in", False, False),
        ({"broker": "old", "exchange": "ex"}, "gateway.bridge.b", True, True),
        ({"broker": "old", "exchange": "ex", "queue": "mine"}, "mine", True, True),
    ],
)
def test_whose_queue_it_is(source: dict[str, str], queue: str, own: bool, discards: bool) -> None:
    way = route(source=source)
    assert (way.queue, way.own_queue, way.discards_unmatched) == (queue, own, discards)
    assert route(source=source, unmatched="discard").discards_unmatched
    assert not route(source=source, unmatched="dead-letter").discards_unmatched


def test_a_dead_letter_place_that_is_the_source_is_refused() -> None:
    """What is dead-lettered there would come again, for ever."""
    for place in ({"routing_key": "in"}, {"broker": "old", "routing_key": "in"}):
        with pytest.raises(EncodeError, match="dead_letter: 'in' is the source's own queue"):
            BridgeRoute("b", bridge_settings(dead_letter=place), "", lambda text: None)
    BridgeRoute("b", bridge_settings(dead_letter={"broker": "new", "routing_key": "in"}), "", lambda text: None)


@pytest.mark.parametrize(("settings", "annotated"), [({"strip": True}, True), ({}, False)])
def test_on_the_last_hop_the_usual_message_is_not_even_decoded(settings: dict[str, Any], annotated: bool) -> None:
    message = ENDS["0-9-1 rabbitmq"].there_and_back(Message(b"body", Properties(headers={"a": 1})))
    sent = route(**settings).message(item(message), annotated)
    assert sent.raw is message.raw
    assert sent.left_out == ()
    assert message._properties is None
    changed = route(set_headers={"b": 2}, remove_headers=("a",), **settings).message(item(message), annotated)
    assert changed.properties.headers == {"b": 2}
    assert changed.left_out == ()


@pytest.mark.parametrize(
    ("settings", "headers"), [({"set_headers": {"b": 2}}, {"a": 1, "b": 2}), ({"remove_headers": ["a"]}, {})]
)
def test_headers_are_changed_on_the_last_hop_too(settings: dict[str, Any], headers: dict[str, Any]) -> None:
    message = ENDS["0-9-1 rabbitmq"].there_and_back(Message(b"body", Properties(headers={"a": 1})))
    sent = route(strip=True, **settings).message(item(message), True)
    assert (sent.properties.headers or {}) == headers


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"set_headers": {"x-gateway": 1}}, "set_headers: x-gateway belongs to the gateway"),
        ({"remove_headers": ["x-gateway"]}, "remove_headers: x-gateway belongs to the gateway"),
        ({"set_headers": {"": 1}}, "set_headers: '' is no header's name"),
        ({"set_headers": {"x" * 256: 1}}, "set_headers: 'x"),
        ({"set_headers": {"x" * 255: 1, "é" * 127: 2, "y": 3}}, ""),
        ({"set_headers": {"é" * 128: 1}}, "set_headers: 'é"),
        ({"release_headers": ["mine"]}, "release_headers: 'mine' is passed on in any case"),
        ({"release_headers": ["CC", "x-delay"]}, ""),
    ],
)
def test_which_headers_may_be_changed(settings: dict[str, Any], wrong: str) -> None:
    if not wrong:
        route(**settings)
        return
    with pytest.raises(EncodeError) as caught:
        route(**settings)
    assert str(caught.value).startswith(wrong)


@pytest.mark.parametrize(
    ("settings", "discards"),
    [
        ({}, False),
        ({"mode": "mirror"}, True),
        ({"unmatched": "discard"}, True),
        ({"unmatched": "dead-letter"}, False),
        ({"mode": "mirror", "unmatched": "dead-letter"}, False),
        ({"mode": "mirror", "unmatched": "discard"}, True),
    ],
)
def test_what_becomes_of_what_it_does_not_want(settings: dict[str, Any], discards: bool) -> None:
    assert route(**settings).discards_unmatched is discards
