"""Names and texts of every kind, in paths, queries and bodies: none reaches what its caller may not, none is a 5xx."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from tests.attack.credentials import filled, operations
from tests.attack.judge import Record
from tests.attack.lab import BROKER, Target

OWN: Final = "thief"
TRICKS: Final = (
    "{own}/../{other}", "{own}/..%2f{other}", "{own}%2f..%2f{other}", "{own}%2F%2E%2E%2F{other}", "./{other}",
    "../queues/{other}", "%2e/{other}", "{own}/%2e%2e/{other}", "{own}//{other}", "/{other}", "{other}/", "{other}//",
    "{other}/.", "{other}%2f", "{other}%00", "{other}%00{own}", "{own}%00{other}", "{other};{own}", "{own};/{other}",
    "{other};a=b", "{other}%3b", "{other}?{own}", "{other}%3f{own}", "{other}#{own}", "{other}%23{own}", "{other}%20",
    "%20{other}", "{other}.", "{other}..", "{other}%2e", "{upper}", "{other}%09", "{other}%0a", "{other}%0d%0a",
    "%76ictim", "%2576ictim", "%25%37%36ictim", "v%69ctim", "\uff56\uff49\uff43\uff54\uff49\uff4d", "v\u0131ctim",
    "victi\u1d50", "victim\u200b", "\ufeffvictim", "%c1%b6ictim", "%u0076ictim", "{other}:{own}", "{own}:{other}",
    "{own}%3a{other}", "{other}%5c..%5c{own}", "{own}\\..\\{other}", "*", "%2a", "**", "#", "%23", "amq.default",
    "{own},{other}", "{own}&{other}", "{own}|{other}", "{own}%7c{other}", "{own} OR 1=1", "{own}'--",
)  # fmt: skip
"""Of a caller who may only use ``{own}``: ways to write ``{other}``."""
ODD: Final[tuple[bytes, ...]] = (
    b"%ff", b"%fe%ff", b"%c0%80", b"%ed%a0%80", b"%f4%90%80%80", b"%00", b"a%00b", b"%0d%0aX-A:b", b"%e2%80%ae",
    b"%1b[2J", b"%c2%9b", b"%7f", b"..", b"%2e%2e", b"%2f", b"%5c", b"a" * 255, b"a" * 256, b"%c3%a9" * 127,
    b"%f0%9f%92%a9" * 60, b"%", b"%2", b"%zz", b"%u0041", b"{x}", b"$%7Bjndi:ldap://x%7D", b"%7B%7B7*7%7D%7D",
    b"'%20OR%201=1--", b"%22;DROP%20TABLE%20messages;--", b"1%20UNION%20SELECT%20null", b"*", b"%23", b"-1", b"0",
    b"9223372036854775808", b"1e400", b"NaN", b"null", b"true", b"[]", b"%20", b"+", b";", b":", b"::", b"%3a", b"@",
    b"\xff", b"\xc3\xa9", b"a%20b", b"con", b"__proto__", b"%EF%BB%BF",
)  # fmt: skip
"""Names, as they stand in a path."""
TEXTS: Final = (
    "'", "''", '"', "\\", "\x00", "a\x00b", "'; DROP TABLE messages; --", "' OR '1'='1", '" OR 1=1 --', "1; SELECT 1",
    "%' --", "_%_", "\\' OR 1=1 --", "$$; SELECT pg_sleep(5); $$", "'||(SELECT 1)||'", "{{7*7}}", "${7*7}", "%(name)s",
    "%s%s%s%n", ":name", "?1", "\ud800", "\u202e", "\x1b[31m", "\x9b", "\uffff", "\U0010ffff", "a" * 10_000, "/*", "--",
)  # fmt: skip
"""Texts for queries and bodies."""
FILTERS: Final = ("id", "broker", "exchange", "routing_key", "origin", "state", "correlation_id", "after", "before",
                  "cursor", "limit", "queue", "since", "until", "q", "header")  # fmt: skip
"""Query parameters to try, known and unknown."""
LISTS: Final = ("/v1/messages", "/v1/events", "/v1/statistics", "/v1/scheduled", "/v1/keys", "/v1/log/cursors",
                "/v1/subscriptions", "/v1/endpoints", "/v1/bridges", "/v1/taps", "/v1/log")  # fmt: skip


async def tricks(target: Target, record: Record) -> None:
    """A caller of one queue and exchange asks for another's, in every spelling."""
    root, thief = target.client("root"), target.client("thief")
    for name in ("victim", OWN):
        await root.ask("PUT", f"/v1/brokers/{BROKER}/queues/{name}", {"durable": True})
        await root.ask("PUT", f"/v1/brokers/{BROKER}/exchanges/{name}", {"type": "direct"})
        await root.ask("PUT", f"/v1/subscriptions/{name}", {"broker": BROKER, "queue": name})
    asked = (
        ("GET", f"/v1/brokers/{BROKER}/queues/%s", None, "name"),
        ("POST", "/v1/subscriptions/%s:pull", {"max_messages": 1, "wait": 0}, "messages"),
        ("POST", f"/v1/brokers/{BROKER}/exchanges/%s:publish", {"routing_key": "k", "payload": "x"}, "id"),
        ("GET", "/v1/subscriptions/%s", None, "queue"),
    )
    spelled = [trick.format(own=OWN, other="victim", upper="VICTIM") for trick in TRICKS]
    for text in target.some(spelled, 30):
        for method, path, body, field in asked:
            answer = await thief.ask(method, path % text, body)
            found = answer.json()
            shown = found.get(field) if isinstance(found, dict) else None
            got = answer.status < 300 and (shown == "victim" or (method == "POST" and text not in (OWN, f"{OWN}#x")))
            record.check(not got or canonical(text) == OWN, f"{method} {path % text}: {answer.status} {shown!r}")
            record.check(answer.status < 500, f"{method} {path % text}: {answer.status}")
    root.close()
    thief.close()


def canonical(text: str) -> str:
    """Return what is left of a name in front of a query or fragment."""
    return text.partition("?")[0].partition("#")[0]


async def odd_names(target: Target, record: Record) -> None:
    """Odd names in the place of every name of every path, as an administrator."""
    root = target.client("root")
    found = [each for each in await operations(target.client()) if "{" in each[1]]
    number = 0
    for method, path, _ in found:
        for name in ODD:
            number += 1
            if not target.full and number % 25:
                continue
            for place in range(path.count("{")):
                octets = placed(path, place, name)
                answer = await root.ask(method, octets, {} if method in ("POST", "PUT", "PATCH") else None, within=30.0)
                right = 0 < answer.status < 500 or is_honest(answer.status, answer.code)
                record.check(right, f"{method} {octets[:80]!r}: {answer.status} {answer.code}")
    root.close()


def is_honest(status: int, code: str) -> bool:
    """Whether a 5xx is the answer of a broker, and not a fault of the gateway."""
    return status in (502, 504) and code.startswith("broker_")


def placed(path: str, place: int, name: bytes) -> bytes:
    """Return a path of the document with ``name`` in one of its places, and good names in the others."""
    parts = path.split("{")
    built = parts[0]
    for index, part in enumerate(parts[1:]):
        field, _, rest = part.partition("}")
        built += ("\x00" if index == place else filled("{" + field + "}")) + rest
    return built.encode().replace(b"\x00", name)


async def texts(target: Target, record: Record) -> None:
    """Texts that databases, templates and terminals act upon, in queries and bodies."""
    root = target.client("root")
    number = 0
    for path in LISTS:
        for parameter in FILTERS:
            for text in TEXTS:
                number += 1
                if not target.full and number % 29:
                    continue
                octets = quote(text.encode("utf-8", "surrogatepass"), safe="")
                answer = await root.ask("GET", f"{path}?{parameter}={octets}")
                record.check(0 < answer.status < 500 and answer.status != 431, f"{path}?{parameter}={octets[:40]}: "
                             f"{answer.status} {answer.code}")  # fmt: skip
    for text in TEXTS:
        bodies: tuple[tuple[str, str, Any], ...] = (
            ("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish",
             {"routing_key": text[:200], "payload": text, "headers": {"h": text}, "message_id": text[:200]}),
            ("POST", "/v1/keys", {"client": text[:60], "scopes": [f"publish:{text[:60]}/x"]}),
            ("PUT", "/v1/subscriptions/texts", {"broker": BROKER, "queue": text[:200]}),
            ("PUT", "/v1/endpoints/texts", {"url": f"https://x.example/{text[:200]}", "headers": {"X-A": text[:200]}}),
        )  # fmt: skip
        for method, path, body in bodies:
            answer = await root.ask(method, path, body)
            record.check(0 < answer.status < 500, f"{method} {path} {text[:20]!r}: {answer.status} {answer.code}")
    found = await root.ask("GET", "/v1/messages?limit=1")
    record.check(found.status == 200, f"the ledger after them: {found.status}")
    for path in ("/v1/subscriptions/texts", "/v1/endpoints/texts"):
        await root.ask("DELETE", path)
    root.close()


async def attack(target: Target, record: Record) -> None:
    """Run all of them."""
    await tricks(target, record)
    await odd_names(target, record)
    await texts(target, record)
