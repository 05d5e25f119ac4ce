"""One message must not block a queue: consumers of every version get what lies behind it.

Each way publishes one message that some version, frame size or dead-letter table cannot carry, and good ones behind
it. A refusal of the poison is right; a yes means that the good ones come to consumers of all three versions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from gateway.versions import VERSION_NAMES
from tests.attack.client import Client
from tests.attack.judge import Record
from tests.attack.lab import Target

VERSIONS: Final = tuple(f"local-{name}" for name in VERSION_NAMES)
GOOD: Final = 3
WITHIN: Final = 10.0
"""How long the good messages may take, in seconds."""
EXPIRING: Final[Mapping[str, Any]] = {"x-message-ttl": 1}


def _ways() -> dict[str, tuple[dict[str, Any], bool]]:
    """Name -> the message, and whether it reaches the queue as a dead letter."""
    most = 2**63 - 1
    deep: Any = "x"
    for _ in range(29):
        deep = {"a": deep}
    death = [{"queue": "from", "reason": "expired", "count": most, "exchange": "", "routing-keys": ["k"]}]
    return {
        "four headers of 60,000": ({"headers": {f"h{number}": "x" * 60_000 for number in range(4)}}, False),
        "a header of 131,000": ({"headers": {"h": "x" * 131_000}}, False),
        "a header of 130,900": ({"headers": {"h": "x" * 130_900}}, False),
        "x-death at its most": ({"headers": {"x-death": death}}, True),
        "x-death that is a text": ({"headers": {"x-death": "x"}}, True),
        "x-death of numbers": ({"headers": {"x-death": [1, 2, 3]}}, True),
        "x-death of 500 entries": (
            {"headers": {"x-death": [{**death[0], "count": 1, "queue": f"q{number}"} for number in range(500)]}},
            True,
        ),
        "a header of 131,000, dead": ({"headers": {"h": "x" * 131_000}}, True),
        "a header of 130,900, dead": ({"headers": {"h": "x" * 130_900}}, True),
        "4,096 headers": ({"headers": {f"h{number}": 1 for number in range(4_096)}}, False),
        "4,095 headers, dead": ({"headers": {f"h{number}": 1 for number in range(4_095)}}, True),
        "headers 30 deep": ({"headers": {"h": deep}}, False),
        "headers 30 deep, dead": ({"headers": {"h": deep}}, True),
        "names of 255 bytes": ({"headers": {f"{number:0255d}": 1 for number in range(400)}}, False),
        "a uint64": ({"headers": {"h": {"type": "uint64", "value": 2**64 - 1}}}, False),
        "bytes of 100,000": ({"headers": {"h": {"type": "bytes", "value": "A" * 100_000}}}, False),
        "a correlation id of 5,000": ({"correlation_id": "x" * 5_000}, False),
        "a message id of 300": ({"message_id": "x" * 300}, False),
        "a content type of 255": ({"content_type": "x" * 255}, False),
        "a time at its most": ({"timestamp": {"type": "timestamp", "value": most}}, False),
        "reply-to of 255": ({"reply_to": "x" * 255}, False),
    }


async def attack(target: Target, record: Record) -> None:
    """Try every way against consumers of every version."""
    root = target.client("root")
    ways = list(_ways().items())
    published = refused = 0
    for number, (name, (message, dead)) in enumerate(ways):
        for broker in VERSIONS if target.full else VERSIONS[number % 3 :: 3]:
            taken = await _one(root, record, f"{name}, {broker}", broker, message, dead)
            published, refused = published + taken, refused + (not taken)
    record.notes["poison"] = f"{published} taken, {refused} refused"
    record.check(published, "no poison was taken")
    root.close()


async def _one(root: Client, record: Record, name: str, broker: str, message: dict[str, Any], dead: bool) -> bool:
    queue, source = "poisoned", "poisoned-before"
    await root.ask("PUT", f"/v1/brokers/{broker}/queues/{queue}", {"durable": True})
    arguments = {**EXPIRING, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    if dead:
        body = {"durable": True, "arguments": arguments}
        made = await root.ask("PUT", f"/v1/brokers/local-0-9-1/queues/{source}", body)
        record.check(made.status in (200, 201), f"{name}: the queue: {made.status} {made.body[:200]!r}")
    subscription = f"/v1/subscriptions/{queue}"
    made = await root.ask("PUT", subscription, {"broker": broker, "queue": queue})
    record.check(made.status in (200, 201), f"{name}: the subscription: {made.status} {made.body[:200]!r}")
    publish = "/v1/brokers/local-0-10/exchanges/amq.default:publish"
    answer = await root.ask("POST", publish, {"routing_key": source if dead else queue, "payload": "poison", **message})
    record.check(answer.status < 500, f"{name}: the publish: {answer.status} {answer.code}")
    for _ in range(GOOD):
        good = await root.ask("POST", publish, {"routing_key": queue, "payload": "good"})
        record.check(good.status == 200, f"{name}: a good publish: {good.status} {good.code}")
    found, said = 0, ""
    end = time.monotonic() + WITHIN
    while found < GOOD and time.monotonic() < end:
        pulled = await root.ask("POST", f"{subscription}:pull", {"max_messages": 10, "wait": 1})
        if pulled.status != 200:
            said = f"{pulled.status} {pulled.code} {pulled.body[:200]!r}"
            continue
        messages = (pulled.json() or {}).get("messages", [])
        found += sum(each["message"].get("payload") == "good" for each in messages)
        if ids := [each["ack_id"] for each in messages]:
            await root.ask("POST", f"{subscription}:acknowledge", {"ack_ids": ids})
    record.check(found == GOOD, f"{name}: {found} of {GOOD} good messages came in {WITHIN:g} s {said}")
    await root.ask("DELETE", subscription)
    for each in (queue, source) if dead else (queue,):
        await root.ask("DELETE", f"/v1/brokers/local-0-9-1/queues/{each}")
    return answer.status == 200
