"""The messages of a consumer's load, and what they must look like in JSON.

What a header must become is written down here by hand and not computed by the gateway's own code. Half of the ids are
UUIDs, the others plain text, which 0-10 cannot carry as they are. Half of the bodies are no UTF-8. Half of the messages
have passed a gateway before, so that they have an id of a gateway's: the others get one each time they are taken from
the broker.
"""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID, uuid5

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Timestamp, Typed
from gateway.fidelity import annotate
from gateway.ledger.db.ids import MessageIds, id_text
from tests.faults.checker import digest
from tests.faults.source import Kind, Shape

_NAMESPACE: Final = UUID("f6a3b1f2-94d5-4f3c-8f0e-5d2d3b6c1a77")
_ids: Final = MessageIds()


def make_message(seed: int, number: int, rng: random.Random, shape: Shape) -> Message:
    """One message of the load."""
    name = f"{seed}-{number}"
    size = shape.large if rng.random() < shape.large_share else int(rng.expovariate(0.7 / shape.body))
    text = rng.randbytes(min(size, 128)).hex() * (size // 256 + 1)
    properties = Properties(
        content_type="text/plain",
        delivery_mode=2,
        priority=number % 5,
        correlation_id=f"c-{number % 7}",
        message_id=str(uuid5(_NAMESPACE, name)) if number % 2 else name,
        timestamp=1_700_000_000 + number,
        app_id="tests",
        headers={
            "number": number,
            "text": "ä✓",
            "flag": number % 2 == 0,
            "large": (1 << 40) + number,
            "small": Typed("int8", number % 100),
            "when": Timestamp(1_700_000_000 + number),
            "octets": bytes([number % 256, 255]),
        },
    )
    if number % 4 < 2:
        properties = annotate(properties, id=id_text(_ids()))
    body = text[:size].encode()
    return Message(body if number % 4 % 3 else b"\xff" + body, properties)


def digest_sent(message: Message) -> str:
    """Of a message as it was published: what the JSON must be of which the digest is taken."""
    properties = message.properties
    number = (properties.headers or {})["number"]
    assert isinstance(number, int)
    plain = {name: getattr(properties, name) for name in _PROPERTIES}
    headers = {
        "number": number,
        "text": "ä✓",
        "flag": number % 2 == 0,
        "large": (1 << 40) + number,
        "small": {"type": "int8", "value": number % 100},
        "when": {"type": "timestamp", "value": 1_700_000_000 + number},
        "octets": {"type": "bytes", "value": b64encode(bytes([number % 256, 255])).decode()},
    }
    return digest(message.body, plain, headers)


_PROPERTIES: Final = (
    "content_type",
    "delivery_mode",
    "priority",
    "correlation_id",
    "message_id",
    "timestamp",
    "app_id",
)


def digest_received(message: Mapping[str, Any]) -> str:
    """Of a message as the gateway writes it in JSON."""
    payload = message["payload"]
    body = b64decode(payload) if message["payload_encoding"] == "base64" else payload.encode()
    return digest(body, message["properties"], message["headers"])


MESSAGES: Final = Kind(make_message, digest_sent)
"""Those of a lane."""
