"""The suite of a client library on a broker directly and, at the same time, through a front to it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.clients.libraries import Library
from tests.front.fronts import RunningFront
from tests.servers.relay import SERVER, relay_to

RULES = {"rabbitmq-4.0": {"transient_queue": "on"}}
"""The 4.0 of the tests denies transient queues, as later releases do."""
LARGEST = 32 << 20
"""The largest message of the suites is one of 20 MiB."""


@dataclass(frozen=True)
class BothWays:
    """What became of a suite."""

    direct: dict[str, bool]
    """Each test, and whether it passed directly."""
    through: dict[str, bool]
    """The same through the front."""
    closes: list[bytes]
    """Why the broker has closed connections of the front: code and text."""
    restores: int
    """How often the front has opened a connection again."""
    opened: int
    """How many connections the front has opened in all."""
    still_open: int
    """How many of them were open at the end."""

    @property
    def passed(self) -> set[str]:
        """The tests that passed directly."""
        return {name for name, ok in self.direct.items() if ok}

    @property
    def also(self) -> set[str]:
        """The tests that passed through the front."""
        return {name for name, ok in self.through.items() if ok}

    @property
    def counts(self) -> str:
        """How many passed, for people."""
        direct, through = f"{len(self.passed)} of {len(self.direct)}", f"{len(self.also)} of {len(self.through)}"
        return f"{direct} directly, {through} through the front"


def run_both_ways(library: Library, server: Any, version: str, folder: Path, *, whole: bool = False) -> BothWays:
    """Run a suite, with what the front speaks to the server; ``whole`` as in :meth:`Library.run`. The folders
    ``direct`` and ``front`` in the given one get what the suite printed."""
    folders = [folder / name for name in ("direct", "front")]
    for each in folders:
        each.mkdir()
    with relay_to(server.port) as relay:
        url = _behind(server, version, relay.port, library)
        front = RunningFront(url, rules=RULES.get(server.kind, {}), message_max=LARGEST)
        try:

            def through() -> tuple[dict[str, bool], int, int]:
                passed = library.run(front.port, folders[1], whole=whole)
                # At once, for the direct run may go on for longer than the front keeps a connection that is idle.
                return passed, front.call(lambda front: front.counts.restores), relay.open

            with ThreadPoolExecutor(2) as both:
                direct = both.submit(library.run, server.port, folders[0], whole=whole)
                passed, restores, still_open = both.submit(through).result()
            why = [reason for record in relay.connections for reason in _closes(record)]
            return BothWays(direct.result(), passed, why, restores, len(relay.connections), still_open)
        finally:
            front.close()


def _behind(server: Any, version: str, port: int, library: Library) -> str:
    """The URL for the front, through a relay at the port: another virtual host of the server, for the suite runs in the
    usual one directly, at the same time."""
    host = "memory" if server.kind == "brokerj" else f"through-{library.name}"
    if server.kind != "brokerj":
        server.api("PUT", f"vhosts/{host}")
        server.api("PUT", f"permissions/{host}/{server.user}", {"configure": ".*", "write": ".*", "read": ".*"})
    url = urlsplit(str(server.url(version, host)))
    return urlunsplit(url._replace(netloc=url.netloc.replace(f":{server.port}", f":{port}")))


def _closes(record: list[tuple[str, bytes]]) -> list[bytes]:
    """Why the server has closed a connection: code and text of its connection.close, as they are on the wire."""
    octets = b"".join(part for who, part in record if who == SERVER)
    return re.findall(rb"\x01\x00\x00....\x00\x0a\x00\x32(.{2,200})", octets, re.DOTALL)
