"""One suite over every broker and version: the fixture ``far_end`` is each of them in turn.

The embedded broker runs in this process, a fresh one for each test. RabbitMQ and Broker-J are shared, so every
name is new.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from gateway.amqp.values import Value
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings
from gateway.link import Link
from gateway.upstreams import Upstream
from gateway.upstreams.keeper import Dialer
from tests.servers import serving

PAIRS = (
    ("rabbitmq", "0-8"),
    ("rabbitmq", "0-9"),
    ("rabbitmq", "0-9-1"),
    ("rabbitmq", "0-9-1", "quorum"),
    ("brokerj", "0-8"),
    ("brokerj", "0-9"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
    ("embedded", "0-8"),
    ("embedded", "0-9"),
    ("embedded", "0-9-1"),
    ("embedded", "0-10"),
    ("embedded", "0-10", "transitional"),
)


@dataclass
class FarEnd:
    """A broker as one version sees it."""

    kind: str
    version: str
    port: int
    virtual_host: str = "/"
    dialect: str = ""
    """``transitional``: the draft of 0-10."""
    queue_type: str = ""
    """``quorum``: the queues of the fixture ``queue`` are of that type."""
    started: list[Upstream] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, Value]:
        """Those that a declaration of the queue of the fixture ``queue`` has."""
        return {"x-queue-type": self.queue_type} if self.queue_type else {}

    @property
    def keeps_header_order(self) -> bool:
        """False: it hands out the entries of the headers sorted by name (RabbitMQ 4; docs/reference/brokers.md)."""
        return self.kind != "rabbitmq" or self.version == "0-8"

    @property
    def marks_what_comes_back(self) -> bool:
        """False: it forgets in a rollback that a message was out."""
        return self.kind != "brokerj"

    def name(self, stem: str = "t") -> str:
        """A name that nothing else has."""
        return f"{stem}-{uuid4().hex[:12]}"

    def settings(
        self, user: str = "guest", password: str = "guest", virtual_host: str | None = None, **settings: Any
    ) -> BrokerSettings:
        host = quote(self.virtual_host if virtual_host is None else virtual_host, safe="")
        version = settings.pop("version", self.version)
        if self.dialect and version == self.version:
            version += f"&dialect={self.dialect}"
        url = f"amqp://{user}:{password}@127.0.0.1:{self.port}/{host}?version={version}"
        return BrokerSettings(url=url, **{"reconnect_min": 0.1, "reconnect_max": 1.0, **settings})

    async def upstream(self, **settings: Any) -> Upstream:
        """One that is up."""
        upstream = Upstream(f"{self.kind}-{self.version}", self.settings(**settings))
        self.started.append(upstream)
        await upstream.start()
        assert await upstream.wait_up(15), upstream.reason
        return upstream

    async def link(self) -> Link:
        """A bare link."""
        link = await Dialer("link", self.settings()).open("conformance")
        self.links.append(link)
        return link

    async def close(self) -> None:
        for link in self.links:
            await link.close()
        for upstream in self.started:
            await upstream.close(1.0)


Declare = Callable[..., Awaitable[str]]


@pytest.fixture(
    params=[
        pytest.param(pair, id="-".join(pair), marks=[] if pair[0] == "embedded" else [pytest.mark.broker])
        for pair in PAIRS
    ]
)
async def far_end(request: pytest.FixtureRequest) -> AsyncIterator[FarEnd]:
    """Each broker in each of its versions."""
    kind, version, *more = request.param
    if kind == "embedded":
        embedded = EmbeddedBroker(EmbeddedSettings(port=0, transitional=bool(more)))
        await embedded.start()
        end = FarEnd(kind, version, embedded.port, dialect="".join(more))
        yield end
        await end.close()
        await embedded.stop()
    else:
        server = request.getfixturevalue(serving(kind, version))
        end = FarEnd(kind, version, server.port, queue_type="".join(more))
        yield end
        await end.close()


@pytest.fixture
async def upstream(far_end: FarEnd) -> Upstream:
    """An upstream of the far end."""
    return await far_end.upstream()


@pytest.fixture
async def queue(far_end: FarEnd, upstream: Upstream) -> AsyncIterator[str]:
    """A new queue, durable and empty."""
    name = far_end.name("queue")
    await upstream.declare_queue(name, arguments=far_end.arguments)
    yield name
    if upstream.state.value == "up":
        await upstream.delete_queue(name)
