"""The conformance suite through a front, for pairs of a client's and an upstream's version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.config import BrokerSettings, FrontSettings
from gateway.front.server import Front
from gateway.versions import VERSION_NAMES
from tests.conformance.conftest import *  # noqa: F403  # its fixtures
from tests.conformance.conftest import FarEnd
from tests.conformance.test_consume import *  # noqa: F403
from tests.conformance.test_publish import *  # noqa: F403
from tests.conformance.test_topology import *  # noqa: F403
from tests.conformance.test_transactions import *  # noqa: F403
from tests.front.fronts import ADMIN
from tests.servers import serving

UPSTREAMS = (
    ("rabbitmq", "0-8"),
    ("brokerj", "0-9"),
    ("rabbitmq", "0-9-1"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
)
"""Brokers, and what the front speaks with them: every version. RabbitMQ answers a client of 0-9 in 0-9-1."""
PAIRS = tuple((version, *upstream) for upstream in UPSTREAMS for version in VERSION_NAMES)


@dataclass
class FrontEnd(FarEnd):
    """A front as one version sees it."""

    behind: tuple[str, str] = ("", "")
    """Broker and version."""

    @property
    def keeps_header_order(self) -> bool:
        """See FarEnd: what the upstream does."""
        return self.behind != ("rabbitmq", "0-9-1")

    @property
    def marks_what_comes_back(self) -> bool:
        """See FarEnd: what the upstream does."""
        return self.behind[0] != "brokerj" or self.behind[1] == "0-10"


@pytest.fixture(params=PAIRS, ids="-".join)
async def far_end(request: pytest.FixtureRequest) -> AsyncIterator[FarEnd]:
    """A front, as its clients see it."""
    version, kind, upstream = request.param
    server: Any = request.getfixturevalue(serving(kind, upstream))
    broker = BrokerSettings(url=server.url(upstream), reconnect_min=0.1, reconnect_max=0.5)
    front = Front("test", FrontSettings(port=0, broker="upstream", users=(ADMIN,)), {"upstream": broker})
    await front.start()
    end = FrontEnd("front", version, front.port, behind=(kind, upstream))
    yield end
    await end.close()
    await front.stop()
