"""Examples of the OpenAPI document. They work, as they stand, on a gateway that was started with ``gateway serve``.

Together they are one story: declare the queue ``orders``, make the subscription ``billing`` of it, publish, pull,
acknowledge. Each body fits its schema. Ids that a gateway gives, such as an ``ack_id``, are those of another gateway: a
reader puts the own one in their place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.notation.cloudevents import BATCH, STRUCTURED
from gateway.versions import VERSION_NAMES

_NEWEST: Final = VERSION_NAMES[-1]
_BROKER: Final = "local-0-9-1"
_LEASED: Final = ["_NF89wr2qxwAAAAAAAAAAQyVx-wxWVqaf_Oei65VkpU="]
_ORDER: Final = {"routing_key": "orders", "payload": {"order": 17, "customer": "Ada"}}
_EVENT: Final = {
    "specversion": "1.0", "id": "order-17", "source": "/shop", "type": "order.created", "data": {"order": 17},
}  # fmt: skip

NAMES: Final[Mapping[str, str]] = {
    "broker": _BROKER,
    "exchange": "events",
    "queue": "orders",
    "subscription": "billing",
    "bridge": "copy",
    "tap": "audit",
    "front": "legacy",
    "client": "1",
    "endpoint": "shop",
    "cursor": "archive",
    "run": "nightly-1",
    "asset": "errors",
    "position": "1",
}
"""Parameter of a path -> a value. Ids that the gateway gives are not here."""
NAMES_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "publish": {"exchange": DEFAULT_EXCHANGE},
    **{f"{verb}_broker": {"broker": "shop"} for verb in ("put", "patch", "delete")},
}
"""Operation -> the same, where it has another value."""

BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "put_queue": {"A durable queue": {"durable": True}},
    "put_exchange": {"A topic exchange": {"type": "topic", "durable": True}},
    "post_binding": {"From `events` to `orders`": {"exchange": "events", "queue": "orders", "binding_key": "order.#"}},
    "take_and_give_back": {"The first two": {"limit": 2}},
    "reschedule": {"In an hour": {"delay_seconds": 3_600}},
    "put_subscription": {"Pull from a queue": {"broker": _BROKER, "queue": "orders"}},
    "patch_subscription": {"Longer leases": {"ack_deadline_seconds": 60}},
    "publish": {
        "One message": {**_ORDER, "properties": {"message_id": "order-17"}, "headers": {"source": "shop"}},
        "A batch": {"messages": [_ORDER, {"routing_key": "orders", "payload": "plain text"}]},
        "Publish in a minute": {**_ORDER, "delay_seconds": 60},
    },
    "pull": {"Wait up to 5 seconds": {"max_messages": 10, "wait_seconds": 5}},
    "acknowledge": {"One message": {"ack_ids": _LEASED}},
    "modify_ack_deadline": {"One minute from now": {"ack_ids": _LEASED, "ack_deadline_seconds": 60}},
    "release": {"One message": {"ack_ids": _LEASED}},
    "reject": {"One message": {"ack_ids": _LEASED, "reason": "the order has no customer"}},
    "retry_deliveries": {"Count first": {"filter": {"subscription": "billing"}, "dry_run": True}},
    "purge_deliveries": {"Count first": {"filter": {"subscription": "billing"}, "dry_run": True}},
    "replay_delivery": {
        "To another queue": {"target": {"broker": _BROKER, "exchange": DEFAULT_EXCHANGE, "routing_key": "orders"}}
    },
    "ask_replay": {"Look first": {"source": {"deliveries": {"subscription": "billing"}}, "dry_run": True}},
    "put_bridge": {
        "Copy a queue, when it is resumed": {
            "source": {"broker": _BROKER, "queue": "orders"},
            "target": {"broker": "local-0-10", "routing_key": "orders-copy"},
            "paused": True,
        }
    },
    "patch_bridge": {"Slower": {"messages_per_second": 100}},
    "compare_bridge": {"The last hour": {"since": "1h"}},
    "put_tap": {"Log a queue, when it is resumed": {"broker": _BROKER, "queue": "orders", "paused": True}},
    "patch_tap": {"A smaller window": {"prefetch": 500}},
    "put_endpoint": {"A receiver on this machine": {"url": "http://127.0.0.1:9000/webhooks"}},
    "patch_endpoint": {"Fewer requests at once": {"concurrency": 5}},
    "put_broker": {"A broker of the shop": {"url": "amqp://shop@rabbit.example:5672/", "password": "secret"}},
    "patch_broker": {"Another password": {"password": "another secret"}},
    "rotate_endpoint": {"Both sign for an hour": {"overlap_seconds": 3600}},
    "create_key": {
        "Publish and consume": {
            "client": "billing-service",
            "scopes": [f"publish:{_BROKER}/{DEFAULT_EXCHANGE}", f"consume:{_BROKER}/orders"],
        }
    },
    "rotate_key": {"Both open for an hour": {"overlap_seconds": 3600}},
    "claim_log_cursor": {"From the beginning": {"log": "events", "owner": "archive-1"}},
    "move_log_cursor": {"Nothing read yet": {"owner": "archive-1", "epoch": 1, "position": {}}},
    "release_log_cursor": {"Done": {"owner": "archive-1", "epoch": 1}},
    "put_pipeline_run": {
        "A run that is done": {
            "job": "archive", "state": "done", "started_at": "2026-01-01T00:00:00Z",
            "ended_at": "2026-01-01T00:05:00Z", "detail": {"rows": 1000},
        }
    },
    "redeem_login": {
        "A code of the issuer": {
            "code": "a-code-of-the-issuer", "code_verifier": "v" * 43, "redirect_uri": "https://gateway.example/console/",
        }
    },
    "explain_translation": {
        f"To {_NEWEST}": {"message": {"payload": "hello", "headers": {"n": 1}}, "to": _NEWEST}
    },
}  # fmt: skip
"""Operation -> title -> JSON body."""
MEDIA: Final[Mapping[str, Any]] = {
    "application/x-ndjson": (
        '{"routing_key": "orders", "payload": "one", "key": "k-1"}\n'
        '{"routing_key": "orders", "payload": "two", "key": "k-2"}\n'
    ),
    STRUCTURED: _EVENT,
    BATCH: [_EVENT],
    "*/*": "hello",
}
"""Media type -> body, of a publish."""
HEADERS_OF: Final[Mapping[str, Mapping[str, str]]] = {
    f"patch_{kind}": {"If-Match": "*"} for kind in ("subscription", "bridge", "tap", "endpoint", "broker")
}
"""Operation -> request header -> a value without which the example does not work."""


def content_of(operation: str, media: str) -> dict[str, Any]:
    """Return what a media type object says of examples (OpenAPI 3.1 section 4.8.14)."""
    if media in MEDIA:
        return {"example": MEDIA[media]}
    bodies = BODIES.get(operation, {})
    return {"examples": {_key(title): {"summary": title, "value": body} for title, body in bodies.items()}}


def _key(title: str) -> str:
    return re.sub(r"\W+", "_", title.lower()).strip("_")
