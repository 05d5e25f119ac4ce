"""Planted secrets: in keys, logins and endpoints, and looked for in everything that the gateway says.

:func:`tests.attack.client.read_answer` looks at each answer of every row, and the judges look at the log. This row asks
for what is most likely to show one. In the full form the command line shows hostile texts of messages, too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

from tests import canary
from tests.attack.client import Client
from tests.attack.judge import Record
from tests.attack.lab import BROKER, OTHER, RECEIVERS, Target, key_of
from tests.servers.process import ROOT

ESCAPES: Final = "\x1b]0;PWNED\x07\x1b[2J\x1b[31m\x9b31m\u202egnp.exe\x08\x00\x7f\r\n"
"""What a terminal acts upon, and what turns a line around."""
CONTROLS: Final = frozenset({0x1B, 0x07, 0x08, 0x00, 0x7F, 0x0D})
COMMANDS: Final = (
    ("messages", "list"),
    ("messages", "list", "--json"),
    ("pull", "escapes", "--max", "1"),
    ("pull", "escapes", "--max", "1", "--json"),
    ("subscriptions", "get", "n\u009b\x1b[31m"),
    ("exchanges", "get", BROKER, "nope\x1b]0;PWNED\x07"),
)
PAGES: Final = ("/metrics", "/readyz", "/livez", "/startupz")
ASKED: Final = (
    *("/v1/brokers", f"/v1/brokers/{BROKER}", "/v1/endpoints", "/v1/keys", "/v1/subscriptions", "/v1/messages"),
    *("/v1/events", "/v1/statistics", "/v1/scheduled", "/v1/bridges", "/openapi.json"),
)


async def leaks(target: Target, record: Record) -> None:
    """Ask for everything that may show a secret: lists, problems, metrics, endpoints with secrets that fail."""
    root = target.client("root")
    auth = {"kind": "bearer", "secret": canary.CANARY}
    body = {"url": f"http://{RECEIVERS}:1/x", "auth": auth, "headers": {"X-Secret": canary.CANARY}}
    await root.ask("PUT", "/v1/endpoints/planted", body)
    canary.taken()
    for verb in ("", ":test", ":rotate", ":pause", ":verify"):
        await root.ask("POST" if verb else "GET", f"/v1/endpoints/planted{verb}", {} if verb else None)
        record.check(not (seen := canary.taken()), f"endpoint{verb}: {seen}")
    oauth = {"kind": "oauth2", "user": "u", "secret": canary.CANARY, "token_url": f"http://{RECEIVERS}:1/t"}
    await root.ask("PUT", "/v1/endpoints/planted", {**body, "auth": oauth}, {"If-Match": "*"})
    await root.ask("POST", "/v1/endpoints/planted:test", {})
    record.check(not (seen := canary.taken()), f"oauth2: {seen}")
    for path in ASKED:
        await root.ask("GET", path)
        record.check(not (seen := canary.taken()), f"{path}: {seen}")
    for name in ("other-history", "hooks", "publisher"):
        caller = target.client(name)
        for path in (*ASKED, f"/v1/brokers/{OTHER}/queues/x", "/v1/nothing"):
            await caller.ask("GET", path)
            record.check(not (seen := canary.taken()), f"{path} for {name}: {seen}")
        caller.close()
    for headers in ({"X-Api-Key": key_of("root")[:-1]}, {"Authorization": f"Basic {key_of('root')}"}):
        await Client(target.port).ask("GET", "/v1/keys", headers=headers)
        record.check(not (seen := canary.taken()), f"a wrong key: {seen}")
    ops = Client(target.ops_port)
    for path in PAGES:
        await ops.ask("GET", path)
        record.check(not (seen := canary.taken()), f"{path}: {seen}")
    ops.close()
    await root.ask("DELETE", "/v1/endpoints/planted")
    canary.look(target.log(), "the log")
    record.check(not (seen := canary.taken()), f"the log: {seen}")
    root.close()


async def terminals(target: Target, record: Record) -> None:
    """Show hostile texts of messages and problems with the command line, as tables, lines and JSON."""
    root = target.client("root")
    await root.ask("PUT", f"/v1/brokers/{BROKER}/queues/escapes", {"durable": True})
    await root.ask("PUT", "/v1/subscriptions/escapes", {"broker": BROKER, "queue": "escapes"})
    body = {"routing_key": "escapes", "payload": ESCAPES, "headers": {"h": ESCAPES}, "correlation_id": ESCAPES}
    for _ in range(4):
        answer = await root.ask("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish", body)
        record.check(answer.status in (200, 422), f"the message: {answer.status}")
    environ = {**os.environ, "GATEWAY_URL": f"http://127.0.0.1:{target.port}", "GATEWAY_API_KEY": key_of("root")}
    for command in COMMANDS:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *command, cwd=ROOT, env=environ,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await process.communicate()
        found = sorted(set(said) & CONTROLS)
        text = said.decode(errors="replace")
        odd = [mark for mark in ("\x9b", "\u202e") if mark in text]
        record.check(not found and not odd, f"gateway {command[0]}: bytes {found} {odd} in {said[:80]!r}")
        record.check(said and b"Traceback" not in said, f"gateway {command[0]}: {said[:100]!r}")
    log = target.log()
    record.check(not set(log.encode()) & (CONTROLS - {0x0D}), "the log has control characters")
    await root.ask("DELETE", "/v1/subscriptions/escapes")
    root.close()
