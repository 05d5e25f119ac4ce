"""Fixtures for all tests: real servers on demand, and a fence around the network."""

from __future__ import annotations

import gc
import ipaddress
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx._transports.default
import hypothesis
import pytest

from tests import canary, pairings, unclosed
from tests.ledgers import PostgresqlLedgers
from tests.servers import (
    PRIVATE_KINDS,
    VARIABLE,
    BrokerJ,
    MainRabbitMQ,
    PostgreSQL,
    RabbitMQ,
    RabbitMQ40,
    RabbitMQ43,
    RabbitMQ310,
    Server,
    serving,
)
from tests.servers.process import USED, State

hypothesis.settings.register_profile("busy machines", deadline=None)  # what a neighbour takes is no fault of the code
hypothesis.settings.load_profile("busy machines")


# Every client of httpx reads the authorities of all the world, which takes longer than many a test that needs none.
httpx._transports.default.create_ssl_context = cache(httpx._transports.default.create_ssl_context)


CABLES = ipaddress.ip_network("198.18.0.0/16")
"""Addresses between this machine and a network namespace on it: tests/deploy/test_image.py. No network has them."""


def _only_loopback(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: no test talks to another machine."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if not isinstance(address, tuple) or not isinstance(address[0], str) or address[0] == "localhost":
        return
    try:
        found = ipaddress.ip_address(address[0].partition("%")[0])
        ours = found.is_loopback or found in CABLES
    except ValueError:
        ours = False
    if not ours:
        raise RuntimeError(f"a test tried to connect to {address[0]}: tests stay on this machine")


def _terminated(number: int, frame: object) -> None:
    """Servers are ended in good order when the test run is told to end."""
    raise KeyboardInterrupt


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(_only_loopback)
    signal.signal(signal.SIGTERM, _terminated)
    unclosed.name_tests()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if pairings.runs_all():
        return
    items[:], others = pairings.once(items)
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not look at it after each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_secret_is_told() -> Iterator[None]:
    """What the tests plant as a secret is in nothing that a gateway says."""
    canary.watch()
    yield
    assert not canary.taken(), "a planted secret was seen"


def _shared(name: str) -> Iterator[Server]:
    """The one that the environment names for its kind, else one of those that run for all, else one for this
    process."""
    kind = PRIVATE_KINDS[name]
    if (state := kind.elsewhere()) is not None:
        yield kind(state)
        return
    path = os.environ.get(VARIABLE)
    if path:
        running = json.loads(Path(path).read_text())
        if kind.kind in running:
            yield kind(State.from_json(running[kind.kind]))
            return
    server = kind()
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def _brokers_are_told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Which brokers a test talked to is in the report: the matrix of the suites counts by it."""
    USED.clear()
    yield
    request.node.user_properties += [("broker", kind.removesuffix("-tls")) for kind in sorted(USED - {"postgresql"})]


@pytest.fixture(scope="session", name="rabbitmq-3.10")
def _rabbitmq310() -> Iterator[Server]:
    yield from _shared("rabbitmq-3.10")


@pytest.fixture(scope="session", name="rabbitmq-4.0")
def _rabbitmq40() -> Iterator[Server]:
    yield from _shared("rabbitmq-4.0")


@pytest.fixture(scope="session", name="rabbitmq-4.3")
def _rabbitmq43() -> Iterator[Server]:
    yield from _shared("rabbitmq-4.3")


@pytest.fixture(scope="session")
def rabbitmq(request: pytest.FixtureRequest) -> RabbitMQ:
    """The main RabbitMQ, shared: 0-9-1."""
    found: RabbitMQ = request.getfixturevalue(MainRabbitMQ.kind)
    return found


@pytest.fixture(scope="session")
def rabbitmq310(request: pytest.FixtureRequest) -> RabbitMQ310:
    """RabbitMQ 3.10, shared: 0-8 and 0-9-1."""
    found: RabbitMQ310 = request.getfixturevalue("rabbitmq-3.10")
    return found


@pytest.fixture(scope="session")
def rabbitmq40(request: pytest.FixtureRequest) -> RabbitMQ40:
    """RabbitMQ 4.0, shared: 0-9-1."""
    found: RabbitMQ40 = request.getfixturevalue("rabbitmq-4.0")
    return found


@pytest.fixture(scope="session")
def rabbitmq43(request: pytest.FixtureRequest) -> RabbitMQ43:
    """RabbitMQ 4.3 or later, shared: 0-9-1."""
    found: RabbitMQ43 = request.getfixturevalue("rabbitmq-4.3")
    return found


@pytest.fixture
def rabbitmq_of_version(request: pytest.FixtureRequest) -> RabbitMQ:
    """The shared RabbitMQ that speaks the ``version`` of the test; the main one unless the test has a version."""
    version = request.getfixturevalue("version") if "version" in request.fixturenames else "0-9-1"
    found: RabbitMQ = request.getfixturevalue(serving(MainRabbitMQ.kind if version != "0-8" else "rabbitmq", version))
    return found


@pytest.fixture(scope="session")
def brokerj() -> Iterator[BrokerJ]:
    """Broker-J, shared: 0-8, 0-9, 0-9-1 and 0-10."""
    yield from _shared("brokerj")  # type: ignore[misc]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """PostgreSQL, shared."""
    yield from _shared("postgresql")  # type: ignore[misc]


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL) -> Iterator[str]:
    """SQLAlchemy URL of a fresh, empty database; dropped after the test."""
    url = postgresql.create_database()
    yield url
    postgresql.drop_database(url)


@pytest.fixture(scope="session")
def _postgresql_ledgers(postgresql: PostgreSQL) -> Iterator[PostgresqlLedgers]:
    ledgers = PostgresqlLedgers(postgresql)
    yield ledgers
    ledgers.close()


@pytest.fixture
def postgresql_ledger(_postgresql_ledgers: PostgresqlLedgers) -> Iterator[str]:
    """SQLAlchemy URL of a ledger, up to date and empty."""
    yield _postgresql_ledgers.take()
    _postgresql_ledgers.give_back()


@pytest.fixture(scope="module")
def _private_servers() -> Iterator[dict[str, Server]]:
    servers: dict[str, Server] = {}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def private_server(_private_servers: dict[str, Server]) -> Iterator[Callable[[str], Any]]:
    """``private_server("rabbitmq")``: one that this test may kill. Tests of a module share it, one after the
    other, and each finds it running."""

    def get(kind: str) -> Server:
        server = _private_servers.get(kind)
        if server is None:
            server = _private_servers[kind] = PRIVATE_KINDS[kind]()
        if not server.running:
            server.start()
        return server

    yield get
    for server in _private_servers.values():
        if server.running:
            server.resume()


@pytest.fixture
def unique_name() -> Callable[[str], str]:
    """``unique_name("orders")``: a name that no other test has used."""
    return lambda stem: f"{stem}-{uuid4().hex[:12]}"
