"""A secret that is planted in the configurations of the tests, and must never be seen in anything that a gateway says.

It is a password of PostgreSQL (in every URL of a ledger there) and of the brokers of the faults, and in
``tests/contract`` every other secret that a gateway has. What is looked at, in every test of every suite:

* each line of a gateway's log, in this process or in one of its own, and each answer of its ports;
* what the command line prints;
* what is in the ledger of a gateway that a test has started, octet by octet;
* everything that a suite prints (``tests/suites.py``).

It is looked for as it is, as hexadecimal digits, as base64 at each of its three offsets, and as a URL quotes it. Where
it is seen the test fails, and the run says where.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import urllib.error
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

CANARY: Final = "cAnary+7fQz/19xKw"
"""It holds what URLs and forms write in another way."""
VARIABLE: Final = "GATEWAY_TEST_CANARY"
"""Names the file into which every process of a run writes where it saw it."""
USER: Final = "canary"
"""Who has it as a password, at a broker."""
CHUNK: Final = 1 << 20
_seen: list[str] = []
_users: set[tuple[str, int]] = set()
_attended: set[tuple[str, str]] = set()


def _forms(secret: str) -> Iterable[bytes]:
    octets = secret.encode()
    yield octets
    yield quote(secret, safe="").encode()
    yield octets.hex().encode()
    for offset in range(3):  # three octets are four digits: what is before it moves the rest
        digits = b64encode(b"\0" * offset + octets)
        yield digits[4 if offset else 0 : len(digits) - 4]


FORMS: Final = tuple(dict.fromkeys(_forms(CANARY)))
_LOWER: Final = tuple(form.lower() for form in FORMS)
_FORM: Final = re.compile(b"|".join(map(re.escape, FORMS)), re.IGNORECASE)


def look(said: str | bytes, where: str) -> bool:
    """Look at something that a gateway said; it is remembered where the secret is in it."""
    octets = said.encode("utf-8", "surrogateescape") if isinstance(said, str) else bytes(said)
    lower = octets.lower()
    if not any(form in lower for form in _LOWER):  # twenty times as fast as the expression, which says where it is
        return False
    found = _FORM.search(octets)
    assert found is not None
    begin, end = max(0, found.start() - 80), found.end() + 20
    note = f"{where}: …{octets[begin:end].decode('utf-8', 'backslashreplace')}…".replace("\n", " ")
    _seen.append(note)
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(note + "\n")
    return True


def look_at(folder: Path, pattern: str) -> None:
    """Look at whole files: logs, ledgers."""
    for path in folder.glob(pattern):
        if path.is_file():
            rest = b""
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    look(rest + chunk, str(path.name))
                    rest = (rest + chunk)[-100:]


def taken() -> list[str]:
    """Where it was seen since this was asked last."""
    found, _seen[:] = list(_seen), []
    return found


def login(server: Any) -> tuple[str, str]:
    """User and password for a broker of the tests, who is made there if need be."""
    key = (server.kind, server.port)
    if key not in _users:
        try:
            server.create_user(USER, CANARY)
        except urllib.error.HTTPError as error:
            if error.code not in (409, 422):  # another process has made it; Broker-J answers 422
                raise
        _users.add(key)
    return USER, quote(CANARY, safe="")


def watch() -> None:
    """Look at everything that gateways say in this process, from now on: at what is imported by now. It may be asked
    again, when there is more."""
    for module, kind, attend in _WATCHED:
        if module in sys.modules and (module, kind) not in _attended:
            _attended.add((module, kind))
            attend(getattr(sys.modules[module], kind))


def _watch_logs(kind: Any) -> None:
    formatter, handle = kind(), logging.Logger.handle

    def handled(self: logging.Logger, record: logging.LogRecord) -> None:
        if record.name.startswith(("gateway", "uvicorn", "asyncio")):
            look(formatter.format(record), f"log of {record.name}")
        handle(self, record)

    logging.Logger.handle = handled  # type: ignore[method-assign]


def _watch_commands(kind: Any) -> None:
    invoke = kind.invoke

    def invoked(self: Any, *arguments: Any, **options: Any) -> Any:
        result = invoke(self, *arguments, **options)
        look(result.output_bytes, "command line")
        return result

    kind.invoke = invoked


def _watch_answers(kind: Any) -> None:
    call = kind.__call__

    async def called(self: Any, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                look(b"\n".join(b": ".join(pair) for pair in message.get("headers", ())), f"head of {scope['path']}")
            elif body := message.get("body"):
                look(body, f"answer of {scope['path']}")
            await send(message)

        await call(self, scope, receive, sent)

    kind.__call__ = called


_WATCHED: Final = (
    ("gateway.observing.telemetry", "JsonFormatter", _watch_logs),
    ("click.testing", "CliRunner", _watch_commands),
    ("gateway.api.app", "Api", _watch_answers),
    ("gateway.api.about.ops", "Ops", _watch_answers),
)
"""Module, class, and how it is looked at. Nothing is imported for that: most tests need a part of them."""
