"""The messages of a bridge's load: properties and headers of every plain kind.

Half of their ids are UUIDs, the others are plain text, which 0-10 cannot carry as they are.
"""

from __future__ import annotations

import random
from dataclasses import replace
from hashlib import sha256
from typing import Final
from uuid import UUID, uuid5

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Timestamp, Typed
from gateway.fidelity import RESERVED
from tests.faults.source import Kind, Shape

_NAMESPACE: Final = UUID("4be1ab2e-60a8-4c3c-9d7c-1a5a1fb6f3f4")


def make_message(seed: int, number: int, rng: random.Random, shape: Shape) -> Message:
    """One message of the load: properties and headers of every plain kind."""
    name = f"{seed}-{number}"
    size = shape.large if rng.random() < shape.large_share else int(rng.expovariate(0.7 / shape.body))
    properties = Properties(
        content_type="text/plain",
        content_encoding="identity" if number % 3 else None,
        delivery_mode=2,
        priority=number % 5,
        correlation_id=f"c-{number % 7}",
        reply_to=f"answers-{number % 3}",
        message_id=str(uuid5(_NAMESPACE, name)) if number % 2 else name,
        timestamp=1_700_000_000 + number,
        type="test" if number % 4 else None,
        app_id="tests",
        headers={
            "number": number,
            "text": "ä✓",
            "flag": number % 2 == 0,
            "large": (1 << 40) + number,
            "small": Typed("int8", number % 100),
            "when": Timestamp(1_700_000_000 + number),
            "octets": bytes([number % 256, 255]),
            "nested": {"a": [1, "b", 2.5], "c": None},
        },
    )
    return Message(rng.randbytes(min(size, 256)) * (size // 256 + 1), properties)


def digest(message: Message) -> str:
    """SHA-256 over body, properties and headers with their types, without the reserved header. The order of the headers
    does not count: RabbitMQ 4 sorts them."""
    properties = message.properties
    headers = {name: value for name, value in sorted((properties.headers or {}).items()) if name != RESERVED}
    return sha256(sha256(message.body).digest() + repr(replace(properties, headers=headers)).encode()).hexdigest()


MESSAGES: Final = Kind(make_message, digest)
"""Those of a bridge."""
