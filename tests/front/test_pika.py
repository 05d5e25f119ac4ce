"""pika does through a front what it does with RabbitMQ, and sees no difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.front.fronts import RunningFront
from tests.interop.test_pika import *  # noqa: F403  # the very tests that RabbitMQ and the embedded broker pass
from tests.servers import serving


@pytest.fixture(params=[("rabbitmq", "0-9-1")], ids="-".join)
def running(request: pytest.FixtureRequest) -> Iterator[RunningFront]:
    """A front to a real broker."""
    kind, version = request.param
    server: Any = request.getfixturevalue(serving(kind, version))
    front = RunningFront(server.url(version))
    yield front
    front.close()


@pytest.fixture
def port(running: RunningFront) -> int:
    """Where the front listens."""
    return running.port


def test_exclusive_and_auto_delete_queues_go(connect: Open, channel: BlockingChannel) -> None:  # noqa: F405
    """As with RabbitMQ, but for the beginning of names that the server makes: the front has to declare them again
    after a loss, and nobody may declare a name that begins with ``amq.``."""
    first = connect()
    one = first.channel()
    exclusive = one.queue_declare("", exclusive=True).method.queue
    auto_delete = one.queue_declare("", durable=True, auto_delete=True).method.queue
    assert exclusive.startswith("front.gen-")
    assert exclusive != auto_delete
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED"):  # noqa: F405
        connect().channel().queue_declare(exclusive, passive=True)
    one.basic_cancel(one.basic_consume(auto_delete, lambda *_: None))
    first.close()
    for name in (exclusive, auto_delete):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):  # noqa: F405
            connect().channel().queue_declare(name, passive=True)
