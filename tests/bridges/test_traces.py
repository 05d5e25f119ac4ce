"""The spans of a bridge's messages."""

from __future__ import annotations

from typing import Any

from gateway.amqp.operations import Settlement
from gateway.bridges.flow import BridgeFlow
from gateway.bridges.items import BridgeDelivery
from gateway.tracing import Tracer, names
from tests.bridges.conftest import until
from tests.bridges.hands import Hand, arrive, given

TRACE = "0af7651916cd43dd8448eb211c80319c"


def traced(flags: str = "01", **options: Any) -> Any:
    """A delivery that brings a context along."""
    return given(headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-{flags}"}, **options)


def seen(flow: BridgeFlow, *deliveries: Any) -> list[BridgeDelivery]:
    """These, as they are when they have been looked at."""
    arrive(flow, *deliveries)
    return flow._look(flow._take(0.0))


def tracer_of(flow: BridgeFlow, *, exports: bool = True) -> Tracer:
    """Give it one of its own."""
    assert flow.traces is not None
    tracer = flow.traces._tracer = Tracer(exports=exports)
    return tracer


async def test_what_is_forwarded_has_a_span_and_one_for_its_publish(hand: Hand) -> None:
    flow = await hand.flow()
    tracer = tracer_of(flow)
    delivery = traced(size=7)
    delivery.at -= 30.0
    items = seen(flow, delivery)
    items[0].published = delivery.at + 10.0
    items[0].routing_key = "out"
    assert flow.traces is not None
    flow.traces.ended(items)
    child, span = tracer.fetch(10)
    assert (span.name, span.context.trace_id, span.error) == ("forward in", TRACE, "")
    assert span.attributes[names.BRIDGE] == "b"
    assert (span.attributes[names.TARGET], span.attributes[names.TARGET_DESTINATION]) == ("new", "out")
    assert names.REDELIVERED not in span.attributes
    assert (child.name, child.parent_id, child.error) == ("publish out", span.context.span_id, "")
    assert (child.attributes[names.OPERATION], child.attributes[names.DESTINATION]) == ("publish", "out")
    assert (child.attributes[names.BRIDGE], child.attributes[names.BODY_SIZE]) == ("b", 7)
    assert child.attributes[names.MESSAGE_ID] == items[0].text
    assert 30.0 <= (span.ended - span.started) / 1e9 < 60.0
    assert 9.0 < (child.started - span.started) / 1e9 < 11.0
    assert child.ended == span.ended


async def test_what_is_dead_has_an_error_and_no_publish(hand: Hand) -> None:
    flow = await hand.flow()
    tracer = tracer_of(flow)
    items = seen(flow, traced(redelivered=True))
    flow.dead_lettered(items)
    (span,) = tracer.fetch(10)
    assert (span.error, span.attributes[names.REDELIVERED]) == ("dead_lettered", True)
    assert items[0].delivery.settled


async def test_what_nobody_watches_has_none_and_does_not_hide_others(hand: Hand) -> None:
    flow = await hand.flow()
    tracer = tracer_of(flow)
    assert flow.traces is not None
    flow.traces.ended(seen(flow, given(), traced("00"), traced()))
    assert [span.context.trace_id for span in tracer.fetch(10)] == [TRACE] * 2
    flow.traces._tracer = Tracer(exports=False)
    flow.traces.ended(seen(flow, traced()))
    assert len(flow.traces._tracer) == 0


async def test_a_message_on_its_way_is_traced(hand: Hand) -> None:
    flow = await hand.flow()
    tracer = tracer_of(flow)
    delivery = traced()
    arrive(flow, delivery)
    flow.start()
    await until(lambda: not flow.held)
    child, span = tracer.fetch(10)
    assert span.started <= child.started <= child.ended == span.ended
    assert delivery.told is Settlement.ACCEPT
