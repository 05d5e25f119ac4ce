"""Bodies that are hardly JSON, to every form and route that takes one: each is refused or taken, and none is a 5xx."""

from __future__ import annotations

from typing import Final

from tests.attack.judge import Record
from tests.attack.lab import BROKER, Target

BODIES: Final[tuple[bytes, ...]] = (
    b"", b" ", b"{", b"[", b'"', b"nul", b"tru", b"{]", b"[}", b"{,}", b"[,]", b"[1,]", b'{"a":}', b'{"a"}', b"{1:2}",
    b"{'a': 1}", b'{"a": 01}', b'{"a": +1}', b'{"a": .5}', b'{"a": 1.}', b'{"a": 0x1}', b"NaN", b"Infinity",
    b'{"payload": NaN}', b'{"payload": 1e400}', b'{"payload": -1e400}', b'{"payload": 1' + b"0" * 5_000 + b"}",
    b'{"payload": 1e-' + b"9" * 400 + b"}", b'{"payload": "\\ud800"}', b'{"payload": "\\udc00\\ud800"}',
    b'{"payload": "\\u0000"}', b'{"payload": "\x00"}', b'{"payload": "\xff"}', b'{"payload": "\xed\xa0\x80"}',
    b'{"payload": "\xc0\x80"}', b'{"payload": "\xf4\x90\x80\x80"}', b'{"payload": "\\x41"}', b'{"payload": "\\"}',
    b'{"payload": "\n"}', b"\xef\xbb\xbf{}", '{"payload": "x"}'.encode("utf-16"), '{"payload": "x"}'.encode("utf-32"),
    b"[" * 100_000, b'{"a":' * 50_000, b"[" * 30 + b"]" * 30, b"[" * 1_000 + b"]" * 1_000, b"[]" * 1_000, b"{}{}",
    b'{"payload": "x"} x', b"[" + b"1," * 300_000 + b"1]", b'{"a":1,' * 3, b'{"__proto__": {}}', b'{"constructor": 1}',
    b'{"": ""}', b'{"payload": null}', b'{"payload": []}', b'{"payload": true}', b'{"routing_key": 1}',
    b'{"routing_key": null}', b'{"routing_key": "' + b"a" * 256 + b'"}', b'{"headers": []}', b'{"headers": {"": 1}}',
    b'{"headers": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}", b'{"headers": {"a": {"$int8": 300}}}',
    b'{"headers": {"a": {"$decimal": "x"}}}', b'{"headers": {"a": {"$timestamp": 1e300}}}',
    b'{"payload_base64": "!"}', b'{"payload_base64": "A"}', b'{"payload_base64": 1}', b'{"payload": 1, "payload": 2}',
    b'{"priority": -1}', b'{"priority": 256}', b'{"expiration": "x"}', b'{"expiration": -1}', b'{"ttl": 1e99}',
    b'{"not_before": "0001-01-01T00:00:00Z"}', b'{"not_before": "9999-12-31T23:59:60Z"}', b'{"not_before": -1}',
    b'{"timestamp": 99999999999999999999}', b'{"delivery_mode": 3}', b'{"messages": []}', b'{"messages": {}}',
    b'{"messages": [' + b"{}," * 20_000 + b"{}]}", b'{"messages": [null]}', b'{"messages": [[]]}', b"null", b"true",
    b"0", b'"x"', b"[]", b"[{}]", b"{}", b"a=b&c=d", b"<x/>", b"--x\r\n\r\n--x--", b"\x00" * 100, b"\xff" * 100,
    b"\x80\x02}q\x00.", b"%PDF-1.4", b"PK\x03\x04", b"\x1f\x8b\x08\x00", b'{"max_messages": -1}',
    b'{"max_messages": 1e9}', b'{"wait": 1e9}', b'{"wait": -1}', b'{"ack_ids": "x"}', b'{"ack_ids": [1]}',
)  # fmt: skip
FORMS: Final = (
    ("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish", "application/json"),
    ("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish", "application/x-ndjson"),
    ("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish", "application/cloudevents+json"),
    ("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish", "application/cloudevents-batch+json"),
    ("POST", "/v1/subscriptions/neighbor:pull", "application/json"),
    ("POST", "/v1/subscriptions/neighbor:acknowledge", "application/json"),
    ("PUT", f"/v1/brokers/{BROKER}/queues/bodies", "application/json"),
    ("PUT", "/v1/endpoints/bodies", "application/json"),
    ("PUT", "/v1/bridges/bodies", "application/json"),
    ("POST", "/v1/keys", "application/json"),
    ("PATCH", "/v1/subscriptions/neighbor", "application/merge-patch+json"),
    ("POST", "/v1/translations:explain", "application/json"),
)


async def attack(target: Target, record: Record) -> None:
    """Send all bodies in all forms."""
    client = target.client("root")
    number = 0
    for method, path, kind in FORMS:
        for body in BODIES:
            number += 1
            if not target.full and number % 5:
                continue
            if path.endswith(":pull") and body in (b"{}", b""):
                continue  # a good request: it would take the neighbor's message
            answer = await client.ask(method, path, body, {"Content-Type": kind})
            right = 0 < answer.status < 500 or (answer.status == 503 and answer.code == "overloaded")
            record.check(right, f"{method} {path} as {kind}: {body[:50]!r}: {answer.status} {answer.code}")
    client.close()
