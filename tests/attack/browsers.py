"""Requests that a web page has a browser send, to a gateway that asks for no credential, and to the operations port."""

from __future__ import annotations

from typing import Final

from tests.attack.client import Client
from tests.attack.judge import Record
from tests.attack.lab import BROKER, Target

HOSTS: Final = (
    "evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.nip.io",
    "evil.example#127.0.0.1", "evil.example:80:{port}", "xlocalhost", "localhostx:{port}", "127.0.0.2", "127.1",
    "0.0.0.0", "2130706433", "0x7f000001", "017700000001", "[::ffff:127.0.0.1]", "[::]", "10.0.0.1", "192.168.0.1",
    "[::1].evil.example", "localhost..", "localhost%00.evil.example", "metadata.google.internal", "",
    ":{port}", "*", "localhost,evil.example", "evil.example, localhost", "LOCALHOST.EVIL.EXAMPLE:{port}",
)  # fmt: skip
"""Of pages that have a name resolve to this machine. The gateway does not know ``127.0.0.2`` as its own."""
ORIGINS: Final = (
    "https://evil.example", "http://evil.example:{port}", "null", "", "file://", "http://localhost.evil.example",
    "http://127.0.0.1.evil.example", "http://evil.example/127.0.0.1", "http://127.0.0.1@evil.example",
    "http://evil.example?http://127.0.0.1", "http://evil.example#127.0.0.1", "chrome-extension://abcdef",
    "http://10.0.0.1", "http://xlocalhost", "ftp://localhost", "data:text/html,x", "javascript:1", "http://[::2]",
    "http://", "localhost", "//localhost", "http://localhost evil.example", "http://127.0.0.1:{port}.evil.example",
    "http://2130706433", "http://127.1", "http:\\\\localhost",
)  # fmt: skip
SITES: Final = (
    "cross-site",
    "same-site",
    "CROSS-SITE",
    "cross-origin",
    "",
    "none, cross-site",
    "same-origin;cross-site",
)
"""Values of ``Sec-Fetch-Site`` that are not the gateway's own pages."""
ASKED: Final = (
    ("GET", "/v1/brokers"),
    ("GET", "/v1/subscriptions/neighbor:stream?max_outstanding=1000"),
    ("POST", "/v1/subscriptions/neighbor:pull"),
    ("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish"),
    ("POST", f"/v1/brokers/{BROKER}/queues/neighbor:purge"),
    ("PUT", f"/v1/brokers/{BROKER}/queues/of-a-page"),
    ("DELETE", f"/v1/brokers/{BROKER}/queues/of-a-page"),
    ("POST", "/v1/keys"),
    ("HEAD", "/v1/brokers"),
)
REFUSED: Final = frozenset({400, 403, 421})
TYPES: Final = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "")
"""Of bodies that a page can send without asking first."""


async def attack(target: Target, record: Record) -> None:
    """Send all of them, to both ports."""
    client = Client(target.port)
    asked = ASKED if target.full else ASKED[:4]
    forged = [{"Host": host.format(port=target.port)} for host in HOSTS]
    forged += [{"Origin": origin.format(port=target.port)} for origin in ORIGINS]
    forged += [{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"} for site in SITES]
    for number, headers in enumerate(forged):
        for method, path in asked if target.full else asked[number % 2 :: 2]:
            body = b"{}" if method == "POST" else None
            kind = {"Content-Type": TYPES[number % len(TYPES)]} if body else {}
            answer = await client.ask(method, path, body, kind | headers)
            record.check(answer.status in REFUSED, f"{method} {path} with {headers}: {answer.status}")
            allowed = answer.headers.get("access-control-allow-origin")
            record.check(allowed is None, f"with {headers}: Access-Control-Allow-Origin: {allowed}")
        if "Origin" in headers:
            wished = {"Access-Control-Request-Method": "DELETE", "Access-Control-Request-Private-Network": "true"}
            answer = await client.ask("OPTIONS", "/v1/keys", headers=headers | wished)
            record.check("access-control-allow-origin" not in answer.headers, f"CORS for {headers}")
    absolute = await client.ask("GET", "http://evil.example/v1/brokers")
    record.check(absolute.status in REFUSED or absolute.status == 200, f"absolute form: {absolute.status}")
    client.close()
    ops = Client(target.ops_port)
    for headers in forged:
        for path in ("/metrics", "/readyz") if target.full else ("/metrics",):
            answer = await ops.ask("GET", path, headers=headers)
            record.check(answer.status in REFUSED, f"operations port, {path} with {headers}: {answer.status}")
    ops.close()
    own = Client(target.port)
    for headers in ({}, {"Origin": f"http://127.0.0.1:{target.port}"}, {"Sec-Fetch-Site": "same-origin"}):
        answer = await own.ask("GET", "/v1/brokers", headers=headers)
        record.check(answer.status == 200, f"the gateway's own page with {headers}: {answer.status}")
    own.close()
