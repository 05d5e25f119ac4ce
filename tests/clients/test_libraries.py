"""The test suites of client libraries: what passes on a broker directly passes through a front to it.

No suite costs the front a connection to RabbitMQ; :data:`KNOWN` has what costs one to Broker-J.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.clients.libraries import LIBRARIES, SUITES, Library
from tests.front.fronts import RunningFront
from tests.servers.relay import SERVER, relay_to

pytestmark = pytest.mark.broker

TARGETS = (("rabbitmq-3.10", "0-9-1"), ("rabbitmq-4.0", "0-9-1"), ("rabbitmq-4.3", "0-9-1"), ("brokerj", "0-9-1"))
"""Servers, and what the front speaks with them."""
RULES = {"rabbitmq-4.0": {"transient_queue": "on"}}
"""The 4.0 of the tests denies transient queues, as later releases do."""
LARGEST = 32 << 20
"""The largest message of the suites is one of 20 MiB."""
KNOWN = {"brokerj": (b"Unsupported queue declare argument(s)", b"No such queue")}
"""For what Broker-J ends a connection of 0-9-1, where RabbitMQ ends the channel: arguments of a queue that are
RabbitMQ's, and basic.get from a queue that is not there. The front opens the connection again, and its clients stay."""


def behind(server: Any, version: str, port: int, library: Library) -> str:
    """The URL for the front, through a relay at the port: another virtual host of the server, for the suite runs in the
    usual one directly, at the same time."""
    host = "memory" if server.kind == "brokerj" else f"through-{library.name}"
    if server.kind != "brokerj":
        server.api("PUT", f"vhosts/{host}")
        server.api("PUT", f"permissions/{host}/{server.user}", {"configure": ".*", "write": ".*", "read": ".*"})
    url = urlsplit(server.url(version, host))
    return urlunsplit(url._replace(netloc=url.netloc.replace(f":{server.port}", f":{port}")))


def closes(record: list[tuple[str, bytes]]) -> list[bytes]:
    """Why the server has closed a connection: code and text of its connection.close, as they are on the wire."""
    octets = b"".join(part for who, part in record if who == SERVER)
    return re.findall(rb"\x01\x00\x00....\x00\x0a\x00\x32(.{2,200})", octets, re.DOTALL)


@pytest.mark.parametrize(
    ("kind", "version", "library"),
    [
        pytest.param(kind, version, library, id=f"{kind}-{version}-{library.name}")
        for kind, version in TARGETS
        for library in LIBRARIES
        if kind in library.kinds
    ],
)
def test_the_front_passes_what_the_broker_passes(
    kind: str,
    version: str,
    library: Library,
    private_server: Callable[[str], Any],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    server = private_server(kind)
    folders = [tmp_path / name for name in ("direct", "front")]
    for folder in folders:
        folder.mkdir()
    with relay_to(server.port) as relay:
        url = behind(server, version, relay.port, library)
        front = RunningFront(url, rules=RULES.get(kind, {}), message_max=LARGEST)
        try:
            with ThreadPoolExecutor(2) as both:
                direct, through = both.map(library.run, (server.port, front.port), folders)
            restores = front.call(lambda front: front.counts.restores)
            still_open, opened = relay.open, len(relay.connections)
            why = [reason for record in relay.connections for reason in closes(record)]
        finally:
            front.close()
    passed = {name for name, ok in direct.items() if ok}
    also = {name for name, ok in through.items() if ok}
    said = f"{library.name} on {kind}: {len(passed)} of {len(direct)} directly, {len(also)} through the front"
    print(said)
    record_property("suite", said)
    assert passed, (folders[0] / "output.txt").read_text()[-3000:]
    missing = sorted(passed - also)
    assert not missing, said
    unknown = [reason for reason in why if not any(known in reason for known in KNOWN.get(kind, ()))]
    assert not unknown, "the broker has ended a connection of the front"
    assert (restores, still_open) == (len(why), opened - len(why)), "a connection to the broker was lost"
    assert opened


@pytest.mark.parametrize("library", [each for each in LIBRARIES if each.tests], ids=lambda library: library.name)
def test_what_is_left_out_is_there(library: Library) -> None:
    found = {file.name for file in (SUITES / library.name / library.tests).glob("test_*.py")}
    assert library.left_out.keys() <= found
    assert library.files
