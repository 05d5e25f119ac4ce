"""The test suites of client libraries: what passes on a broker directly passes through a front to it.

No suite costs the front a connection to RabbitMQ; :data:`KNOWN` has what costs one to Broker-J.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.both_ways import run_both_ways
from tests.clients.libraries import LIBRARIES, SUITES, Library

pytestmark = pytest.mark.broker

TARGETS = (("rabbitmq-3.10", "0-9-1"), ("rabbitmq-4.0", "0-9-1"), ("rabbitmq-4.3", "0-9-1"), ("brokerj", "0-9-1"))
"""Servers, and what the front speaks with them."""
KNOWN = {"brokerj": (b"Unsupported queue declare argument(s)", b"No such queue", b"Cannot subscribe to queue")}
"""For what Broker-J ends a connection of 0-9-1, where RabbitMQ ends the channel: arguments of a queue that are
RabbitMQ's, basic.get from a queue that is not there, and basic.consume from one that somebody else consumes alone. The
front opens the connection again, and its clients stay."""


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
    found = run_both_ways(library, private_server(kind), version, tmp_path)
    said = f"{library.name} on {kind}: {found.counts}"
    print(said)
    record_property("suite", said)
    assert found.passed, (tmp_path / "direct" / "output.txt").read_text()[-3000:]
    missing = sorted(found.passed - found.also)
    assert not missing, said
    unknown = [reason for reason in found.closes if not any(known in reason for known in KNOWN.get(kind, ()))]
    assert not unknown, "the broker has ended a connection of the front"
    lost = len(found.closes)
    assert (found.restores, found.still_open) == (lost, found.opened - lost), "a connection to the broker was lost"
    assert found.opened


@pytest.mark.parametrize("library", [each for each in LIBRARIES if each.tests], ids=lambda library: library.name)
def test_what_is_left_out_is_there(library: Library) -> None:
    found = {file.name for file in (SUITES / library.name / library.tests).glob("test_*.py")}
    assert library.left_out.keys() <= found
    assert library.files
