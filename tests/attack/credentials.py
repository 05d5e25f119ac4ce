"""Callers without the right credential: every operation of the OpenAPI document, and ack ids of others."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any, Final

from tests.attack.client import Answer, Client
from tests.attack.judge import Record
from tests.attack.lab import BROKER, Target, key_of

METHODS: Final = frozenset({"get", "put", "post", "delete", "patch", "head", "options", "trace"})
OPEN: Final = frozenset(
    {
        "root",
        "docs",
        "docs_folder",
        "docs_asset",
        "openapi",
        "webhook_keys",
        "console",
        "console_folder",
        "console_asset",
        "get_login",
        "redeem_login",
    }
)
"""Operations that need no credential, as ``docs/reference/scopes.md`` says."""
NAMES: Final = {"broker": BROKER, "exchange": "mine", "queue": "victim", "endpoint": "mine", "asset": "start.js"}
REFUSALS: Final = frozenset({(401, "unauthorized"), (403, "forbidden"), (400, "")})
"""What a caller without the right credential may get; 400 where the head itself is malformed."""
OTHERS: Final = tuple(
    f"other-{kind}" for kind in ("publish", "route", "consume", "subscribe", "broker", "endpoint", "history")
)
SATISFIES: Final = {
    "any credential": OTHERS,
    "any publish: or route:": ("other-publish", "other-route"),
    "any consume: or subscribe:": ("other-consume", "other-subscribe"),
    "any endpoint:": ("other-endpoint",),
    "history": ("other-history",),
    "any scope of a broker": tuple(name for name in OTHERS if name not in ("other-endpoint", "other-history")),
}
"""A route's scope -> the foreign clients that it admits on purpose."""


def mangled(key: str) -> dict[str, dict[str, str]]:
    """Return name -> headers that are no credential, made from a key that is one."""
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    return {
        "none": {},
        "no key": {"Authorization": "Bearer"},
        "a wrong key": {"Authorization": "Bearer amqpgw_live_00000000000000000000000000000000_000000"},
        "a key in capitals": {"Authorization": f"Bearer {key.upper()}"},
        "a key cut off": {"Authorization": f"Bearer {key[:-1]}"},
        "a key and more": {"Authorization": f"Bearer {key}x"},
        "a key twice": {"Authorization": f"Bearer {key} {key}"},
        "a key in quotes": {"Authorization": f'Bearer "{key}"'},
        "a key in base64": {"Authorization": f"Bearer {base64.b64encode(key.encode()).decode()}"},
        "basic": {"Authorization": f"Basic {basic}"},
        "digest": {"Authorization": f'Digest username="{key}"'},
        "another scheme": {"Authorization": f"Token {key}"},
        "no scheme": {"Authorization": key},
        "for a proxy": {"Proxy-Authorization": f"Bearer {key}"},
        "a cookie": {"Cookie": f"authorization=Bearer {key}; x-api-key={key}"},
        "an empty X-Api-Key": {"X-Api-Key": ""},
        "a wrong X-Api-Key": {"X-Api-Key": key[::-1]},
        "an identity of a proxy": {"X-Forwarded-User": "root", "X-Remote-User": "root", "Forwarded": "for=127.0.0.1"},
        "a certificate of a proxy": {"X-Client-Cert": "CN=root", "X-SSL-Client-Verify": "SUCCESS"},
    }


def filled(path: str) -> str:
    """Return a path of the document with names in it."""
    return re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "x"), path)


async def operations(client: Client) -> list[tuple[str, str, dict[str, Any]]]:
    """Return method, path and operation of everything in the document."""
    paths = (await client.ask("GET", "/openapi.json")).json()["paths"]
    return [
        (method.upper(), path, operation)
        for path, item in paths.items()
        for method, operation in item.items()
        if method in METHODS
    ]


def refused(answer: Answer) -> bool:
    """Whether it is a refusal for want of a credential or scope, and shows nothing else."""
    return answer.status in (400, 401, 403) and (answer.status == 400 or (answer.status, answer.code) in REFUSALS)


async def matrix(target: Target, record: Record) -> None:
    """Every operation without a right credential, and with every foreign scope."""
    client = target.client()
    found = await operations(client)
    record.check(len(found) > 50, f"the document has {len(found)} operations")
    opened = {str(operation["operationId"]) for _, _, operation in found if not operation.get("security")}
    record.check(opened <= OPEN, f"open, and not documented so: {sorted(opened - OPEN)}")
    guarded = [each for each in found if each[2].get("security")]
    credentials = list(mangled(key_of("root")).items())
    for number, (method, path, operation) in enumerate(guarded):
        admitted = SATISFIES.get(operation.get("x-scope", ""), ())
        tries = [(name, headers) for name, headers in credentials]
        tries += [(name, {"Authorization": f"Bearer {key_of(name)}"}) for name in OTHERS if name not in admitted]
        if not target.full:  # each in turn
            tries = [tries[0], *tries[1 + number % 5 :: 5]]
        for name, headers in tries:
            answer = await client.ask(method, filled(path), headers=headers)
            expected = 403 if name in OTHERS else 401
            right = refused(answer) and (answer.status == expected or answer.status == 400)
            record.check(right or (method == "HEAD" and answer.status == expected), f"{method} {path} with {name}: "
                         f"{answer.status} {answer.code}")  # fmt: skip
    client.close()


async def ended_keys(target: Target, record: Record) -> None:
    """A key of the ledger that is revoked counts no more, nor does one that has expired."""
    root = target.client("root")
    for seconds, revoked in ((3_600, True), (1, False)):
        body = {"client": "ended", "scopes": ["admin"], "expires_seconds": seconds}
        made = (await root.ask("POST", "/v1/keys", body)).json() or {}
        caller = Client(target.port, str(made.get("secret") or made.get("key") or made.get("token")))
        before = await caller.ask("GET", "/v1/keys")
        record.check(before.status == 200, f"a new key: {before.status}")
        if revoked:
            await root.ask("POST", f"/v1/keys/{made.get('id')}:revoke")
        else:
            await asyncio.sleep(1.2)
        after = await caller.ask("GET", "/v1/keys")
        record.check(after.status == 401, f"a key that has ended: {after.status}")
        caller.close()
    root.close()


OVERRIDES: Final = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-Method")
REWRITES: Final = ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Path", "X-Forwarded-Prefix", "X-Override-URL")


async def overrides(target: Target, record: Record) -> None:
    """Headers and queries that name another method or path change neither."""
    client = target.client("consumer")
    path = f"/v1/brokers/{BROKER}/queues/victim"
    for header in OVERRIDES:
        for method in ("DELETE", "PUT", "POST"):
            answer = await client.ask("GET", path, headers={header: method})
            record.check(answer.status in (200, 404), f"{header}: {method}: {answer.status}")
    for header in REWRITES:
        answer = await client.ask("GET", path, headers={header: "/v1/keys"})
        record.check(answer.status in (200, 404) and b'"keys"' not in answer.body, f"{header}: {answer.status}")
    for query in ("_method=DELETE", "method=DELETE", "api_key=x", f"access_token={key_of('other-broker')}"):
        answer = await client.ask("GET", f"{path}?{query}", headers={"X-Skip-Query": "1"})
        record.check(answer.status in (200, 404, 422), f"?{query.partition('=')[0]}: {answer.status}")
    client.close()


async def ack_ids(target: Target, record: Record) -> None:
    """Ack ids of another's lease, forged ones, and one that was used: none settles anything."""
    root, thief = target.client("root"), target.client("thief")
    for queue in ("victim", "thief"):
        await root.ask("PUT", f"/v1/brokers/{BROKER}/queues/{queue}", {"durable": True})
        await root.ask("PUT", f"/v1/subscriptions/{queue}", {"broker": BROKER, "queue": queue})
    for _ in range(2):
        path = f"/v1/brokers/{BROKER}/exchanges/amq.default:publish"
        await root.ask("POST", path, {"routing_key": "victim", "payload": "x"})
    pulled = (await root.ask("POST", "/v1/subscriptions/victim:pull", {"max_messages": 2, "wait": 1})).json() or {}
    ids = [message["ack_id"] for message in pulled.get("messages", ())]
    if not record.check(len(ids) == 2, f"{len(ids)} messages were pulled"):
        return
    mine, used = ids
    await root.ask("POST", "/v1/subscriptions/victim:acknowledge", {"ack_ids": [used]})
    forged = []
    for place in range(len(mine)):
        other = "A" if mine[place] != "A" else "B"
        text = mine[:place] + other + mine[place + 1 :]
        if base64.urlsafe_b64decode(text + "==") != base64.urlsafe_b64decode(mine + "=="):  # not the same, respelled
            forged.append(text)
    forged += [mine + "A", mine[:-1], mine.lower(), mine * 2, "", "x", "A" * len(mine)]
    for verb in ("acknowledge", "release", "reject", "modifyAckDeadline"):
        body: dict[str, Any] = {"ack_ids": [mine]} | (
            {"ack_deadline_seconds": 60} if verb == "modifyAckDeadline" else {}
        )
        answer = await thief.ask("POST", f"/v1/subscriptions/victim:{verb}", body)
        record.check(answer.status == 403, f":{verb} of another's subscription: {answer.status}")
        answer = await thief.ask("POST", f"/v1/subscriptions/thief:{verb}", body)
        record.check(not settles(answer), f":{verb} of another's ack id under one's own: {answer.body[:120]!r}")
    for text in target.some(forged, 30):
        answer = await root.ask("POST", "/v1/subscriptions/victim:acknowledge", {"ack_ids": [text]})
        record.check(not settles(answer), f"forged, {text!r} for {mine!r}: {answer.status}")
    answer = await root.ask("POST", "/v1/subscriptions/victim:acknowledge", {"ack_ids": [mine]})
    record.check(settles(answer), f"the right one: {answer.status} {answer.body[:200]!r}")
    root.close()
    thief.close()


def settles(answer: Answer) -> bool:
    """Whether an answer says that a lease was settled."""
    found = answer.json()
    if answer.status != 200 or not isinstance(found, dict) or "results" not in found:
        return answer.status < 300
    return any(result.get("status") == "SUCCESS" for result in found["results"])


async def attack(target: Target, record: Record) -> None:
    """Run all of them."""
    await matrix(target, record)
    await ended_keys(target, record)
    await overrides(target, record)
    await ack_ids(target, record)
