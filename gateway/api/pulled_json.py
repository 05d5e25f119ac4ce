"""A pulled message as JSON."""

from __future__ import annotations

from gateway.api.schemas import PulledMessage
from gateway.core.pulled import Pulled
from gateway.ledger import id_text
from gateway.message import delivery_count
from gateway.notation.messages import received


def pulled_message(item: Pulled) -> PulledMessage:
    """What the API says of a message and its lease."""
    delivery = item.delivery
    return PulledMessage(
        ack_id=item.lease.ack_id,
        delivery_attempt=item.attempt,
        broker_delivery_count=delivery_count(delivery.message),
        redelivered=item.redelivered,
        resent=item.resent,
        message=received(id_text(item.id), delivery.exchange, delivery.routing_key, delivery.message),
    )
