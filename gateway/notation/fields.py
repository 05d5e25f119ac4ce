"""The ``Amqp-*`` headers beside a raw body: the same to us (:mod:`gateway.api.http.raw_body`) and from us
(:mod:`gateway.webhooks.attempts.forms`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "Amqp-Correlation-Id": "correlation_id",
    "Amqp-Reply-To": "reply_to",
    "Amqp-Expiration": "expiration",
    "Amqp-Message-Id": "message_id",
    "Amqp-Type": "type",
    "Amqp-User-Id": "user_id",
    "Amqp-App-Id": "app_id",
    "Amqp-Cluster-Id": "cluster_id",
}
"""Header -> property that is a text."""
INTEGERS: Final[Mapping[str, tuple[str, int, int]]] = {
    "Amqp-Delivery-Mode": ("delivery_mode", 1, 2),
    "Amqp-Priority": ("priority", 0, 255),
    "Amqp-Timestamp": ("timestamp", 0, (1 << 64) - 1),
}
"""Header -> property, least and greatest value."""
OF_A_DELIVERY: Final = frozenset({
    "Amqp-Gateway-Id", "Amqp-Subscription", "Amqp-Broker", "Amqp-Queue", "Amqp-Exchange", "Amqp-Delivery-Attempt",
    "Amqp-Broker-Delivery-Count",
    "Amqp-Redelivered", "Amqp-Resent", "Amqp-Test",
})  # fmt: skip
"""Headers from us that are of a delivery and not of the message. A client that sends a delivery on may leave them
in."""
