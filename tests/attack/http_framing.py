"""Heads and bodies that HTTP forbids, or that a proxy may read in another way than the gateway does.

Each try is a request of this kind with a second one behind it, for ``/v1/keys``, as smuggling has it. Only a refusal,
or one answer and the end of the connection, is right: the second request must never be answered.
"""

from __future__ import annotations

from typing import Final

from tests.attack.client import Client, at_once, talk
from tests.attack.judge import Record
from tests.attack.lab import Target, key_of

SMUGGLED: Final = b"GET /v1/keys HTTP/1.1\r\nHost: localhost\r\nX-Smuggled: 1\r\n\r\n"
PUBLISH: Final = b"/v1/brokers/local-0-9-1/exchanges/amq.default:publish"
BODY: Final = b'{"routing_key": "victim", "payload": "x"}'
CHUNKED: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH: Final = b"Content-Length: %d\r\n" % len(BODY)
CODED: Final = b"Transfer-Encoding: chunked\r\n"
JSON: Final = b"Content-Type: application/json\r\n"

AMBIGUOUS: Final[dict[str, tuple[bytes, bytes]]] = {
    "length and coding": (LENGTH + CODED, CHUNKED),
    "coding and length": (CODED + LENGTH, CHUNKED),
    "length 0 and coding": (b"Content-Length: 0\r\n" + CODED, CHUNKED),
    "two lengths": (LENGTH + b"Content-Length: 3\r\n", BODY),
    "two equal lengths in one": (b"Content-Length: 41, 41\r\n", BODY),
    "a negative length": (b"Content-Length: -1\r\n", BODY),
    "a signed length": (b"Content-Length: +41\r\n", BODY),
    "a hexadecimal length": (b"Content-Length: 0x29\r\n", BODY),
    "a length with an underscore": (b"Content-Length: 4_1\r\n", BODY),
    "a length with a blank": (b"Content-Length: 4 1\r\n", BODY),
    "a length that overflows": (b"Content-Length: 18446744073709551657\r\n", BODY),
    "an empty length": (b"Content-Length:\r\n", BODY),
    "a length of full-width digits": ("Content-Length: ４１\r\n".encode(), BODY),
    "gzip, chunked": (b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED),
    "chunked, gzip": (b"Transfer-Encoding: chunked, gzip\r\n", CHUNKED),
    "identity": (b"Transfer-Encoding: identity\r\n", BODY),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked\r\n", CHUNKED),
    "two codings": (CODED + b"Transfer-Encoding: identity\r\n", CHUNKED),
    "xchunked": (b"Transfer-Encoding: xchunked\r\n", CHUNKED),
    "chunked in quotes": (b'Transfer-Encoding: "chunked"\r\n', CHUNKED),
    "chunked behind a vertical tab": (b"Transfer-Encoding: \x0bchunked\r\n", CHUNKED),
    "an empty coding": (b"Transfer-Encoding:\r\n" + LENGTH, BODY),
    "a blank before the colon": (b"Transfer-Encoding : chunked\r\n", CHUNKED),
    "a length with a blank before the colon": (b"Content-Length : 41\r\n", BODY),
    "a folded coding": (b"Transfer-Encoding:\r\n chunked\r\n", CHUNKED),
    "a folded header": (b"X-A: b\r\n c\r\n" + LENGTH, BODY),
    "a header without a colon": (b"Transfer-Encoding chunked\r\n", CHUNKED),
    "an empty name": (b": chunked\r\n" + LENGTH, BODY),
    "NUL in a name": (b"X-\x00A: b\r\n" + LENGTH, BODY),
    "NUL in a value": (b"X-A: b\x00\r\n" + LENGTH, BODY),
    "CR in a value": (b"X-A: b\rContent-Length: 3\r\n" + LENGTH, BODY),
    "a chunk size that is signed": (CODED, b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size with a prefix": (CODED, b"0x29\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size that overflows": (CODED, b"10000000000000029\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk that is longer": (CODED, b"5\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk without an end": (CODED, b"29\r\n" + BODY + b"0\r\n\r\n"),
    "no chunk size": (CODED, b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size with a blank before it": (CODED, b" 29\r\n" + BODY + b"\r\n0\r\n\r\n"),
}
"""Name -> headers and body that a server must not take, with another request behind them."""

LINES: Final[dict[str, bytes]] = {
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two equal hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a host with a blank": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2 in words": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": b"GET / HTTP/3.0\r\nHost: a\r\n\r\n",
    "HTTP/1.10": b"GET / HTTP/1.10\r\nHost: a\r\n\r\n",
    "http/1.1": b"GET / http/1.1\r\nHost: a\r\n\r\n",
    "no version": b"GET / \r\nHost: a\r\n\r\n",
    "two blanks": b"GET / x HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method with a blank": b"GE T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method with NUL": b"GET\x00 / HTTP/1.1\r\nHost: a\r\n\r\n",
    "no method": b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target of 120,000 bytes": b"GET /" + b"a" * 120_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target of 9,000 bytes": b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a header of 70,000 bytes": b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n",
    "two credentials": b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "1,000 headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-A: b\r\n" * 1_000 + b"\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "AMQP": b"AMQP\x00\x00\x09\x01",
    "SSH": b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    "an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
}
"""Name -> octets that get no 2xx."""

UPGRADES: Final = ("websocket", "h2c", "TLS/1.0", "HTTP/2.0", "amqp")


async def framing(target: Target, record: Record) -> None:
    """Send every ambiguous framing to the API and the operations port, each with a request smuggled behind it."""
    key = b"Authorization: Bearer " + key_of("publisher").encode() + b"\r\n" if target.keyed else b""

    async def one(port: int, name: str, headers: bytes, body: bytes) -> None:
        head = b"POST " + PUBLISH + b" HTTP/1.1\r\nHost: localhost\r\n" + key + JSON + headers + b"\r\n"
        said = await talk(port, head + body + SMUGGLED, within=1.5)
        answers = said.count(b"HTTP/1.1 ")
        record.check(answers <= 1 and b" 200 " not in said[:20], f"{name}: {answers} answers, {said[:60]!r}")

    ports = (target.port, target.ops_port)
    await at_once(8, [one(port, name, *octets) for port in ports for name, octets in AMBIGUOUS.items()])


async def heads(target: Target, record: Record) -> None:
    """Send every malformed head to the API and the operations port."""

    async def one(port: int, name: str, octets: bytes) -> None:
        said = await talk(port, octets, within=1.5)
        right = not said or (said[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 5") and said[9:12] != b"500")
        record.check(right, f"{name}: {said[:60]!r}")

    ports = (target.port, target.ops_port)
    await at_once(8, [one(port, name, octets) for port in ports for name, octets in LINES.items()])


async def upgrades(target: Target, record: Record) -> None:
    """Ask for other protocols and ways: nothing is upgraded, no proxy is opened, nothing is echoed."""
    client = Client(target.port)
    for upgrade in UPGRADES:
        headers = {
            "Connection": "Upgrade, HTTP2-Settings",
            "Upgrade": upgrade,
            "HTTP2-Settings": "AAMAAABkAARAAAAAAAIA",
        }
        answer = await client.ask("GET", "/v1/brokers", headers=headers)
        record.check(answer.status in (400, 401), f"upgrade to {upgrade}: {answer.status}")
        client.close()
    for method in ("CONNECT", "TRACE", "TRACK", "DEBUG", "PROPFIND", "MKCOL", "get", "G\u00c9T", "X" * 300):
        answer = await client.ask(method, "127.0.0.1:22" if method == "CONNECT" else "/v1/keys")
        record.check(400 <= answer.status < 600 and answer.status != 500, f"{method[:10]}: {answer.status}")
        record.check(b"Host:" not in answer.body, f"{method[:10]} echoes the request")
        client.close()


async def attack(target: Target, record: Record) -> None:
    """Run all of them."""
    await framing(target, record)
    await heads(target, record)
    await upgrades(target, record)
